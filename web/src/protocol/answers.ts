// Generated from crates/viewer by `make page-types`. Do not edit.

/** One block, from its allocation to its free. */
export type BlockDetails = {
  /** Number of the allocation. */
  row: number,
  /** Hexadecimal. */
  addr: string, size: number,
  /** Bytes requested, before rounding. */
  requested: number,
  /** Event that allocated it; `null` if that was before the history. */
  allocEvent: number | null,
  /** Event that freed it; `null` if it was never freed. */
  freeEvent: number | null,
  /** Event at which its memory could be used again. */
  freeCompletedEvent: number | null,
  /** Microseconds from the first event to its allocation. */
  allocUs: number | null,
  /** Microseconds from the first event to its free. */
  freeUs: number | null, allocStep: number | null, freeStep: number | null,
  /** How long it was allocated, in words: `3,120 events, 1.24 s`. */
  lifetime: string, category: string,
  /** Path of the module. */
  module: string | null,
  /** Label of a recorder: `parameter layers.0.weight`. */
  tensor: string | null,
  /** Group by site. */
  group: number, site: string, segment: BlockSegment | null,
  /** Innermost frame first. */
  stack: Array<StackFrame>, };

/** Asks for a block. */
export type BlockQuery = { run: number,
  /** Number of the allocation. */
  row: number, };

/** The segment that a block lies in. */
export type BlockSegment = { addr: string, size: number, stream: string, pool: string, small: boolean, expandable: boolean, };

/** Unit of a number in the evidence of a finding. */
export type EvidenceUnit = "bytes" | "count" | "us" | "pid" | "ratio";

/** What an exported page can answer. */
export type ExportedMoments = {
  /** For each run by its number, the positions that have details. */
  moments: { [key in number]: Array<number> }, };

/** An allocation that failed. */
export type FailedAllocation = { position: number,
  /** Microseconds since the first event. */
  timeUs: number,
  /** Bytes requested. */
  requested: number, };

/** A finding, and where the views show it. */
export type FindingCard = {
  /** Title of the kind, in lower case. */
  title: string,
  /** What `count` counts, in the singular. */
  count_noun: string,
  /** Units of the numbers in `evidence`, by the names that lead to them: `lines.bytes`. */
  units: { [key in string]: EvidenceUnit }, focus: FindingFocus,
  /** Name of the kind: `leak`, `oom`, …. */
  kind: string,
  /** How much it matters. */
  severity: SeverityName,
  /** Why it matters that much. */
  severity_reason: string,
  /** The finding in one sentence. */
  summary: string,
  /** Bytes that the finding is about. */
  bytes: number,
  /** Bytes that it grows by per step. */
  bytes_per_step?: number,
  /** Number of things that the finding is about. */
  count: number,
  /** The user's line. */
  site?: SiteReport,
  /** Path of the module that the blocks of that line belong to. */
  module?: string,
  /** The reference path to the holder, in words. */
  held_by?: string,
  /** Name of the cause. */
  cause?: string,
  /** More sentences. */
  details: Array<string>,
  /** The numbers behind the finding, by name. */
  evidence: Record<string, unknown>,
  /** What to change. */
  fix: string,
  /** What is uncertain. */
  caveats: Array<string>, };

/** Where the views show a finding. */
export type FindingFocus = {
  /** First position of the interval to show. */
  from: number,
  /** Position after the interval to show. */
  to: number,
  /** The position that shows it best. */
  position: number,
  /** Group of the finding's site. */
  group: number | null, };

/** What the report says of a run. */
export type Findings = { findings: Array<FindingCard>,
  /** What was looked for and not found, as the report says it. */
  clear: string,
  /** Bytes of each category at the peak. */
  categories: Array<[string, number]>,
  /** Why categories are unknown or uncertain. */
  categoriesReason: string, };

/** Asks for the findings of a run. */
export type FindingsQuery = { run: number, };

/** Memory by call stack. */
export type FlameAnswer = { root: FlameNode,
  /** When that is: `after event 3,119`. */
  what: string,
  /** What it is compared with. */
  against: string | null, };

/** A frame with the frames that it calls. */
export type FlameNode = {
  /** Name of the function. */
  name: string, file: string, line: number,
  /** Whether it is the user's own code. */
  user: boolean,
  /** Bytes at the position, or their mean over the interval. */
  bytes: number,
  /** Bytes of what it is compared with; 0 if there is nothing to compare with. */
  base: number,
  /** Blocks. */
  count: number, children: Array<FlameNode>,
  /** Callees that are too small to be listed; their bytes are in `bytes`. */
  leftOut: number, };

