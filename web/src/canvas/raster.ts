// Tiles to pixels, without a canvas: a tile and a viewport give a picture, and a point of the
// picture gives back what was drawn there. The cost is that of the pixels.

import { FREE, GAP, MERGED, type Tile } from "../protocol";
import type { Neutrals } from "./colors";

/** A tile with precomputed values for drawing. */
export interface Prepared extends Tile {
  /** A column is 2^level events or microseconds wide. */
  level: number;
  /** Offset of the lowest slice: 0, or the lowest address of a part of the memory map. */
  low: number;
  /** Bytes in use of each column. */
  total: Float64Array;
  /** The group of each slice; for blocks, that of their site. */
  group: Uint32Array;
}

/** The visible part of the axes, and the size of the picture in pixels. */
export interface Viewport {
  from: number;
  to: number;
  low: number;
  high: number;
  width: number;
  height: number;
}

export interface Paints {
  neutrals: Neutrals;
  /** Colour of group g: colors[g * variants]; single blocks alternate with the next one. */
  colors: Uint32Array;
  variants: 1 | 2;
  /** Whether merged slices are shaded by their use (memory map). */
  shadesUsage: boolean;
}

/** What stands out: the selected block or group, and the slice under the pointer. */
export interface Focus {
  row: number | null;
  group: number | null;
  hovered: number | null;
}

export interface Hit {
  column: number;
  /** Index of the slice in the tile; null above all slices. */
  run: number | null;
  id: number;
  group: number;
  bytes: number;
  pieces: number;
  /** Bytes in use of a merged slice of the memory map. */
  used: number;
  position: number;
  total: number;
  reserved: number;
  /** Bytes on the y axis. */
  height: number;
}

/** Slices with an edge are at least this high, in pixels. */
const MIN_EDGED_PIXELS = 4;

export function prepare(tile: Tile, level: number, low: number): Prepared {
  const { columns, start, end, id, size, used } = tile;
  const total = new Float64Array(columns);
  for (let column = 0; column < columns; column++) {
    if (column > 0 && start[column] === start[column - 1] && end[column] === end[column - 1]) {
      total[column] = total[column - 1]!;
      continue;
    }
    let sum = 0;
    for (let run = start[column]!; run < end[column]!; run++) sum += used ? used[run]! : size[run]!;
    total[column] = sum;
  }
  return { ...tile, level, low, total, group: tile.siteOf.size > 0 ? groupsOf(id, tile.siteOf) : id };
}

/** The group of each block. There may be a million of them: a flat table is many times as fast as a Map. */
function groupsOf(id: Uint32Array, siteOf: Map<number, number>): Uint32Array {
  let last = 0;
  for (const row of siteOf.keys()) if (row > last) last = row;
  const table = new Uint32Array(last + 1);
  for (const [row, site] of siteOf) table[row] = site;
  const groups = new Uint32Array(id.length);
  for (let run = 0; run < id.length; run++) groups[run] = id[run]! < GAP ? table[id[run]!]! : id[run]!;
  return groups;
}

/** Bytes of memory that a tile takes in the page. */
export function footprint(tile: Prepared): number {
  const perRun = 8 + 4 + 4 + (tile.used ? 8 : 0) + (tile.group === tile.id ? 0 : 4);
  return tile.lowest.buffer.byteLength + tile.id.length * perRun + tile.columns * 16 + tile.siteOf.size * 40;
}

/** The column that a pixel shows, or -1. Of several it is the one where most is in use. */
export function columnAt(tile: Prepared, view: Viewport, x: number): number {
  const unit = 2 ** tile.level;
  const perPixel = (view.to - view.from) / view.width;
  if (perPixel <= unit) {
    const column = Math.floor((view.from + (x + 0.5) * perPixel) / unit) - tile.first;
    return column >= 0 && column < tile.columns ? column : -1;
  }
  const first = Math.max(0, Math.floor((view.from + x * perPixel) / unit) - tile.first);
  const last = Math.min(tile.columns, Math.ceil((view.from + (x + 1) * perPixel) / unit) - tile.first);
  let highest = first < last ? first : -1;
  for (let column = first + 1; column < last; column++)
    if (tile.total[column]! > tile.total[highest]!) highest = column;
  return highest;
}

/**
 * The first column whose moment is not before this position, or -1: where the position lies on an axis of
 * time.
 */
export function columnOf(tile: Prepared, position: number): number {
  if (tile.first > 0 && position < tile.position[0]!) return -1;
  let low = 0;
  let high = tile.columns;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (tile.position[middle]! < position) low = middle + 1;
    else high = middle;
  }
  return low < tile.columns ? low : -1;
}

/** The columns around one that show the same moment. */
export function columnsAlike(
  { columns, position }: Prepared,
  column: number,
): { first: number; last: number } {
  let [first, last] = [column, column];
  while (first > 0 && position[first - 1] === position[column]) first--;
  while (last + 1 < columns && position[last + 1] === position[column]) last++;
  return { first, last };
}

/** The columns around one in which a slice with this id continues. */
export function columnsWith(tile: Prepared, column: number, id: number): { first: number; last: number } {
  const has = (at: number) =>
    at >= 0 && at < tile.columns && tile.id.subarray(tile.start[at]!, tile.end[at]!).includes(id);
  let [first, last] = [column, column];
  while (has(first - 1)) first--;
  while (has(last + 1)) last++;
  return { first, last };
}

