// What the timeline draws over its bands: reserved memory, the limit, steps, failures, the ruler.

import type { Run, XAxis } from "../protocol";
import { stepAt } from "../state/axis";
import { bytes, change, count, counted, duration } from "../state/format";
import { type Context, drawTag, horizontalLine, verticalLine, xPixel, yPixel } from "./marks";
import { columnAt, type Prepared, type Viewport } from "./raster";
import type { Ink } from "./surface";

/** Height of names above the plot. */
const NAME_Y_PIXELS = -10;
/** Steps that are nearer to each other are not drawn one by one. */
const STEP_LINE_PIXELS = 5;
const STEP_NAME_PIXELS = 44;

/** A line through the columns, level within each. */
function drawReservedLine(context: Context, tile: Prepared, view: Viewport): void {
  context.beginPath();
  let before = NaN;
  for (let x = 0; x < view.width; x++) {
    const column = columnAt(tile, view, x);
    const value = column < 0 ? NaN : tile.reserved[column]!;
    if (value === before) continue;
    if (!Number.isNaN(before)) context.lineTo(x, yPixel(view, before));
    if (!Number.isNaN(value)) {
      const y = yPixel(view, value);
      if (!Number.isNaN(before)) context.lineTo(x, y);
      else context.moveTo(x, y);
    }
    before = value;
  }
  if (!Number.isNaN(before)) context.lineTo(view.width, yPixel(view, before));
  context.stroke();
}

export function drawReserved(context: Context, tile: Prepared, view: Viewport, ink: Ink): void {
  context.save();
  context.beginPath();
  context.rect(0, 0, view.width, view.height);
  context.clip();
  context.strokeStyle = ink.text;
  context.globalAlpha = 0.85;
  context.lineWidth = 1.5;
  drawReservedLine(context, tile, view);
  context.restore();
  const last = columnAt(tile, view, view.width - 1);
  if (last < 0) return;
  const y = yPixel(view, tile.reserved[last]!);
  if (y < 4) return;
  context.fillStyle = ink.dim;
  context.strokeStyle = ink.panel;
  context.lineWidth = 3;
  context.textAlign = "right";
  context.strokeText("reserved", view.width - 4, Math.max(8, y - 8));
  context.fillText("reserved", view.width - 4, Math.max(8, y - 8));
}

export function drawLimit(context: Context, run: Run, view: Viewport, ink: Ink): void {
  if (run.limit == null || run.limit > view.high) return;
  const y = yPixel(view, run.limit);
  context.save();
  context.setLineDash([6, 4]);
  context.lineWidth = 1.5;
  context.strokeStyle = ink.bad;
  horizontalLine(context, y, 0, view.width);
  context.restore();
  context.fillStyle = ink.bad;
  context.textAlign = "left";
  context.fillText(`limit ${bytes(run.limit)}`, 6, y < 14 ? y + 9 : y - 8);
}

/** Where a step begins: at the event after its bound. */
function boundsOn(axis: XAxis, { steps }: Run): number[] {
  return axis === "event" ? steps.bounds.map((bound) => bound + 1) : steps.bounds_us;
}

export function drawStepMarks(context: Context, run: Run, axis: XAxis, view: Viewport, ink: Ink): void {
  const places = boundsOn(axis, run).map((at) => xPixel(view, at));
  const first = places.findIndex((x) => x >= -0.5);
  if (first < 0) return;
  context.fillStyle = ink.dim;
  context.textAlign = "right";
  context.fillText("step", -8, NAME_Y_PIXELS);
  context.textAlign = "left";
  // The step that goes on at the left edge.
  if (first > 0 && places[first]! > STEP_NAME_PIXELS) context.fillText(count(first), 3, NAME_Y_PIXELS);
  let end = first;
  while (end < places.length && places[end]! <= view.width + 0.5) end++;
  const apart = (places[end - 1]! - places[first]!) / Math.max(1, end - 1 - first);
  const named = apart > 0 ? nameEvery(STEP_NAME_PIXELS / apart) : 1;
  const drawsAll = apart >= STEP_LINE_PIXELS || end - first < 2;
  context.strokeStyle = ink.text;
  context.lineWidth = 1;
  for (let place = first; place < end; place++) {
    const isNamed = (place + 1) % named === 0 || named === 1;
    if (!drawsAll && !isNamed) continue;
    context.globalAlpha = isNamed ? 0.28 : 0.13;
    verticalLine(context, places[place]!, isNamed ? -4 : 0, view.height);
    context.globalAlpha = 1;
    // The last bound ends a step and begins none.
    if (!isNamed || place === places.length - 1) continue;
    const name = count(place + 1);
    if (places[place]! + context.measureText(name).width + 3 <= view.width)
      context.fillText(name, places[place]! + 3, NAME_Y_PIXELS);
  }
}

