// Tiles: pictures as columns of slices, at the resolution of a screen.
//
// A *position* is a number of events that have happened: 0 is the state before the first event, `events` the
// state after the last. A *column* covers many positions and shows the state at the one with the most
// allocated bytes, so that no peak is averaged away and the slices of a column add up to what was allocated
// at that position.

import type { Group, TileHeader } from "./answers";

/** Id of a slice that stands for several, each too small to be drawn. */
export const MERGED = 0xffffffff;
/** Id of memory that is reserved and not in use (memory map). */
export const FREE = 0xfffffffe;
/** Id of addresses that are not reserved at that position (memory map). */
export const GAP = 0xfffffffd;

/** Columns of a tile. A tile begins at every multiple of a quarter of them. */
export const COLUMNS = { bands: 4096, blocks: 2048 };

export interface Tile {
  first: number; // number of the first column at this level
  columns: number;
  groups: Map<number, Group>;
  /** For tiles of blocks: the group (by site) of each. */
  siteOf: Map<number, number>;
  lowest: Float64Array; // least allocated bytes in the column
  reserved: Float64Array; // most reserved bytes in the column
  elapsedUs: Float64Array; // from the first event to the moment that is shown
  position: Uint32Array; // of the moment that is shown
  /** Slices of column c, from the bottom: start[c] .. end[c]. */
  start: Uint32Array;
  end: Uint32Array;
  size: Float64Array; // bytes
  id: Uint32Array; // group, block, or one of the constants above
  pieces: Uint32Array; // how many blocks or groups a slice stands for
  used: Float64Array | null; // memory map: bytes in use of a merged slice
}

/**
 * Decodes a tile: u32 length of the header, u32 0, the header, f64 columns, u32 columns. Each column repeats
 * the first `keep` and the last `tail` slices of the one before it; equal columns share their slices.
 */
export function decodeTile(bytes: ArrayBuffer): Tile {
  const length = new DataView(bytes).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 8, length))) as TileHeader;
  const { columns, entries, blocks } = header;
  let at = 8 + length;
  const floats = (count: number) => new Float64Array(bytes, (at += 8 * count) - 8 * count, count);
  const ints = (count: number) => new Uint32Array(bytes, (at += 4 * count) - 4 * count, count);
  const lowest = floats(columns);
  const reserved = floats(columns);
  const elapsedUs = floats(columns);
  const newSize = floats(entries);
  const newUsed = header.used ? floats(entries) : null;
  const position = ints(columns);
  const keep = ints(columns);
  const count = ints(columns);
  const tail = ints(columns);
  const newId = ints(entries);
  const newPieces = ints(entries);
  const rows = ints(blocks);
  const sites = ints(blocks);

  const start = new Uint32Array(columns);
  const end = new Uint32Array(columns);
  let total = 0;
  for (let c = 0; c < columns; c++) {
    const runs = keep[c]! + count[c]! + tail[c]!;
    const isAlike = c > 0 && count[c] === 0 && runs === end[c - 1]! - start[c - 1]!;
    start[c] = isAlike ? start[c - 1]! : total;
    end[c] = start[c]! + runs;
    total = Math.max(total, end[c]!);
  }
  const size = new Float64Array(total);
  const used = newUsed && new Float64Array(total);
  const id = new Uint32Array(total);
  const pieces = new Uint32Array(total);
  for (let c = 0, from = 0; c < columns; c++) {
    if (c > 0 && start[c] === start[c - 1] && end[c] === end[c - 1]) continue;
    const to = start[c]!;
    const fresh = to + keep[c]!;
    const next = from + count[c]!;
    const fill = <T extends Float64Array | Uint32Array>(all: T, added: T) => {
      if (c > 0) {
        all.copyWithin(to, start[c - 1]!, start[c - 1]! + keep[c]!);
        all.copyWithin(end[c]! - tail[c]!, end[c - 1]! - tail[c]!, end[c - 1]!);
      }
      all.set(added.subarray(from, next), fresh);
    };
    fill(size, newSize);
    fill(id, newId);
    fill(pieces, newPieces);
    if (used && newUsed) fill(used, newUsed);
    from = next;
  }
  const groups = new Map(header.groups.map((group) => [group.id, group]));
  const siteOf = new Map<number, number>();
  rows.forEach((row, place) => siteOf.set(row, sites[place]!));
  return {
    first: header.first,
    columns,
    groups,
    siteOf,
    lowest,
    reserved,
    elapsedUs,
    position,
    start,
    end,
    size,
    id,
    pieces,
    used,
  };
}
