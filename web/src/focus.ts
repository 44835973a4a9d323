// Taking every view to a place.

import { batch } from "@preact/signals";
import { answerTo } from "./answers";
import type { Block, Finding, Run } from "./protocol";
import * as store from "./store";

/** A moment, and the part of the timeline that has it. */
export function showMoment(of: Run, position: number): void {
  batch(() => {
    store.moment.value = Math.min(Math.max(0, position), of.events);
    const span = store.span.value;
    if (!span) return;
    // Where a position lies in time is not known here: the whole run has it for sure.
    if (store.xAxis.value === "time") store.span.value = null;
    else if (position < span.from || position > span.to) {
      const half = (span.to - span.from) / 2;
      store.span.value = within(of, position - half, position + half);
    }
  });
}

/** The evidence of a finding. */
export function showFinding(of: Run, { focus }: Finding): void {
  batch(() => {
    store.xAxis.value = "event";
    store.span.value = within(of, focus.from, focus.to);
    store.ceiling.value = null;
    store.addresses.value = null;
    store.interval.value = null;
    store.by.value = "site";
    store.moment.value = focus.position;
    store.selection.value = focus.group === null ? null : { kind: "group", by: "site", id: focus.group };
  });
}

/** Whether the views are where a click on the finding takes them. */
export function isShown({ focus }: Finding): boolean {
  const chosen = store.selection.value;
  if (store.moment.value !== focus.position) return false;
  return focus.group === null ? chosen === null : chosen?.kind === "group" && chosen.by === "site" && chosen.id === focus.group;
}

/** The positions at which a block is live: the first after its birth, the last before its end. */
export function lifeOf(block: Block, of: Run): store.Span {
  return { from: block.born === null ? 0 : block.born + 1, to: block.freed ?? of.events };
}

/** The life of a block, with something of what was before and after. */
export async function showLife(of: Run, row: number): Promise<void> {
  const block = await answerTo<Block>("block", { run: of.id, row });
  const life = lifeOf(block, of);
  batch(() => {
    store.selection.value = { kind: "block", row };
    if (store.moment.value < life.from || store.moment.value > life.to) store.moment.value = life.from;
    if (store.xAxis.value === "time") {
      const whole = store.extent(of, "time");
      const { from, to } = { from: block.bornUs ?? whole.from, to: block.freedUs ?? whole.to };
      const margin = Math.max(1, (to - from) * 0.1);
      store.span.value = { from: Math.max(whole.from, from - margin), to: Math.min(to + margin, whole.to) };
    } else {
      const margin = Math.max(8, (life.to - life.from) * 0.1);
      store.span.value = within(of, life.from - margin, life.to + margin);
    }
  });
}

/** A part of the address space, in the memory map. */
export function showAddresses(low: number, high: number): void {
  store.addresses.value = { low, high };
}

function within(of: Run, from: number, to: number): store.Span | null {
  const whole = store.extent(of, "event");
  const low = Math.max(whole.from, Math.floor(from));
  const high = Math.min(whole.to, Math.max(Math.ceil(to), low + 1));
  return low <= whole.from && high >= whole.to ? null : { from: low, to: high };
}