/** Asks for memory by call stack: at a position (`at`) or its mean over an interval (`from`, `to`), and what
 * to compare it with. */
export type FlameQuery = { run: number, at?: number, from?: number, to?: number, base_run?: number, base_at?: number, base_from?: number, base_to?: number, };

/** A group of blocks. */
export type Group = {
  /** Rank by the most bytes held at one time; 0 is the largest. */
  id: number,
  /** `train.py:20` */
  label: string,
  /** The function, or what else there is to say. */
  detail: string,
  /** Number of its blocks in the whole run. */
  blocks: number, };

/** What blocks are grouped by. */
export type GroupBy = "site" | "category" | "module" | "stack" | "size";

/** A group at a position. */
export type GroupDetails = { group: Group, by: GroupBy,
  /** Bytes at the position. */
  bytes: number,
  /** Blocks at the position. */
  count: number, highest: GroupPeak,
  /** Blocks in the whole run. */
  made: number,
  /** Stacks at the position, largest first. */
  stacks: Array<GroupStack>,
  /** Bytes of each category at the position. */
  categories: Array<[string, number]>, };

/** The most that a group held. */
export type GroupPeak = { bytes: number, position: number, };

/** Asks for a group. */
export type GroupQuery = { run: number, by: GroupBy, id: number,
  /** The position. */
  at: number, };

/** Blocks of a group that one stack allocated. */
export type GroupStack = { bytes: number, count: number,
  /** Innermost frame first. */
  frames: Array<StackFrame>, };

/** An object in the dominator tree, or several of one kind. */
export type HolderBranch = {
  /** The reference that leads to it. */
  name: string,
  /** Its type. */
  what: string,
  /** Number of objects. */
  count: number,
  /** Retained size on each device. */
  retained: Array<RetainedSize>,
  /** What it dominates. */
  branches: Array<HolderBranch>,
  /** Number of branches that are not listed. */
  left_out: number, };

/** The dominator tree of `oomph holders`. */
export type HolderTree = {
  /** Name of the input. */
  name: string,
  /** When the heap file was written. */
  dumped: string | null,
  /** The root. */
  tree: HolderBranch,
  /** Reference cycles that hold tensors. */
  cycles: Array<ReferenceCycle>,
  /** What is uncertain. */
  caveats: Array<string>, };

/** Asks for the holders of an input. */
export type HoldersQuery = {
  /** Number of the input. */
  input: number, };

/** Asks for the runs of one input. */
export type InputQuery = {
  /** Number of the input. */
  input: number, };

/** A segment, and what lies in it. */
export type LaidSegment = { addr: string,
  /** Offset in the memory map. */
  offset: number, size: number, stream: string, pool: string, small: boolean, expandable: boolean,
  /** Bytes in use. */
  used: number,
  /** Blocks in use. */
  blocks: number, largestFree: number,
  /** The largest blocks, which keep it from being released. */
  pins: Array<PinningBlock>,
  /** Five numbers per piece: offset in the segment, bytes, row of the block (or MERGED or FREE), blocks,
 * and group by site (or -1). */
  cells: Array<number>, };

/** The segments at a position, lowest address first. */
export type Layout = { position: number,
  /** Bytes allocated. */
  allocated: number,
  /** Bytes reserved. */
  reserved: number, segments: Array<LaidSegment>,
  /** The sites of the blocks. */
  groups: Array<Group>, };

/** Asks for the segments. */
export type LayoutQuery = { run: number,
  /** The position. */
  at: number,
  /** Neighbouring blocks below 2^smallest bytes are merged; none if absent. */
  smallest?: number, };

/** Asks for a tile of the memory map. */
export type MapQuery = { run: number, x: XAxis,
  /** A column is 2^level events or microseconds wide. */
  level: number, tile: number,
  /** First offset in the map. */
  low: number,
  /** Offset after the last. */
  high: number,
  /** A cell is 2^smallest bytes high. */
  smallest: number, };

/** Everything that is open. */
export type Overview = {
  /** Version of oomph. */
  version: string,
  /** The devices of all inputs; of the first alone if the others are read when someone looks at them. */
  runs: Array<Run>,
  /** Paths of all inputs. The first device of an input has the input's number. */
  inputs: Array<string>, relation: RunRelation,
  /** What an exported page can answer; absent where a server answers. */
  exported?: ExportedMoments, };

