// What the page and the program say to each other. The page asks `api/NAME?query`; the query is built by `path` below, always in
// one order, so that an exported page can look an answer up by it. Small answers are JSON. Pictures are tiles: columns of runs.
//
// A *position* is a number of events that have happened: 0 is the state before the first event, `events` the state after the
// last. A *column* covers many positions; what it shows is the state at the one where most memory was allocated, so no peak is
// ever averaged away and the runs of a column add up to what was allocated at that position.

/** What a stretch of memory in a tile can be, beside the number of a group or block. */
export const MERGED = 0xffffffff; // several that are too small to be drawn one by one
export const FREE = 0xfffffffe; // reserved and not in use (memory map)
export const GAP = 0xfffffffd; // not reserved at that moment (memory map)

/** A tile has this many columns, and begins at a multiple of a quarter of it. */
export const COLUMNS = { bands: 4096, blocks: 2048 };

export type By = "site" | "category" | "module" | "stack" | "size" | "block";
export type XAxis = "event" | "time";

export interface Overview {
  version: string;
  runs: Run[];
  /** Set in an exported page: what it can answer. */
  exported?: {
    moments: number[][]; // of each run: the positions that can be looked into
  };
  /** How runs relate: ranks of one job, or runs to compare. */
  relation: "one" | "ranks" | "compared";
}

/** One device of one input, or a replayed what-if. */
export interface Run {
  id: number;
  name: string; // file
  input: number; // number of the input
  device: string; // "GPU 0", "CPU"
  card?: string; // "NVIDIA H200"
  torch: string;
  settings: string;
  whatIf: boolean;
  events: number;
  complete: boolean;
  blocks: number; // lives
  /** Microseconds since the epoch of the first and last event; both 0 without a clock. */
  beginUs: number;
  endUs: number;
  start: number; // bytes allocated before the first event
  peak: Peak;
  reservedPeak: Peak;
  end: { allocated: number; reserved: number };
  /** Total memory of the card, or the limit of the process, where known. */
  limit?: number;
  steps: { source: string; bounds: number[]; bounds_us: number[] };
  ooms: { position: number; timeUs: number; requested: number }[];
  groupings: By[];
  /** Bytes of address space that were ever reserved: the height of the memory map. */
  space: number;
  hasHolders: boolean;
  caveats: string[];
}

export interface Peak {
  bytes: number;
  position: number;
  timeUs: number;
}

export interface Group {
  id: number;
  label: string; // "train.py:20"
  detail: string; // function, or what else there is to say
  blocks?: number;
}

/** A line of a stack. */
export interface Frame {
  file: string;
  line: number;
  function: string;
  user: boolean; // the user's own code
}

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
  /** Runs of column c, from the bottom: start[c] .. end[c]. */
  start: Uint32Array;
  end: Uint32Array;
  size: Float64Array; // bytes
  id: Uint32Array; // group, block, or one of the constants above
  pieces: Uint32Array; // how many blocks or groups a run stands for
  used: Float64Array | null; // memory map: bytes in use of a merged run
}

interface TileHeader {
  first: number;
  columns: number;
  entries: number;
  blocks: number;
  used: boolean;
  groups: Group[];
}

/** A tile as it comes: u32 length of the header, u32 0, the header, f64 columns, u32 columns. Each column of runs repeats the
 * first `keep` and the last `tail` runs of the one before it; columns that are all alike share their runs. */
export function tile(bytes: ArrayBuffer): Tile {
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
  return { first: header.first, columns, groups, siteOf, lowest, reserved, elapsedUs, position, start, end, size, id, pieces, used };
}

/** One block: a birth and a death. */
export interface Block {
  row: number;
  addr: string; // hexadecimal
  size: number;
  requested: number;
  born: number | null; // event; null: before the history
  freed: number | null; // event; null: never
  completed: number | null;
  bornUs: number | null;
  freedUs: number | null;
  bornStep: number | null;
  freedStep: number | null;
  /** How long it lived, in words: "3,120 events, 1.24 s". */
  lived: string;
  category: string;
  module: string | null;
  tensor: string | null; // label of a recorder: "parameter layers.0.weight"
  group: number; // by site
  site: string;
  segment: { addr: string; size: number; stream: string; pool: string; small: boolean; expandable: boolean } | null;
  stack: Frame[]; // innermost first
}

/** A group at a moment. */
export interface GroupAt {
  group: Group;
  by: By;
  bytes: number; // at the position
  count: number;
  highest: { bytes: number; position: number };
  made: number; // blocks of this group in the whole run
  stacks: { bytes: number; count: number; frames: Frame[] }[]; // at the position, largest first
  categories: [string, number][];
}

/** The segments of a moment with what lies in them, lowest address first. */
export interface Layout {
  position: number;
  allocated: number;
  reserved: number;
  segments: LaidSegment[];
  groups: Group[];
}

