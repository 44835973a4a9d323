// Moving every view to a moment, a finding, a block or addresses.

import { batch } from "@preact/signals";
import type { BlockDetails, FindingCard, Run } from "../protocol";
import { answerTo } from "../protocol/use-answer";
import { goTo, show, showAround } from "./navigate";
import * as store from "./store";

/** Shows a moment, and the part of the timeline around it. */
export function showMoment(of: Run, position: number): void {
  const within = Math.min(Math.max(0, position), of.events);
  if (store.xAxis.value === "event") {
    goTo(within, 0);
    return;
  }
  batch(() => {
    store.moment.value = within;
    // The time of a position is not known here, so the whole run is shown.
    store.span.value = null;
  });
}

/** Shows the evidence of a finding in every view. */
export function showFinding({ focus }: FindingCard): void {
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
export function isShown({ focus }: FindingCard): boolean {
  const chosen = store.selection.value;
  if (store.moment.value !== focus.position) return false;
  return focus.group === null
    ? chosen === null
    : chosen?.kind === "group" && chosen.by === "site" && chosen.id === focus.group;
}

/** Shows the lifetime of a block, with a margin. */
export async function showLifetime(of: Run, row: number): Promise<void> {
  // If there is no answer, the details say why.
  store.selection.value = { kind: "block", row };
  const block = await answerTo("block", { run: of.id, row }).catch(() => null);
  if (!block) return;
  const life = lifetimeOf(block, of);
  batch(() => {
    if (store.moment.value < life.from || store.moment.value > life.to) store.moment.value = life.from;
    if (store.xAxis.value === "event") return showAround(life);
    const whole = store.extent(of, "time");
    showAround({ from: block.allocUs ?? whole.from, to: block.freeUs ?? whole.to });
  });
}

/** The positions at which a block is allocated. */
function lifetimeOf(block: BlockDetails, of: Run): store.Span {
  return { from: block.allocEvent === null ? 0 : block.allocEvent + 1, to: block.freeEvent ?? of.events };
}

/** Shows a part of the address space in the memory map. */
export function showAddresses(low: number, high: number): void {
  store.addresses.value = { low, high };
}
