// Colours and names of frames; tints of the theme, so that text stays legible.

import { type Box, restOf } from "../canvas/frames";
import type { FlameNode } from "../protocol";
import { bytes, change, count, fileName } from "../state/format";

const mix = (tone: string, share: number) =>
  `color-mix(in oklab, var(--${tone}) ${share.toFixed(0)}%, var(--panel))`;

/** Hues of library files: pale, and unlike those of the user's files. */
const HUES = [20, 60, 105, 150, 190, 310, 340];

/** The user's frames are stronger than those of libraries; a difference is coloured by its sign. */
export function paint(box: Box, compared: boolean): string {
  const { node } = box;
  if (compared) {
    const { bytes, base } = box.rest ? restOf(node) : node;
    const larger = Math.max(bytes, base);
    const share = larger > 0 ? (bytes - base) / larger : 0;
    if (Math.abs(share) < 0.005) return mix("library", 14);
    return mix(share > 0 ? "more" : "less", 14 + 44 * Math.abs(share));
  }
  if (!node.user && !node.file) return mix("library", 20);
  const file = hash(node.file || node.name);
  if (node.user) return mix("own", 36 + 7 * (file % 4));
  return `color-mix(in oklab, oklch(0.62 0.1 ${HUES[file % HUES.length]}) 28%, var(--panel))`;
}

function hash(text: string): number {
  let value = 7;
  for (const letter of text) value = (Math.imul(value, 31) + letter.charCodeAt(0)) >>> 0;
  return value;
}

/** The frame's name, or `n smaller` for frames that are not listed. */
export function nameOf(box: Box): string {
  if (!box.rest) return frameName(box.node);
  return box.node.leftOut > 0 ? `${count(box.node.leftOut)} smaller` : "here";
}

/** The function, with file and line unless its name has them. */
export function frameName(node: FlameNode): string {
  const at =
    node.file && !node.name.includes(fileName(node.file))
      ? ` ${fileName(node.file)}${node.line ? `:${node.line}` : ""}`
      : "";
  return `${node.name}${at}`;
}

/** Bytes of a frame, or their difference. */
export function amountOf(box: Box, compared: boolean): string {
  const sides = box.rest ? restOf(box.node) : box.node;
  return compared ? change(sides.bytes - sides.base) : bytes(sides.bytes);
}
