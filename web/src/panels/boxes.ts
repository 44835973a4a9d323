// What the flame graph and the tree map have in common: boxes that are hovered over, clicked and walked
// through with keys.

import { type Box, matches, type Trail } from "../canvas/frames";
import type { FlameNode } from "../protocol";

export interface HoveredBox {
  box: Box;
  x: number;
  y: number;
}

export interface ShapeProps {
  root: FlameNode;
  trail: Trail;
  compared: boolean;
  search: string;
  onHover: (at: HoveredBox | null) => void;
  onZoom: (trail: Trail) => void;
}

export function boxClass(box: Box, names: FlameNode, text: string): string {
  const found = text !== "" && !box.rest && matches(names, text);
  return [
    "frame",
    box.rest ? "rest" : names.user ? "own" : "",
    text === "" ? "" : found ? "found" : "faded",
  ].join(" ");
}

/**
 * Listeners of the element around the boxes; a box is found by its number, so that thousands need no
 * listeners of their own.
 */
export function boxListeners(props: ShapeProps, boxes: Box[]) {
  const numberOf = (event: Event): number => {
    const element = (event.target as Element).closest<HTMLElement>("[data-box]");
    return element ? Number(element.dataset.box) : -1;
  };
  return {
    onPointerMove: (event: PointerEvent) => {
      const box = boxes[numberOf(event)];
      props.onHover(box ? { box, x: event.clientX, y: event.clientY } : null);
    },
    onPointerLeave: () => props.onHover(null),
    onClick: (event: MouseEvent) => {
      const box = boxes[numberOf(event)];
      if (box) props.onZoom(box.trail);
    },
    onKeyDown: (event: KeyboardEvent) => {
      const next = neighbour(boxes, numberOf(event), event.key);
      if (next >= 0) {
        const around = event.currentTarget as HTMLElement;
        around.querySelector<HTMLElement>(`[data-box="${next}"]`)?.focus();
      } else if ((event.key === "Backspace" || event.key === "Escape") && props.trail.length) {
        props.onZoom(props.trail.slice(0, -1));
      } else return;
      event.preventDefault();
      event.stopPropagation();
    },
  };
}

/** The box that an arrow key goes to. Boxes come with callers before what they call. */
function neighbour(boxes: Box[], from: number, key: string): number {
  const depth = boxes[from]?.depth;
  if (depth === undefined) return -1;
  const before = boxes.slice(0, from).map((box) => box.depth);
  switch (key) {
    case "ArrowDown":
      return boxes[from + 1]?.depth === depth + 1 ? from + 1 : -1;
    case "ArrowUp":
      return before.lastIndexOf(depth - 1);
    case "ArrowRight":
      return boxes.findIndex((box, number) => number > from && box.depth === depth);
    case "ArrowLeft":
      return before.lastIndexOf(depth);
    default:
      return -1;
  }
}