/** A segment, and what lies in it. */
export interface LaidSegment {
  addr: string;
  offset: number; // in the memory map
  size: number;
  stream: string;
  pool: string;
  small: boolean;
  expandable: boolean;
  used: number;
  blocks: number; // in use in it
  largestFree: number;
  /** Why it cannot go back: the largest blocks in it. */
  pins: { row: number; size: number; group: number; site: string }[];
  /** offset in the segment, bytes, block (or MERGED/FREE), pieces, site group (or -1), flat */
  cells: number[];
}

/** A tree of frames. `bytes` are at the moment, or the mean over the interval; `base` what they are compared with. */
export interface Flame {
  name: string;
  file?: string;
  line?: number;
  user?: boolean;
  bytes: number;
  base: number; // 0 unless a difference was asked for
  count: number;
  children: Flame[];
  /** Branches that are too small to be listed; their bytes are in `bytes`. */
  leftOut: number;
}

/** The answer to `flame`. */
export interface FlameAnswer {
  root: Flame;
  what: string; // "after event 3,119"
  against: string | null;
}

export interface Table {
  columns: { key: string; label: string; kind: "bytes" | "count" | "text" | "event" | "duration" }[];
  /** Each row begins with the id to select: a block's row, a site's group, a segment's offset. */
  rows: (string | number | null)[][];
  total: number; // rows that match
  of: number; // rows in all
}

export type TableOf = "allocations" | "sites" | "segments";

/** A finding of `oomph report --json`, and where to look. */
export interface Finding {
  kind: string;
  severity: "high" | "medium" | "low";
  severity_reason: string;
  summary: string;
  bytes: number;
  bytes_per_step?: number;
  count: number;
  site?: { file: string; line: number; function: string };
  module?: string;
  held_by?: string;
  cause?: string;
  details: string[];
  evidence: Record<string, unknown>;
  fix: string;
  caveats: string[];
  focus: { from: number; to: number; position: number; group: number | null };
}

export interface Findings {
  findings: Finding[];
  /** What was looked for and not found, as the report says it. */
  clear: string;
  /** Bytes of each category at the peak. */
  categories: [string, number][];
  categoriesReason: string;
}

export interface WhatIf {
  /** What `oomph simulate --json` prints. */
  answer: {
    settings: string;
    limit: number | null;
    peak_allocated: number;
    peak_reserved: number;
    end_reserved: number;
    segments: { allocs: number; frees: number };
    retries: number;
    oom: null | {
      event: number;
      requested: number;
      allocated: number;
      reserved: number;
      largest_free: number;
      cause: string;
      step?: number | null;
      site?: { file: string; line: number; function: string } | null;
    };
    recorded?: { segments: { allocs: number; frees: number } };
    smallest_gpu?: number | null;
    export?: string; // the line of a shell that makes these settings
  };
  notes: string[];
  run: Run; // the replayed run, for every other view
}

export interface Holders {
  name: string;
  dumped: string | null;
  tree: Branch;
  cycles: { links: string; count: number; garbage: boolean; retained: { device: string; bytes: number }[] }[];
  caveats: string[];
}

export interface Branch {
  name: string;
  what: string;
  count: number;
  retained: { device: string; bytes: number }[];
  branches: Branch[];
  left_out: number;
}

export interface Ranks {
  ranks: {
    run: number;
    name: string;
    peak: number;
    reserved: number;
    /** Highest allocated bytes of equal stretches of the run's own events. */
    course: number[];
    findings: { kind: string; severity: string; summary: string }[];
  }[];
  skew: null | {
    highest: number; // place in `ranks`
    comparedWith: number;
    words: string;
    doubt: string | null; // why they may not be ranks at all
    sites: { label: string; before: number; after: number }[];
    categories: [string, number][];
  };
}

/** An error in words. */
export interface Problem {
  error: string;
  hint?: string;
}

export type Query = Record<string, string | number | boolean | null | undefined>;

/** The address of an answer: parameters in the order of their names, those without a value left out. */
export function path(name: string, query: Query = {}): string {
  const parts = Object.keys(query)
    .filter((key) => query[key] !== undefined && query[key] !== null && query[key] !== "")
    .sort()
    .map((key) => `${key}=${encodeURIComponent(String(query[key]))}`);
  return parts.length ? `api/${name}?${parts.join("&")}` : `api/${name}`;
}

// The questions:
//   overview
//   timeline  run by x level tile smallest      tile; a column is 2^level events or microseconds wide; a run of its own is at
//                                               least 2^smallest bytes high
//   map       run x level tile low high smallest  tile of the addresses low..high of the memory map (offsets)
//   block     run row                           Block
//   group     run by id at                      GroupAt
//   layout    run at smallest                   Layout
//   flame     run at | run from to; and to compare: base_run base_at | base_run base_from base_to   FlameAnswer
//   table     run of sort desc search offset limit; at | from to for allocations that were live then    Table
//   findings  run                               Findings
//   whatif    run conf gpu fraction             WhatIf
//   holders   input                             Holders
//   ranks                                       Ranks
