// Layout of flame graphs and tree maps. Pure: a tree in, boxes out.
//
// In a difference a frame is as large as the larger of its two sides, so that what is gone can be seen as
// well as what is new.

import type { FlameNode } from "../protocol";

/**
 * The way from the root to a frame, by what each step is called: it holds while the tree changes with the
 * moment.
 */
export type Trail = string[];

export interface Box {
  node: FlameNode;
  trail: Trail;
  /** The part of the node that is not listed below it: small branches, or its own allocations. */
  rest: boolean;
  depth: number;
  x: number;
  y: number;
  width: number;
  height: number;
}

export const ROW_PIXELS = 19;

export function keyOf(node: FlameNode): string {
  return `${node.name}\n${node.file ?? ""}\n${node.line ?? 0}`;
}

/** The frame that a trail leads to, as far as it can be followed. */
export function follow(root: FlameNode, trail: Trail): FlameNode[] {
  const way = [root];
  for (const key of trail) {
    const next = way.at(-1)!.children.find((child) => keyOf(child) === key);
    if (!next) break;
    way.push(next);
  }
  return way;
}

/** Bytes that no listed child has, now and in the base of a comparison. */
export function restOf(node: FlameNode): { bytes: number; base: number } {
  const sum = (key: "bytes" | "base") => node.children.reduce((total, child) => total + child[key], 0);
  return { bytes: Math.max(0, node.bytes - sum("bytes")), base: Math.max(0, node.base - sum("base")) };
}

/** Sizes of all frames of a tree. */
function weigh(root: FlameNode): Map<FlameNode, number> {
  const weights = new Map<FlameNode, number>();
  const visit = (node: FlameNode): number => {
    const rest = restOf(node);
    const weight = node.children.reduce((sum, child) => sum + visit(child), Math.max(rest.bytes, rest.base));
    weights.set(node, weight);
    return weight;
  };
  visit(root);
  return weights;
}

const byWeight = (weights: Map<FlameNode, number>) => (a: FlameNode, b: FlameNode) =>
  weights.get(b)! - weights.get(a)!;

/**
 * Rows of frames, callers above what they call; frames narrower than `narrowest` are drawn as part of one
 * rest.
 */
export function icicle(root: FlameNode, trail: Trail, width: number, narrowest = 2): Box[] {
  const weights = weigh(root);
  const boxes: Box[] = [];
  const place = (node: FlameNode, trail: Trail, depth: number, x: number, across: number) => {
    const y = depth * ROW_PIXELS;
    boxes.push({ node, trail, rest: false, depth, x, y, width: across, height: ROW_PIXELS });
    const scale = across / (weights.get(node) || 1);
    let right = x;
    for (const child of [...node.children].sort(byWeight(weights))) {
      const part = weights.get(child)! * scale;
      if (part < narrowest) break;
      place(child, [...trail, keyOf(child)], depth + 1, right, part);
      right += part;
    }
    const left = x + across - right;
    if ((right > x || node.leftOut > 0) && left >= narrowest) {
      boxes.push({
        node,
        trail,
        rest: true,
        depth: depth + 1,
        x: right,
        y: y + ROW_PIXELS,
        width: left,
        height: ROW_PIXELS,
      });
    }
  };
  const way = follow(root, trail);
  place(way.at(-1)!, trail.slice(0, way.length - 1), 0, 0, width);
  return boxes;
}

/** Down to where the tree branches: a call with one callee that holds all of it is the same rectangle. */
function unfold(
  node: FlameNode,
  trail: Trail,
  weights: Map<FlameNode, number>,
): { node: FlameNode; trail: Trail; label: FlameNode } {
  let label = node;
  while (node.children.length === 1 && weights.get(node.children[0]!) === weights.get(node)) {
    node = node.children[0]!;
    trail = [...trail, keyOf(node)];
    if (node.user || !label.user) label = node;
  }
  return { node, trail, label };
}

export interface Cell extends Box {
  /** The frame to name it by: the innermost of the user's own on the way. */
  label: FlameNode;
  leaf: boolean;
}