/** Asks for the inputs; it has no parameters. */
export type OverviewQuery = Record<symbol, never>;

/** What one owner has. */
export type OwnerBytes = { name: string, bytes: number,
  /** What it is made up of, in words. */
  parts: string, };

/** All phases of one name. */
export type PhaseCard = { name: string, times: number, durationUs: number,
  /** Highest allocated bytes. */
  peak: number,
  /** Position of the peak. */
  position: number,
  /** Highest reserved bytes. */
  reserved: number,
  /** Allocated bytes when the last one ended. */
  after?: number,
  /** Bytes of the process when the last one ended, where the driver was asked. */
  process?: number,
  /** What the last one left. */
  stayed?: number,
  /** Lines of what stayed, in words. */
  lines: string, };

/** A block that keeps a segment from being released. */
export type PinningBlock = {
  /** Number of the allocation. */
  row: number, size: number,
  /** Group by site. */
  group: number, site: string, };

/** Memory by owner. */
export type ProcessLedger = {
  /** Bytes of the process by the driver's count. */
  process: number,
  /** The moment, in words. */
  when: string,
  /** Whether calls of the CUDA driver were counted. */
  traced: boolean, owners: Array<OwnerBytes>,
  /** What the owners lack of the process's memory. */
  unattributed: number,
  /** Other processes. */
  others: Array<OwnerBytes>, };

/** Memory of a process on one device. */
export type ProcessMemory = {
  /** When most of the device was in use. */
  ledger?: ProcessLedger, phases: Array<PhaseCard>, };

/** Asks for the process of a run. */
export type ProcessQuery = { run: number, };

/** One rank. */
export type Rank = {
  /** Number of the run. */
  run: number,
  /** Number of the input. */
  input: number, name: string,
  /** Peak of allocated bytes. */
  peak: number,
  /** Peak of reserved bytes. */
  reserved: number,
  /** Index of its group in `groups`. */
  group: number,
  /** Highest allocated bytes in equal parts of the run's events; empty if there are many ranks. */
  timeline: Array<number>,
  /** Empty if there are many ranks: then those of its group say the same. */
  findings: Array<RankFinding>, };

/** A finding of a rank, in short. */
export type RankFinding = { kind: string, severity: string, summary: string, };

/** Ranks that are alike. */
export type RankGroup = {
  /** How many there are. */
  count: number,
  /** Which they are: `0–63, 128`. */
  members: string,
  /** Lowest peak of allocated bytes. */
  lowest: number,
  /** Highest peak of allocated bytes. */
  highest: number,
  /** Number of the run with the median peak, which stands for all of them. */
  representative: number,
  /** Allocated bytes of that run over its events. */
  timeline: Array<number>,
  /** Findings of that run. */
  findings: Array<RankFinding>, };

/** How the highest rank differs from the median. */
export type RankSkew = {
  /** Index of the highest rank in `ranks`. */
  highest: number,
  /** Index of the rank that it is compared with. */
  comparedWith: number, words: string,
  /** Why the inputs may not be ranks at all. */
  doubt: string | null, sites: Array<SiteChange>,
  /** Bytes by which categories differ. */
  categories: Array<[string, number]>, };

/** The ranks of one job. */
export type Ranks = {
  /** Number of inputs that are not read yet; the page asks again while there are any. */
  unread: number, ranks: Array<Rank>,
  /** Ranks that are alike, those with the highest peak first. */
  groups: Array<RankGroup>, unreadable: Array<UnreadableRank>,
  /** How the highest rank differs; `null` if none stands out, or before all are read. */
  skew: RankSkew | null, };

/** Asks for the ranks; it has no parameters. */
export type RanksQuery = Record<symbol, never>;

/** The recorded run, for comparison. */
export type RecordedCounts = {
  /** Segments that were reserved and released. */
  segments: SegmentCounts, };

/** Reference cycles of one shape. */
export type ReferenceCycle = {
  /** The references around the cycle, in words. */
  links: string,
  /** Number of such cycles. */
  count: number,
  /** Whether only the garbage collector can free them. */
  garbage: boolean,
  /** Retained size on each device. */
  retained: Array<RetainedSize>, };

