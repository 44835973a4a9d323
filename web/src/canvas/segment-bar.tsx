// One segment as a bar of cells.

import { useEffect, useRef } from "preact/hooks";
import { FREE, type Group, type LaidSegment, MERGED, type Run } from "../protocol";
import { type Selection, selection } from "../state/store";
import { freeCss, shownTheme, type Theme } from "./colors";
import { groupColor } from "./paints";

export const BAR_HEIGHT = 14;
const NUMBERS_PER_CELL = 5;

export interface SegmentCell {
  offset: number;
  size: number;
  row: number;
  pieces: number;
  group: number;
}

function cellAt({ cells }: LaidSegment, place: number): SegmentCell {
  const [offset = 0, size = 0, row = 0, pieces = 0, group = 0] = cells.slice(
    place * NUMBERS_PER_CELL,
    (place + 1) * NUMBERS_PER_CELL,
  );
  return { offset, size, row, pieces, group };
}

/** The cell that has an offset of the segment. */
export function cellWith(segment: LaidSegment, offset: number): SegmentCell | null {
  for (let place = 0; place * NUMBERS_PER_CELL < segment.cells.length; place++) {
    const cell = cellAt(segment, place);
    if (offset >= cell.offset && offset < cell.offset + cell.size) return cell;
  }
  return null;
}

function isFaded(cell: SegmentCell, chosen: Selection | null): boolean {
  if (!chosen || cell.row === FREE) return false;
  if (chosen.kind === "block") return cell.row !== chosen.row;
  return chosen.by === "site" && cell.group !== chosen.id;
}

function drawCells(
  context: CanvasRenderingContext2D,
  segment: LaidSegment,
  width: number,
  colorOf: (group: number) => string,
  theme: Theme,
  chosen: Selection | null,
): void {
  const tones =
    theme === "dark"
      ? ["rgb(86 92 102)", "rgb(0 0 0 / 45%)"]
      : ["rgb(169 175 185)", "rgb(255 255 255 / 60%)"];
  const pixel = (offset: number) => Math.round((offset / segment.size) * width);
  for (let place = 0; place * NUMBERS_PER_CELL < segment.cells.length; place++) {
    const cell = cellAt(segment, place);
    const [left, right] = [pixel(cell.offset), pixel(cell.offset + cell.size)];
    if (right <= left) continue;
    context.fillStyle =
      cell.row === FREE ? freeCss(theme) : cell.row === MERGED ? tones[0]! : colorOf(cell.group);
    context.globalAlpha = isFaded(cell, chosen) ? 0.25 : 1;
    context.fillRect(left, 0, right - left, BAR_HEIGHT);
    context.globalAlpha = 1;
    context.fillStyle = tones[1]!;
    if (right - left >= 4 && cell.row !== FREE) context.fillRect(right - 1, 0, 1, BAR_HEIGHT);
  }
}

interface BarProps {
  run: Run;
  segment: LaidSegment;
  groups: Map<number, Group>;
  width: number;
  onHover: (cell: SegmentCell | null, event: PointerEvent) => void;
  onClick: (cell: SegmentCell | null) => void;
}

export function SegmentBar({ run, segment, groups, width, onHover, onClick }: BarProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = shownTheme.value;
  const chosen = selection.value;
  useEffect(() => {
    const context = canvas.current!.getContext("2d")!;
    const ratio = window.devicePixelRatio || 1;
    canvas.current!.width = Math.round(width * ratio);
    canvas.current!.height = Math.round(BAR_HEIGHT * ratio);
    context.scale(ratio, ratio);
    const colorOf = (id: number) => {
      const group = groups.get(id);
      return group ? groupColor(run, "site", group, theme).css : freeCss(theme);
    };
    drawCells(context, segment, width, colorOf, theme, chosen);
  }, [segment, groups, width, theme, chosen]);
  const under = (event: MouseEvent) => cellWith(segment, (event.offsetX / width) * segment.size);
  return (
    <canvas
      ref={canvas}
      class="segment-bar"
      style={{ width: `${width}px`, height: `${BAR_HEIGHT}px` }}
      onPointerMove={(event) => onHover(under(event), event)}
      onPointerLeave={(event) => onHover(null, event)}
      onClick={(event) => {
        event.stopPropagation();
        onClick(under(event));
      }}
    />
  );
}
