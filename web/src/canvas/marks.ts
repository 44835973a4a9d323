// Marks that several pictures have: axes, the moment, a brushed interval. Coordinates are those of the plot.

import type { XAxis } from "../protocol";
import { byteTicks, xTicks } from "../state/axis";
import type { Viewport } from "./raster";
import { type Ink, MARGIN, type Size } from "./surface";

export type Context = CanvasRenderingContext2D;

export function xPixel(view: Viewport, x: number): number {
  return ((x - view.from) / (view.to - view.from)) * view.width;
}

export function yPixel(view: Viewport, bytes: number): number {
  return view.height - ((bytes - view.low) / (view.high - view.low)) * view.height;
}

const LABEL_GAP = 12;

/** Lines of one pixel are sharp between whole coordinates. */
const sharp = (at: number) => Math.round(at - 0.5) + 0.5;

export function verticalLine(context: Context, x: number, top: number, bottom: number): void {
  context.beginPath();
  context.moveTo(sharp(x), top);
  context.lineTo(sharp(x), bottom);
  context.stroke();
}

export function horizontalLine(context: Context, y: number, left: number, right: number): void {
  context.beginPath();
  context.moveTo(left, sharp(y));
  context.lineTo(right, sharp(y));
  context.stroke();
}

export function drawByteAxis(context: Context, view: Viewport, ink: Ink): void {
  context.lineWidth = 1;
  context.textAlign = "right";
  for (const { at, label } of byteTicks(view.low, view.high, view.height / 46)) {
    const y = yPixel(view, at);
    context.globalAlpha = 0.55;
    context.strokeStyle = ink.line;
    horizontalLine(context, Math.min(y, view.height - 0.5), -4, view.width);
    context.globalAlpha = 1;
    context.fillStyle = ink.dim;
    context.fillText(label, -8, y);
  }
}

export function drawXAxis(context: Context, view: Viewport, axis: XAxis, ink: Ink): void {
  context.lineWidth = 1;
  context.strokeStyle = ink.line;
  horizontalLine(context, view.height, 0, view.width);
  context.fillStyle = ink.dim;
  context.textAlign = "right";
  context.fillText(axis === "event" ? "event" : "time", -8, view.height + 13);
  context.textAlign = "center";
  let free = 0;
  for (const { at, label } of xTicks(axis, view, view.width / 110)) {
    const x = xPixel(view, at);
    if (x < 0 || x > view.width) continue;
    verticalLine(context, x, view.height, view.height + 4);
    const half = context.measureText(label).width / 2;
    const middle = Math.max(half, Math.min(view.width + MARGIN.right - half, x));
    if (middle - half < free) continue;
    context.fillText(label, middle, view.height + 13);
    free = middle + half + LABEL_GAP;
  }
}

/** A label with a background, kept within the plot. */
export function drawTag(
  context: Context,
  text: string,
  x: number,
  y: number,
  size: Size,
  fill: string,
  color: string,
): void {
  const width = context.measureText(text).width + 10;
  const left = Math.max(0, Math.min(size.width - width, x - width / 2));
  context.fillStyle = fill;
  context.beginPath();
  context.roundRect(left, y - 8, width, 16, 4);
  context.fill();
  context.fillStyle = color;
  context.textAlign = "left";
  context.fillText(text, left + 5, y + 0.5);
}

/** The chosen moment: a line with a handle. */
export function drawMoment(context: Context, view: Viewport, x: number, label: string, ink: Ink): void {
  if (x < 0 || x > view.width) return;
  context.lineWidth = 3;
  context.strokeStyle = ink.panel;
  verticalLine(context, x, 0, view.height);
  context.lineWidth = 1;
  context.strokeStyle = ink.accent;
  verticalLine(context, x, -2, view.height);
  if (label) drawTag(context, label, x, -10, view, ink.accent, ink.panel);
}

/** Fades what is outside an interval, and sets the stroke for its edges. */
export function veilOutside(context: Context, view: Viewport, left: number, right: number, ink: Ink): void {
  context.fillStyle = ink.panel;
  context.globalAlpha = 0.6;
  context.fillRect(0, 0, left, view.height);
  context.fillRect(right, 0, view.width - right, view.height);
  context.globalAlpha = 1;
  context.strokeStyle = ink.accent;
  context.lineWidth = 1;
}

/** The brushed interval. */
export function drawInterval(context: Context, view: Viewport, from: number, to: number, ink: Ink): void {
  const left = Math.max(0, Math.min(view.width, from));
  const right = Math.max(left + 1, Math.min(view.width, to));
  veilOutside(context, view, left, right, ink);
  for (const edge of [from, to])
    if (edge >= 0 && edge <= view.width) verticalLine(context, edge, 0, view.height);
}

export function drawPointer(context: Context, view: Viewport, x: number, ink: Ink): void {
  context.save();
  context.setLineDash([2, 3]);
  context.lineWidth = 1;
  context.strokeStyle = ink.text;
  context.globalAlpha = 0.6;
  verticalLine(context, x, 0, view.height);
  context.restore();
}
