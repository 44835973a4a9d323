// Taking every view to a place.

import { batch } from "@preact/signals";
import { answerTo } from "./answers";
import { goTo, show, showAround } from "./navigate";
import type { Block, Finding, Run } from "./protocol";
import * as store from "./store";

/** A moment, and the part of the timeline that has it. */
export function showMoment(of: Run, position: number): void {
  const within = Math.min(Math.max(0, position), of.events);
  if (store.xAxis.value === "event") return goTo(within, 0);
  batch(() => {
    store.moment.value = within;
    // Where a position lies in time is not known here: the whole run has it for sure.
    store.span.value = null;
  });
}

/** The evidence of a finding. */
export function showFinding({ focus }: Finding): void {
  batch(() => {
    store.xAxis.value = "event";
    show({ from: focus.from, to: Math.max(focus.to, focus.from + 1) });
    store.heights.value = null;
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

/** The life of a block, with something of what was before and after. */
export async function showLife(of: Run, row: number): Promise<void> {
  // If there is no answer, the details say why.
  store.selection.value = { kind: "block", row };
  const block = await answerTo<Block>("block", { run: of.id, row }).catch(() => null);
  if (!block) return;
  const life = lifeOf(block, of);
  batch(() => {
    if (store.moment.value < life.from || store.moment.value > life.to) store.moment.value = life.from;
    if (store.xAxis.value === "event") return showAround(life);
    const whole = store.extent(of, "time");
    showAround({ from: block.bornUs ?? whole.from, to: block.freedUs ?? whole.to });
  });
}

/** The positions at which a block is live: the first after its birth, the last before its end. */
function lifeOf(block: Block, of: Run): store.Span {
  return { from: block.born === null ? 0 : block.born + 1, to: block.freed ?? of.events };
}

/** A part of the address space, in the memory map. */
export function showAddresses(low: number, high: number): void {
  store.addresses.value = { low, high };
}
