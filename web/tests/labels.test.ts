import assert from "node:assert/strict";
import test from "node:test";
import { shortLabels } from "../src/state/labels";

const groups = (...named: [string, string][]) =>
  named.map(([label, detail], id) => ({ id, label, detail, blocks: 1 }));
const shown = (...named: [string, string][]) => {
  const { shared, of } = shortLabels(groups(...named));
  return {
    shared,
    rows: [...of.values()].map(({ name, line, detail }) => `${name}${line} ${detail}`.trim()),
  };
};

test("a file that all lines share is said once", () => {
  assert.deepEqual(shown(["train.py:9", "predict"], ["train.py:13", "step"]), {
    shared: "in train.py",
    rows: [":9 predict", ":13 step"],
  });
});

test("files that differ are kept", () => {
  assert.deepEqual(shown(["train.py:9", "predict"], ["model.py:13", "forward"], ["(C++ only)", ""]), {
    shared: "",
    rows: ["train.py:9 predict", "model.py:13 forward", "(C++ only)"],
  });
});

test("groups of one line are told apart by what differs in their details", () => {
  assert.deepEqual(shown(["train.py:9", "step"], ["train.py:9", "step, backward"]).rows, [
    ":9 step",
    ":9 backward",
  ]);
});

test("stacks of one line are told apart by the calls that differ", () => {
  const rows = shown(
    ["rl.py:11", "linear:125 ← forward ← <module>"],
    ["rl.py:11", "gelu:90 ← forward ← <module>"],
    ["rl.py:11", "log_softmax:7 ← <module>"],
  ).rows;
  assert.deepEqual(rows, [":11 linear:125 ← forward", ":11 gelu:90 ← forward", ":11 log_softmax:7"]);
});

test("a long function name keeps its end and its line", () => {
  const rows = shown(
    ["a.py:1", "_in_projection_packed:5843 ← f"],
    ["a.py:1", "_in_projection_packed:5836 ← f"],
  ).rows;
  assert.deepEqual(rows, [":1 _in_p…acked:5843", ":1 _in_p…acked:5836"]);
});

test("the path that all modules share is said once", () => {
  assert.deepEqual(
    shown(["model.layers.0.mlp", ""], ["model.layers.1.mlp", ""], ["outside of modules", ""]),
    {
      shared: "in model.layers",
      rows: [".0.mlp", ".1.mlp", "outside of modules"],
    },
  );
});

test("a single group keeps its whole label", () => {
  assert.deepEqual(shown(["train.py:9", "predict"]), { shared: "", rows: ["train.py:9 predict"] });
});