/** 1, 2 or 5 times a power of ten, so that names have room. */
function nameEvery(least: number): number {
  let every = 1;
  for (const factor of [2, 2.5, 2]) if (every < least) every *= factor;
  return every < least ? 10 * nameEvery(least / 10) : every;
}

/** Pixels that the words of a failure take, more or less. */
const FAILURE_TEXT_PIXELS = 220;

export function drawOoms(context: Context, run: Run, axis: XAxis, view: Viewport, ink: Ink): void {
  let free = -Infinity;
  const places = run.ooms.map(({ position, timeUs }) =>
    xPixel(view, axis === "event" ? position + 0.5 : timeUs),
  );
  for (const [number, { requested }] of run.ooms.entries()) {
    const x = places[number]!;
    if (x < 0 || x > view.width) continue;
    context.strokeStyle = ink.bad;
    context.lineWidth = 1.5;
    verticalLine(context, x, 0, view.height);
    context.fillStyle = ink.bad;
    context.beginPath();
    context.moveTo(x - 5, 0);
    context.lineTo(x + 5, 0);
    context.lineTo(x, 7);
    context.fill();
    // Failures without room for a label are counted.
    const near = places.filter(
      (other, later) => later > number && other - x < FAILURE_TEXT_PIXELS && other <= view.width,
    ).length;
    const words = `out of memory: ${bytes(requested)} requested${near ? `, and ${counted(near, "time")} more` : ""}`;
    const half = context.measureText(words).width / 2 + 6;
    const middle = Math.max(half, Math.min(view.width - half, x));
    if (middle - half < free) continue;
    drawTag(context, words, x, 16, view, ink.bad, ink.panel);
    free = middle + half;
  }
}

/** The distance between two points of the x axis. */
export function drawRuler(
  context: Context,
  run: Run,
  axis: XAxis,
  tile: Prepared,
  view: Viewport,
  ends: { from: number; to: number },
  ink: Ink,
): void {
  const [left, right] = [Math.min(ends.from, ends.to), Math.max(ends.from, ends.to)].map((x) =>
    xPixel(view, x),
  ) as [number, number];
  const at = (x: number) => columnAt(tile, view, Math.max(0, Math.min(view.width - 1, Math.floor(x))));
  const [first, last] = [at(left), at(right)];
  if (first < 0 || last < 0) return;
  const [low, high] = [tile.position[first]!, tile.position[last]!];
  const steps = [stepAt(run, low), stepAt(run, high)];
  const words = [
    `${count(high - low)} events`,
    run.endUs > run.beginUs
      ? duration(
          axis === "time" ? Math.abs(ends.to - ends.from) : tile.elapsedUs[last]! - tile.elapsedUs[first]!,
        )
      : "",
    steps[0] !== null && steps[1] !== null && steps[0] !== steps[1]
      ? `${count(steps[1]! - steps[0]!)} steps`
      : "",
    `${change(tile.total[last]! - tile.total[first]!)} allocated`,
  ];
  context.strokeStyle = context.fillStyle = ink.warn;
  context.lineWidth = 1;
  context.globalAlpha = 0.14;
  context.fillRect(left, 0, right - left, view.height);
  context.globalAlpha = 1;
  verticalLine(context, left, 0, view.height);
  verticalLine(context, right, 0, view.height);
  horizontalLine(context, view.height / 2, left, right);
  drawTag(
    context,
    words.filter(Boolean).join(" · "),
    (left + right) / 2,
    view.height / 2,
    view,
    ink.text,
    ink.panel,
  );
}