/** What `oomph simulate --json` prints of one replay. */
export type ReplayReport = {
  /** Settings as in `PYTORCH_CUDA_ALLOC_CONF`; empty for PyTorch's defaults. */
  settings: string,
  /** The shell line that applies these settings. */
  export: string,
  /** Bytes that the process may reserve, if limited. */
  limit: number | null,
  /** Peak of allocated bytes. */
  peak_allocated: number,
  /** Peak of reserved bytes. */
  peak_reserved: number,
  /** Reserved bytes at the end. */
  end_reserved: number,
  /** Segments that were reserved and released. */
  segments: SegmentCounts,
  /** Allocations that succeeded only after cached memory was released. */
  retries: number,
  /** The allocation that failed. */
  oom: ReplayedOom | null,
  /** The recorded run. */
  recorded: RecordedCounts,
  /** Bytes of the smallest GPU that would do, if that was asked. */
  smallest_gpu: number | null, };

/** The allocation that fails in a replay. */
export type ReplayedOom = {
  /** Number of the event. */
  event: number,
  /** Bytes requested. */
  requested: number,
  /** Bytes allocated at that moment. */
  allocated: number,
  /** Bytes reserved at that moment. */
  reserved: number,
  /** Bytes of the largest free block. */
  largest_free: number,
  /** `fragmentation` or `capacity`. */
  cause: string,
  /** Number of the step, from 1. */
  step: number | null,
  /** The user's line. */
  site: SiteReport | null, };

/** Memory of one device that would be freed with an object. */
export type RetainedSize = {
  /** `cuda:0`, `cpu`. */
  device: string,
  /** The bytes. */
  bytes: number, };

/** One device of one input, or a replayed what-if. */
export type Run = { id: number,
  /** Path of the input. */
  name: string,
  /** Number of the input. */
  input: number,
  /** `GPU 0`, `CPU`. */
  device: string,
  /** `NVIDIA H200`. */
  card?: string,
  /** PyTorch's release, or a range of releases. */
  torch: string,
  /** Allocator settings as in `PYTORCH_CUDA_ALLOC_CONF`. */
  settings: string,
  /** Whether it is a replay. */
  whatIf: boolean, events: number,
  /** Whether the history begins with the process. */
  complete: boolean,
  /** Number of allocations. */
  blocks: number,
  /** Time of the first event in microseconds since the epoch; 0 without a clock. */
  beginUs: number,
  /** Time of the last event; 0 without a clock. */
  endUs: number,
  /** Bytes allocated before the first event. */
  start: number, peak: RunPeak, reservedPeak: RunPeak, end: RunEnd,
  /** Bytes that the process could reserve, if a recorder noted it. */
  limit?: number, steps: RunSteps, ooms: Array<FailedAllocation>,
  /** What the timeline can be split by. */
  groupings: Array<TimelineBy>,
  /** Bytes of address space that were ever reserved: the height of the memory map. */
  space: number,
  /** Whether the recording has heap files. */
  hasHolders: boolean,
  /** Whether the recording has the memory of the process by owner, or phases. */
  hasProcess: boolean, caveats: Array<string>, };

/** Bytes after the last event. */
export type RunEnd = { allocated: number, reserved: number, };

/** The highest point of a run. */
export type RunPeak = { bytes: number, position: number,
  /** Microseconds since the first event. */
  timeUs: number, };

/** How the runs belong together. */
export type RunRelation = "one" | "ranks" | "compared";

/** The steps of a run. */
export type RunSteps = {
  /** Where the steps are known from. */
  source: string,
  /** Positions at which steps begin and end. */
  bounds: Array<number>,
  /** The same in microseconds since the first event. */
  bounds_us: Array<number>, };

/** Segments that were reserved and released. */
export type SegmentCounts = {
  /** Segments reserved. */
  allocs: number,
  /** Segments released. */
  frees: number, };

/** The severity of a finding. */
export type SeverityName = "high" | "medium" | "low";

/** Memory of a site in two runs. */
export type SiteChange = { label: string, before: number, after: number, };

/** A line of code. */
export type SiteReport = {
  /** Path of the file. */
  file: string,
  /** Line number, from 1. */
  line: number,
  /** Name of the function. */
  function: string, };

/** A frame of a call stack. */
export type StackFrame = { file: string, line: number, function: string,
  /** Whether it is the user's own code. */
  user: boolean, };

