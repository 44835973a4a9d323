import assert from "node:assert/strict";
import test from "node:test";
import { bytesOfMatches, follow, icicle, keyOf, treemap } from "../src/canvas/frames";
import type { FlameNode } from "../src/protocol";

function node(name: string, bytes: number, ...children: FlameNode[]): FlameNode {
  return { name, file: `${name}.py`, line: 1, user: true, bytes, base: 0, count: 1, children, leftOut: 0 };
}

const ROOT = node("all", 100, node("forward", 60, node("linear", 60)), node("backward", 30));

test("frames of a flame graph are as wide as their share", () => {
  const boxes = icicle(ROOT, [], 1000).filter((box) => !box.rest);
  assert.deepEqual(
    boxes.map((box) => [box.node.name, box.depth, box.x, box.width]),
    [
      ["all", 0, 0, 1000],
      ["forward", 1, 0, 600],
      ["linear", 2, 0, 600],
      ["backward", 1, 600, 300],
    ],
  );
});

test("the cells of a tree map fill it", () => {
  const leaves = treemap(ROOT, [], 400, 300).filter((cell) => cell.depth === 1);
  const area = leaves.reduce((sum, cell) => sum + cell.width * cell.height, 0);
  assert.ok(Math.abs(area - 396 * 281) < 1, String(area));
});

test("a trail is followed as far as it goes", () => {
  const forward = ROOT.children[0]!;
  assert.deepEqual(follow(ROOT, [keyOf(forward), "gone"]), [ROOT, forward]);
});

test("bytes of matches are counted once", () => {
  assert.equal(bytesOfMatches(ROOT, "LINEAR"), 60);
  assert.equal(bytesOfMatches(ROOT, "ward"), 90);
});
