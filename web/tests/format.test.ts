import assert from "node:assert/strict";
import test from "node:test";
import { bytes, change, count, counted, duration, fileName, percent, site } from "../src/state/format";

test("bytes have binary units and three significant digits", () => {
  assert.deepEqual([0, 512, 1024, 2.59 * 2 ** 30, 84.25 * 2 ** 20, -(2 ** 20)].map(bytes), [
    "0 B",
    "512 B",
    "1.00 KiB",
    "2.59 GiB",
    "84.2 MiB",
    "-1.00 MiB",
  ]);
  assert.equal(change(2 ** 20), "+1.00 MiB");
});

test("counts have thousands separated", () => {
  assert.equal(count(8407800), "8,407,800");
  assert.deepEqual([counted(1, "block"), counted(12, "block")], ["1 block", "12 blocks"]);
});

test("percentages have no space", () => {
  assert.deepEqual(
    [percent(46, 100), percent(1, 3), percent(1, 80), percent(1, 1e6), percent(1, 0)],
    ["46%", "33%", "1.3%", "<0.1%", "0%"],
  );
});

test("durations have a readable unit", () => {
  assert.deepEqual([5, 12_000, 1_240_000, 90e6].map(duration), ["5 µs", "12.0 ms", "1.24 s", "1.50 min"]);
});

test("a site is a file name and a line", () => {
  assert.equal(site({ file: "/home/ada/train.py", line: 9, function: "step" }), "train.py:9");
  assert.equal(site({ file: "", line: 0, function: "malloc" }), "malloc");
  assert.equal(fileName("C:\\work\\train.py"), "train.py");
});
