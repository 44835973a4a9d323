// Axes: ticks, labels, and how an interval is moved and scaled. Pure.

import type { Run, XAxis } from "../protocol";
import { bytes, count } from "./format";
import type { Span } from "./store";

export interface Tick {
  at: number;
  label: string;
}

/** Shortest visible interval of the x axis: single events can be told apart. */
export const MIN_INTERVAL: Record<XAxis, number> = { event: 6, time: 20 };

type Unit = readonly [name: string, scale: number];

/** Largest first. */
const BYTE_UNITS: Unit[] = [
  ["TiB", 2 ** 40],
  ["GiB", 2 ** 30],
  ["MiB", 2 ** 20],
  ["KiB", 2 ** 10],
];

/** Each with the smallest step between ticks that is labelled in it. */
const TIME_UNITS: [...Unit, least: number][] = [
  ["h", 3600e6, 3600e6],
  ["min", 60e6, 60e6],
  ["s", 1e6, 1e5],
  ["ms", 1e3, 1e2],
];

/** Ticks more than this many steps from 0 are labelled relative to the first. */
const MAX_ABSOLUTE_TICKS = 4000;

/** Ticks at multiples of a power of two, all in one unit. */
export function byteTicks(low: number, high: number, most: number): Tick[] {
  const step = 2 ** Math.max(0, Math.ceil(Math.log2((high - low) / Math.max(1, most))));
  const [unit, scale] =
    BYTE_UNITS.find(([, scale]) => scale <= step * 4 && scale <= high) ?? (["B", 1] as const);
  const all = multiples(step, low, high);
  const first = high / step > MAX_ABSOLUTE_TICKS ? all[0]! : 0;
  return all.map((at) => {
    if (at === first) return { at, label: first === 0 ? "0" : bytes(first) };
    return { at, label: `${first > 0 ? "+" : ""}${count2((at - first) / scale)} ${unit}` };
  });
}

/** Events are the borders between positions: number e lies at e + 1. The end of the axis is not one. */
export function eventTicks({ from, to }: Span, most: number): Tick[] {
  const step = Math.max(1, roundStep((to - from) / Math.max(1, most)));
  return multiples(step, Math.max(0, from - 1), to - 1.5).map((event) => ({
    at: event + 1,
    label: count(event),
  }));
}

/** Time since the first event. */
export function timeTicks({ from, to }: Span, most: number): Tick[] {
  const rough = (to - from) / Math.max(1, most);
  const [unit, scale] = TIME_UNITS.find(([, , least]) => least <= rough) ?? (["µs", 1] as const);
  const step = Math.max(1, roundStep(rough / scale) * scale);
  return multiples(step, from, to).map((at) => ({
    at,
    label: at === 0 ? "0" : `${count2(at / scale)} ${unit}`,
  }));
}

export function xTicks(axis: XAxis, span: Span, most: number): Tick[] {
  return axis === "event" ? eventTicks(span, most) : timeTicks(span, most);
}

/** 1, 2 or 5 times a power of ten, not less than `rough`. */
function roundStep(rough: number): number {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) ?? 10);
}

function multiples(step: number, low: number, high: number): number[] {
  const first = Math.ceil(low / step);
  const last = Math.floor(high / step);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, place) => (first + place) * step);
}

function count2(value: number): string {
  return value.toLocaleString("en-US", { maximumFractionDigits: 2 });
}

/** A top of the y axis that stays the same under small changes. */
export function roundTop(highest: number): number {
  return 2 ** (Math.ceil(Math.log2(Math.max(1, highest) * 1.03) * 8) / 8);
}

/** The interval, `factor` times as long, with `at` where it was. */
export function zoomed(span: Span, at: number, factor: number, whole: Span, shortest: number): Span {
  const length = span.to - span.from;
  const wanted = Math.min(whole.to - whole.from, Math.max(shortest, length * factor));
  const from = at - ((at - span.from) * wanted) / length;
  return kept({ from, to: from + wanted }, whole);
}

export function panned(span: Span, by: number, whole: Span): Span {
  return kept({ from: span.from + by, to: span.to + by }, whole);
}

/** The interval, moved so that it lies within the whole. */
function kept(span: Span, whole: Span): Span {
  const length = span.to - span.from;
  const from = Math.max(whole.from, Math.min(span.from, whole.to - length));
  return { from, to: Math.min(whole.to, from + length) };
}

/** An interval with a margin, limited to the whole. */
export function around(span: Span, whole: Span, shortest: number): Span {
  const margin = Math.max((span.to - span.from) * 0.08, shortest / 2 - (span.to - span.from) / 2);
  return { from: Math.max(whole.from, span.from - margin), to: Math.min(whole.to, span.to + margin) };
}

export function isWhole(span: Span, whole: Span): boolean {
  return span.from <= whole.from && span.to >= whole.to;
}

/** The step of the event that led to a position: 1 is the first. */
export function stepAt(run: Run, position: number): number | null {
  const { bounds } = run.steps;
  const next = bounds.findIndex((bound) => bound >= position);
  return next > 0 ? next : null;
}

/** A moment in words, as the report says it. */
export function atEvent(position: number): string {
  return position === 0 ? "before the first event" : `event ${count(position - 1)}`;
}

/** A moment in words, for a run that may have no history. */
export function momentName(run: Run, position: number): string {
  return run.events === 0 ? "final state" : atEvent(position);
}