/** A page of a table. */
export type Table = { columns: Array<TableColumn>,
  /** Each row begins with the id to select (an allocation, a site's group, a segment's offset), then has a
 * cell per column. */
  rows: Array<Array<TableCell>>,
  /** Rows that match. */
  total: number,
  /** Rows without the search. */
  of: number, };

/** A cell of a table. */
export type TableCell = number | string | null;

/** How the cells of a column are written. */
export type TableCellKind = "bytes" | "count" | "event" | "text";

/** A column of a table. */
export type TableColumn = {
  /** What to sort by. */
  key: string, label: string, kind: TableCellKind, };

/** What the rows of a table are. */
export type TableOf = "allocations" | "sites" | "segments";

/** Asks for a page of a table. Allocations are those of a position (`at`), of an interval (`from`, `to`), or
 * all; sites and segments are those of a position, or of the end. */
export type TableQuery = { run: number, of: TableOf, at?: number, from?: number, to?: number,
  /** Key of the column to sort by. */
  sort?: string,
  /** Whether the largest come first; so if absent. */
  desc?: boolean,
  /** Text that a row has to have. */
  search?: string,
  /** First row. */
  offset?: number,
  /** Number of rows. */
  limit?: number, };

/** An encoded tile; the page reads it as an `ArrayBuffer`. */
export type TileBytes = ArrayBuffer;

/** Beginning of a tile. */
export type TileHeader = {
  /** Number of the first column at this level. */
  first: number,
  /** Number of columns. */
  columns: number,
  /** Number of slices that are sent. */
  entries: number,
  /** Number of blocks whose site is sent. */
  blocks: number,
  /** Whether bytes in use are sent for each slice. */
  used: boolean, groups: Array<Group>, };

/** What the timeline is split by. */
export type TimelineBy = "site" | "category" | "module" | "stack" | "size" | "block";

/** Asks for a tile of the timeline. */
export type TimelineQuery = { run: number, by: TimelineBy, x: XAxis,
  /** A column is 2^level events or microseconds wide. */
  level: number, tile: number,
  /** Slices below 2^smallest bytes are merged. */
  smallest: number, };

/** An input that cannot be read. */
export type UnreadableRank = {
  /** Number of the input. */
  input: number, name: string,
  /** Why. */
  problem: string, };

/** The outcome of a replay. */
export type WhatIfAnswer = {
  /** What `oomph simulate --json` prints. */
  answer: ReplayReport,
  /** Remarks of the command. */
  notes: Array<string>,
  /** The replayed run, for every other view. */
  run: Run, };

/** Asks for a replay. */
export type WhatIfQuery = {
  /** Number of the recorded run. */
  run: number,
  /** Settings as in `PYTORCH_CUDA_ALLOC_CONF`; the recorded ones if absent. */
  conf?: string,
  /** Memory of the GPU in bytes; the recorded limit if absent. */
  gpu?: number,
  /** Share of the GPU that the process may use. */
  fraction?: number, };

/** What the x axis counts. */
export type XAxis = "event" | "time";

/** Every question of the page, with its query and its answer. */
export interface Questions {
  /** The inputs, and how they belong together. */
  overview: { query: OverviewQuery; answer: Overview };
  /** The findings of `oomph report`. */
  findings: { query: FindingsQuery; answer: Findings };
  /** One of many inputs, which the overview does not describe. */
  input: { query: InputQuery; answer: Array<Run> };
  /** The memory of the process by owner, and the phases of the program. */
  process: { query: ProcessQuery; answer: ProcessMemory };
  /** The runs as ranks of one job. */
  ranks: { query: RanksQuery; answer: Ranks };
  /** The dominator tree of `oomph holders`. */
  holders: { query: HoldersQuery; answer: HolderTree };
  /** Bands or blocks over events or time. */
  timeline: { query: TimelineQuery; answer: TileBytes };
  /** Addresses over events or time. */
  map: { query: MapQuery; answer: TileBytes };
  /** Memory by call stack at a position, or its mean over an interval. */
  flame: { query: FlameQuery; answer: FlameAnswer };
  /** The segments at a position. */
  layout: { query: LayoutQuery; answer: Layout };
  /** A page of a table. */
  table: { query: TableQuery; answer: Table };
  /** One group of blocks at a position. */
  group: { query: GroupQuery; answer: GroupDetails };
  /** One block. */
  block: { query: BlockQuery; answer: BlockDetails };
  /** A replay with other settings or on another GPU. */
  whatif: { query: WhatIfQuery; answer: WhatIfAnswer };
}