/** Draws the columns of a tile. Pixels without a slice stay transparent. */
export function raster(
  pixels: Uint32Array,
  tile: Prepared,
  view: Viewport,
  paints: Paints,
  focus: Focus,
): void {
  pixels.fill(0);
  for (let x = 0; x < view.width; ) {
    const column = columnAt(tile, view, x);
    let next = x + 1;
    while (next < view.width && isAlike(tile, column, columnAt(tile, view, next))) next++;
    if (column >= 0) rasterColumn(pixels, tile, column, x, next, view, paints, focus);
    x = next;
  }
}

/** Columns of equal slices are drawn as one. */
function isAlike(tile: Prepared, one: number, other: number): boolean {
  return (
    one === other ||
    (one >= 0 && other >= 0 && tile.start[one] === tile.start[other] && tile.end[one] === tile.end[other])
  );
}

function rasterColumn(
  pixels: Uint32Array,
  tile: Prepared,
  column: number,
  left: number,
  right: number,
  view: Viewport,
  paints: Paints,
  focus: Focus,
): void {
  const { width, height } = view;
  const scale = height / (view.high - view.low);
  const { neutrals } = paints;
  const isSelective = focus.row !== null || focus.group !== null;
  // Row of the lower edge. Sums are rounded, not heights, so that the heights add up.
  let bottom = Math.min(height, height - Math.round((tile.low - view.low) * scale));
  let sum = tile.low - view.low;
  const end = tile.end[column]!;
  for (let run = tile.start[column]!; run < end && bottom > 0; run++) {
    sum += tile.size[run]!;
    const top = Math.max(0, height - Math.round(sum * scale));
    if (top >= bottom) continue;
    const id = tile.id[run]!;
    if (id !== GAP) {
      let main = runColor(tile, run, paints);
      let stripe = id === MERGED && !paints.shadesUsage ? neutrals.stripe : main;
      const isChosen = focus.row !== null ? id === focus.row : tile.group[run] === focus.group;
      if (isSelective && !isChosen && id !== FREE) {
        main = faded(main, neutrals.panel);
        stripe = faded(stripe, neutrals.panel);
      } else if (id === focus.hovered && id < GAP) main = stripe = lit(main);
      if (bottom - top >= MIN_EDGED_PIXELS && id !== FREE) {
        fill(pixels, width, left, right, top, top + 1, darker(main), darker(main));
        fill(pixels, width, left, right, top + 1, bottom, main, stripe);
      } else fill(pixels, width, left, right, top, bottom, main, stripe);
    }
    bottom = top;
  }
}

function runColor(tile: Prepared, run: number, paints: Paints): number {
  const { neutrals, colors, variants } = paints;
  const id = tile.id[run]!;
  if (id === FREE) return neutrals.free;
  if (id === MERGED) {
    if (!paints.shadesUsage || !tile.used) return neutrals.merged;
    const { usage } = neutrals;
    return usage[Math.round((tile.used[run]! / tile.size[run]!) * (usage.length - 1))]!;
  }
  return colors[(tile.group[run]! * variants + (id & (variants - 1))) % colors.length]!;
}

function fill(
  pixels: Uint32Array,
  width: number,
  left: number,
  right: number,
  top: number,
  bottom: number,
  main: number,
  stripe: number,
): void {
  for (let row = top; row < bottom; row++) {
    const begin = row * width;
    if (main === stripe) for (let x = left; x < right; x++) pixels[begin + x] = main;
    else for (let x = left; x < right; x++) pixels[begin + x] = ((x + row) & 7) < 4 ? main : stripe;
  }
}

// Colours are mixed on all three channels at once; what a shift moves into the next channel is masked.
const QUARTERS = 0x3f3f3f;
const EIGHTHS = 0x1f1f1f;
const OPAQUE = 0xff000000;

function darker(color: number): number {
  return (OPAQUE | ((color & 0xffffff) - ((color >>> 2) & QUARTERS))) >>> 0;
}

function lit(color: number): number {
  return (OPAQUE | ((color & 0xffffff) + (((~color & 0xffffff) >>> 3) & EIGHTHS))) >>> 0;
}

/** A quarter of the colour, the rest background. */
function faded(color: number, background: number): number {
  return (OPAQUE | (((color >>> 2) & QUARTERS) + 3 * ((background >>> 2) & QUARTERS))) >>> 0;
}

/** What was drawn at a pixel; null where there is no column. */
export function hit(tile: Prepared, view: Viewport, x: number, y: number): Hit | null {
  const column = columnAt(tile, view, x);
  if (column < 0) return null;
  const wanted = view.low + ((view.height - y) * (view.high - view.low)) / view.height;
  const found: Hit = {
    column,
    run: null,
    id: GAP,
    group: GAP,
    bytes: 0,
    pieces: 0,
    used: 0,
    position: tile.position[column]!,
    total: tile.total[column]!,
    reserved: tile.reserved[column]!,
    height: wanted,
  };
  let sum = tile.low;
  for (let run = tile.start[column]!; run < tile.end[column]!; run++) {
    sum += tile.size[run]!;
    if (sum <= wanted) continue;
    const used = tile.used?.[run] ?? tile.size[run]!;
    const { id, group, size, pieces } = tile;
    return { ...found, run, id: id[run]!, group: group[run]!, bytes: size[run]!, pieces: pieces[run]!, used };
  }
  return found;
}
