import assert from "node:assert/strict";
import test from "node:test";
import { decodeTile, MERGED, path } from "../src/protocol";

test("addresses have their parameters in order, without empty ones", () => {
  assert.equal(path("overview"), "api/overview");
  assert.equal(
    path("table", { run: 0, of: "sites", search: "", at: 7, from: null }),
    "api/table?at=7&of=sites&run=0",
  );
  assert.equal(path("whatif", { conf: "a:b,c" }), "api/whatif?conf=a%3Ab%2Cc");
});

/** A tile of two columns; the second keeps the first slice of the one before it. */
function encoded(): ArrayBuffer {
  const groups = [{ id: 0, label: "train.py:9", detail: "step", blocks: 2 }];
  let header = JSON.stringify({ first: 4, columns: 2, entries: 3, blocks: 0, used: false, groups });
  while (header.length % 8) header += " ";
  const floats = [10, 20, 100, 200, 0, 5, 64, 32, 16];
  const ints = [
    7,
    8,
    /* keep */ 0,
    1,
    /* count */ 2,
    1,
    /* tail */ 0,
    0,
    /* id */ 0,
    MERGED,
    1,
    /* pieces */ 1,
    3,
    1,
  ];
  const bytes = new ArrayBuffer(8 + header.length + 8 * floats.length + 4 * ints.length);
  new Uint32Array(bytes, 0, 2).set([header.length, 0]);
  new Uint8Array(bytes, 8, header.length).set(new TextEncoder().encode(header));
  new Float64Array(bytes, 8 + header.length, floats.length).set(floats);
  new Uint32Array(bytes, 8 + header.length + 8 * floats.length, ints.length).set(ints);
  return bytes;
}

test("a tile repeats the slices that its columns share", () => {
  const tile = decodeTile(encoded());
  const column = (number: number) => {
    const [start, end] = [tile.start[number]!, tile.end[number]!];
    return [...tile.id.subarray(start, end)].map((id, slice) => [
      id,
      tile.size[start + slice],
      tile.pieces[start + slice],
    ]);
  };
  assert.deepEqual([tile.first, [...tile.position], [...tile.lowest]], [4, [7, 8], [10, 20]]);
  assert.deepEqual(column(0), [
    [0, 64, 1],
    [MERGED, 32, 3],
  ]);
  assert.deepEqual(column(1), [
    [0, 64, 1],
    [1, 16, 1],
  ]);
});
