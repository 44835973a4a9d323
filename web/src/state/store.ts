// The state of the page. Every view reads and writes it, and the address of the page holds it, so that a link
// shows the same.

import { batch, computed, effect, signal } from "@preact/signals";
import type { GroupBy, Overview, Run, TimelineBy, XAxis } from "../protocol";

export type Selection = { kind: "group"; by: GroupBy; id: number } | { kind: "block"; row: number };

/** An interval of the x axis: positions, or microseconds since the first event. */
export interface Span {
  from: number;
  to: number;
}

export const overview = signal<Overview | null>(null);
/** Runs of inputs that the overview does not describe, and that someone has looked at (`state/inputs.ts`). */
export const opened = signal<Run[]>([]);
/** What-ifs that were replayed since the page was opened. */
export const replayed = signal<Run[]>([]);
export const runs = computed(() => [...(overview.value?.runs ?? []), ...opened.value, ...replayed.value]);

export const runId = signal(0);
/** A second run to compare with, shown below the first on the same axes. */
export const otherId = signal<number | null>(null);
export const by = signal<TimelineBy>("site");
export const xAxis = signal<XAxis>("event");
/** What part of the x axis is shown; null is all of it. */
export const span = signal<Span | null>(null);
/** Bytes at the bottom and at the top of the timeline; null follows what is shown. */
export const heights = signal<{ low: number; high: number } | null>(null);
/** The chosen moment: a position. */
export const moment = signal(0);
/** The brushed interval of positions, for the flame graph and the table. */
export const interval = signal<Span | null>(null);
/** The moment that the flame graph is compared with: a run and a position. */
export const base = signal<{ run: number; at: number } | null>(null);
export const selection = signal<Selection | null>(null);
/** Name of the open panel (`panels/tabs.tsx`). */
export const tab = signal("map");
/** The part of the address space that the map shows, in offsets; null is all of it. */
export const addresses = signal<{ low: number; high: number } | null>(null);
export const search = signal("");
export const theme = signal<"light" | "dark" | "auto">("auto");

export const run = computed<Run | null>(
  () => runs.value.find((each) => each.id === runId.value) ?? runs.value[0] ?? null,
);
export const other = computed<Run | null>(() => runs.value.find((each) => each.id === otherId.value) ?? null);

/** The whole x axis of a run. */
export function extent(of: Run, x: XAxis): Span {
  return x === "event" ? { from: 0, to: of.events + 1 } : { from: 0, to: Math.max(1, of.endUs - of.beginUs) };
}

/** All of the x axis, of both runs where two are shown. */
export const whole = computed<Span>(() => {
  if (!run.value) return { from: 0, to: 1 };
  const first = extent(run.value, xAxis.value);
  const second = other.value && extent(other.value, xAxis.value);
  return second ? { from: 0, to: Math.max(first.to, second.to) } : first;
});

/** The interval that is shown. */
export const shown = computed<Span>(() => span.value ?? whole.value);

/** The moment to show first: the last failed allocation, or the peak. */
export function firstMoment(of: Run): number {
  return of.ooms.at(-1)?.position ?? of.peak.position;
}

/** The second of two runs that were given to be compared. */
function usualOther(): number | null {
  return overview.value?.relation === "compared" ? (runs.value[1]?.id ?? null) : null;
}

/** Shows another run from its own beginning. */
export function chooseRun(id: number): void {
  batch(() => {
    runId.value = id;
    span.value = null;
    heights.value = null;
    interval.value = null;
    base.value = null;
    selection.value = null;
    addresses.value = null;
    const now = runs.value.find((each) => each.id === id);
    if (now) moment.value = firstMoment(now);
    if (now && !now.groupings.includes(by.value)) by.value = now.groupings[0] ?? "site";
  });
}

const GROUP_BYS: GroupBy[] = ["site", "category", "module", "stack", "size"];

function numbers(text: string | null, count: number): number[] | null {
  const parts = (text ?? "").split("-").map(Number);
  return text && parts.length === count && parts.every((part) => Number.isFinite(part) && part >= 0)
    ? parts
    : null;
}

