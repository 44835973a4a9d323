// Moving and zooming the shared axes.

import { batch, signal } from "@preact/signals";
import type { Run, XAxis } from "../protocol";
import { around, isWhole, MIN_INTERVAL, panned, zoomed } from "./axis";
import { heights, interval, moment, type Span, selection, shown, span, whole, xAxis } from "./store";

/** Whether a drag measures instead of moving. */
export const rulerIsOn = signal(false);
/** The last measurement: a run, and two points of the x axis. */
export const ruler = signal<({ run: number } & Span) | null>(null);

/** Shows an interval. The whole run is stored as null, so that it stays whole when another run is added. */
export function show(stretch: Span): void {
  span.value = isWhole(stretch, whole.value) ? null : stretch;
}

/**
 * The fixed point of a zoom without a pointer: the chosen moment if visible, otherwise the middle.
 */
function anchor(): number {
  const { from, to } = shown.value;
  const at = moment.value + 0.5;
  return xAxis.value === "event" && at > from && at < to ? at : (from + to) / 2;
}

export function zoom(factor: number, at = anchor()): void {
  show(zoomed(shown.value, at, factor, whole.value, MIN_INTERVAL[xAxis.value]));
}

export function pan(by: number): void {
  show(panned(shown.value, by, whole.value));
}

export function showAll(): void {
  batch(() => {
    span.value = null;
    heights.value = null;
  });
}

/** Shows an interval with a margin. */
export function showAround(stretch: Span): void {
  show(around(stretch, whole.value, MIN_INTERVAL[xAxis.value]));
}

/** Goes to a moment without zooming. */
export function goTo(position: number, timeUs: number): void {
  batch(() => {
    moment.value = position;
    const at = xAxis.value === "event" ? position : timeUs;
    const { from, to } = shown.value;
    if (at < from || at >= to) pan(at - (from + to) / 2);
  });
}

/** Changes the x axis and shows about the same interval. */
export function turnTo(axis: XAxis, of: Run): void {
  if (axis === xAxis.value) return;
  const before = shown.value;
  const wasWhole = span.value === null;
  batch(() => {
    xAxis.value = axis;
    span.value = null;
    if (!wasWhole) show({ from: onAxis(axis, before.from, of), to: onAxis(axis, before.to, of) });
  });
}

/** Converts a point of the other axis, interpolated between marks that are known on both. */
function onAxis(axis: XAxis, at: number, of: Run): number {
  const ends = [
    [0, 0],
    [of.events, of.endUs - of.beginUs],
  ] as const;
  const steps = of.steps.bounds.map((bound, place) => [bound, of.steps.bounds_us[place]!] as const);
  const known = [...ends, ...steps, [of.peak.position, of.peak.timeUs] as const].sort(
    (a, b) => a[0] - b[0] || a[1] - b[1],
  );
  const [from, to] = axis === "time" ? [0, 1] : [1, 0];
  const found = known.findIndex((mark) => mark[from]! >= at);
  const next = found < 0 ? known.length - 1 : Math.max(1, found);
  const [low, high] = [known[next - 1]!, known[next]!];
  const share = high[from]! > low[from]! ? (at - low[from]!) / (high[from]! - low[from]!) : 0;
  return low[to]! + share * (high[to]! - low[to]!);
}

export function stepMoment(of: Run, by: number): void {
  const next = Math.max(0, Math.min(of.events, moment.value + by));
  if (xAxis.value === "event") goTo(next, 0);
  else moment.value = next;
}

/** Clears the ruler, then the interval, then the selection. */
export function deselect(): void {
  if (rulerIsOn.value || ruler.value) {
    rulerIsOn.value = false;
    ruler.value = null;
  } else if (interval.value) interval.value = null;
  else selection.value = null;
}
