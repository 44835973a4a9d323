// Segments as a list, grouped by pool and stream; each row has a position, so that only visible
// rows are drawn.

import type { LaidSegment } from "../protocol";
import { bytes, counted, percent } from "../state/format";

export type Listed = { key: string; top: number; height: number } & (
  | { kind: "heading"; words: string; sums: string }
  | { kind: "segment"; segment: LaidSegment }
);

const HEADING_HEIGHT = 50;
const SEGMENT_HEIGHT = 42;
/** A segment with pinning blocks has two lines of text. */
const PINNED_HEIGHT = 60;
/** Below this share in use, the blocks that keep the segment are named. */
const MAX_USED_SHARE_OF_PINNED = 0.5;

export function isPinned({ used, size, pins }: LaidSegment): boolean {
  return used > 0 && used < MAX_USED_SHARE_OF_PINNED * size && pins.length > 0;
}

function nameOf({ pool, stream, small, expandable }: LaidSegment): string {
  const parts = [
    pool === "default" ? "default pool" : `private pool ${pool}`,
    Number(stream) === 0 ? "default stream" : `stream ${stream}`,
    expandable ? "expandable" : "",
    small ? "small blocks" : "large blocks",
  ];
  return parts.filter(Boolean).join(", ");
}

function sumsOf(segments: LaidSegment[]): string {
  const size = segments.reduce((sum, segment) => sum + segment.size, 0);
  const used = segments.reduce((sum, segment) => sum + segment.used, 0);
  return `${counted(segments.length, "segment")}, ${bytes(size)}, ${percent(used, size)} in use`;
}

/** The groups with most memory first; within a group, lowest address first. */
export function listed(segments: LaidSegment[]): { rows: Listed[]; height: number } {
  const groups = new Map<string, LaidSegment[]>();
  for (const segment of segments) {
    const name = nameOf(segment);
    const group = groups.get(name);
    if (group) group.push(segment);
    else groups.set(name, [segment]);
  }
  const weight = (group: LaidSegment[]) => group.reduce((sum, segment) => sum + segment.size, 0);
  const rows: Listed[] = [];
  let top = 0;
  for (const [words, group] of [...groups].sort((a, b) => weight(b[1]) - weight(a[1]))) {
    rows.push({ kind: "heading", key: words, top, height: HEADING_HEIGHT, words, sums: sumsOf(group) });
    top += HEADING_HEIGHT;
    for (const segment of group) {
      const height = isPinned(segment) ? PINNED_HEIGHT : SEGMENT_HEIGHT;
      rows.push({ kind: "segment", key: segment.addr, top, height, segment });
      top += height;
    }
  }
  return { rows, height: top };
}