/** Reads the state from the address, as far as it is valid for these runs. */
export function readAddress(): void {
  const query = new URLSearchParams(location.hash.slice(1));
  batch(() => {
    const wanted = Number(query.get("run") ?? "0");
    chooseRun(runs.value.some((each) => each.id === wanted) ? wanted : (runs.value[0]?.id ?? 0));
    const now = run.value;
    if (!now) return;
    const second = numbers(query.get("other"), 1);
    const isThere = second && runs.value.some((each) => each.id === second[0]);
    otherId.value = isThere ? second[0]! : query.has("other") ? null : usualOther();
    const key = query.get("by") as TimelineBy | null;
    by.value = key && now.groupings.includes(key) ? key : (now.groupings[0] ?? "site");
    xAxis.value = query.get("x") === "time" && now.endUs > now.beginUs ? "time" : "event";
    const stretch = numbers(query.get("span"), 2);
    span.value = stretch && stretch[1]! > stretch[0]! ? { from: stretch[0]!, to: stretch[1]! } : null;
    const at = numbers(query.get("at"), 1);
    if (at) moment.value = Math.min(Math.round(at[0]!), now.events);
    const brushed = numbers(query.get("interval"), 2);
    const [begin, end] = (brushed ?? [0, 0]).map((bound) => Math.min(Math.round(bound), now.events)) as [
      number,
      number,
    ];
    interval.value = end > begin ? { from: begin, to: end } : null;
    const compared = numbers(query.get("base"), 2);
    base.value =
      compared && runs.value.some((each) => each.id === compared[0])
        ? { run: compared[0]!, at: Math.round(compared[1]!) }
        : null;
    const block = numbers(query.get("block"), 1);
    const group = query.get("group")?.split(":");
    if (block) selection.value = { kind: "block", row: Math.round(block[0]!) };
    else if (group && GROUP_BYS.includes(group[0] as GroupBy) && /^\d+$/.test(group[1] ?? ""))
      selection.value = { kind: "group", by: group[0] as GroupBy, id: Number(group[1]) };
    const low = numbers(query.get("addresses"), 2);
    addresses.value = low && low[1]! > low[0]! ? { low: low[0]!, high: low[1]! } : null;
    const bounds = numbers(query.get("heights"), 2);
    heights.value = bounds && bounds[1]! > bounds[0]! ? { low: bounds[0]!, high: bounds[1]! } : null;
    tab.value = query.get("tab") ?? "map";
    search.value = query.get("search") ?? "";
  });
}

/** The address of the current state, without parts that have their initial value. */
export function address(): string {
  const query = new URLSearchParams();
  const now = run.value;
  if (runId.value !== (runs.value[0]?.id ?? 0)) query.set("run", String(runId.value));
  if (otherId.value !== usualOther()) query.set("other", String(otherId.value ?? "none"));
  if (by.value !== "site") query.set("by", by.value);
  if (xAxis.value !== "event") query.set("x", xAxis.value);
  const stretch = span.value;
  if (stretch) query.set("span", `${round(stretch.from)}-${round(stretch.to)}`);
  if (heights.value)
    query.set("heights", `${Math.round(heights.value.low)}-${Math.round(heights.value.high)}`);
  if (now && moment.value !== firstMoment(now)) query.set("at", String(moment.value));
  if (interval.value) query.set("interval", `${interval.value.from}-${interval.value.to}`);
  if (base.value) query.set("base", `${base.value.run}-${base.value.at}`);
  const chosen = selection.value;
  if (chosen?.kind === "block") query.set("block", String(chosen.row));
  if (chosen?.kind === "group") query.set("group", `${chosen.by}:${chosen.id}`);
  if (addresses.value)
    query.set("addresses", `${Math.round(addresses.value.low)}-${Math.round(addresses.value.high)}`);
  if (tab.value !== "map") query.set("tab", tab.value);
  if (search.value) query.set("search", search.value);
  const text = query.toString();
  return text ? `#${text}` : location.pathname + location.search;
}

/** The parts of an address that make an entry in the history of the browser. */
function placeIn(text: string): string {
  const query = new URLSearchParams(text.startsWith("#") ? text.slice(1) : "");
  for (const part of ["span", "heights", "at", "addresses", "search", "interval"]) query.delete(part);
  return query.toString();
}

const round = (x: number) => Math.round(x * 100) / 100;

/** Updates the address shortly after the state has changed. */
export function followAddress(): void {
  let timer = 0;
  let last = placeIn(address());
  effect(() => {
    const text = address();
    clearTimeout(timer);
    const place = placeIn(text);
    timer = window.setTimeout(() => {
      // "Back" goes to the view before, not to every step of a zoom.
      if (place === last) history.replaceState(null, "", text);
      else if (location.hash !== text) history.pushState(null, "", text);
      last = place;
    }, 150);
  });
  window.addEventListener("hashchange", readAddress);
}