interface Rectangle {
  x: number;
  y: number;
  width: number;
  height: number;
}

const TITLE_PIXELS = 17;
const GAP_PIXELS = 2;

/** Nested rectangles, as square as possible. */
export function treemap(root: FlameNode, trail: Trail, width: number, height: number): Cell[] {
  const weights = weigh(root);
  const cells: Cell[] = [];
  const place = (start: FlameNode, from: Trail, depth: number, at: Rectangle) => {
    const { node, trail, label } = unfold(start, from, weights);
    const inner = {
      x: at.x + GAP_PIXELS,
      y: at.y + TITLE_PIXELS,
      width: at.width - 2 * GAP_PIXELS,
      height: at.height - TITLE_PIXELS - GAP_PIXELS,
    };
    const divides = node.children.length > 0 && inner.width > 40 && inner.height > 26;
    cells.push({ node, label, trail, rest: false, leaf: !divides, depth, ...at });
    if (!divides) return;
    const children = [...node.children].sort(byWeight(weights));
    const rest = restOf(node);
    const sizes = children.map((child) => weights.get(child)!);
    const whole = [...sizes, Math.max(rest.bytes, rest.base)];
    squarify(whole, inner).forEach((rectangle, number) => {
      if (rectangle.width < 1 || rectangle.height < 1) return;
      const child = children[number];
      if (child) place(child, [...trail, keyOf(child)], depth + 1, rectangle);
      else cells.push({ node, label: node, trail, rest: true, leaf: true, depth: depth + 1, ...rectangle });
    });
  };
  const way = follow(root, trail);
  place(way.at(-1)!, trail.slice(0, way.length - 1), 0, { x: 0, y: 0, width, height });
  return cells;
}

/**
 * Bruls, Huizing and van Wijk: fill the shorter side with rows, each as long as it makes the rectangles
 * squarer.
 */
function squarify(sizes: number[], within: Rectangle): Rectangle[] {
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const scale = total > 0 ? (within.width * within.height) / total : 0;
  const placed: Rectangle[] = [];
  let { x, y, width, height } = within;
  for (let first = 0; first < sizes.length; ) {
    const side = Math.min(width, height);
    let end = first;
    let area = 0;
    for (let best = Infinity; end < sizes.length; end++) {
      const next = area + sizes[end]! * scale;
      const worst = worstRatio(sizes, first, end + 1, next, scale, side);
      if (end > first && worst > best) break;
      best = worst;
      area = next;
    }
    const thickness = side > 0 ? area / side : 0;
    let along = 0;
    for (let number = first; number < end; number++) {
      const length = thickness > 0 ? (sizes[number]! * scale) / thickness : 0;
      const upright = width >= height;
      placed.push(
        upright
          ? { x, y: y + along, width: thickness, height: length }
          : { x: x + along, y, width: length, height: thickness },
      );
      along += length;
    }
    if (width >= height) [x, width] = [x + thickness, Math.max(0, width - thickness)];
    else [y, height] = [y + thickness, Math.max(0, height - thickness)];
    first = end;
  }
  return placed;
}

function worstRatio(
  sizes: number[],
  first: number,
  end: number,
  area: number,
  scale: number,
  side: number,
): number {
  let worst = 0;
  for (let number = first; number < end; number++) {
    const one = sizes[number]! * scale;
    if (one <= 0) continue;
    const ratio = (side * side * one) / (area * area);
    worst = Math.max(worst, ratio, 1 / ratio);
  }
  return worst;
}

export function matches(node: FlameNode, text: string): boolean {
  return `${node.name} ${node.file ?? ""}:${node.line ?? ""}`.toLowerCase().includes(text.toLowerCase());
}

/** Bytes under frames that match, each counted once. */
export function bytesOfMatches(root: FlameNode, text: string): number {
  if (matches(root, text)) return root.bytes;
  return root.children.reduce((sum, child) => sum + bytesOfMatches(child, text), 0);
}
