// The selection in a picture: which of its slices stand out.

import { effect, signal } from "@preact/signals";
import type { BlockDetails, Run, TimelineBy } from "../protocol";
import { answerTo } from "../protocol/use-answer";
import { run as chosenRun, selection } from "../state/store";
import { groupingOf, isChosen, ownNumber } from "./paints";
import type { Focus, Prepared } from "./raster";

/** The selected block, once its details are loaded. */
export const selectedBlock = signal<BlockDetails | null>(null);

effect(() => {
  const chosen = selection.value;
  const run = chosenRun.value;
  if (chosen?.kind !== "block" || !run) {
    selectedBlock.value = null;
    return;
  }
  answerTo("block", { run: run.id, row: chosen.row }).then(
    (block) => {
      const now = selection.peek();
      if (now?.kind === "block" && now.row === block.row && chosenRun.peek() === run)
        selectedBlock.value = block;
    },
    // The details panel shows the reason.
    () => (selectedBlock.value = null),
  );
});

/** What stands out in a tile that is grouped by `by`. */
export function focusIn(tile: Prepared, run: Run, by: TimelineBy, hovered: number | null): Focus {
  const none: Focus = { row: null, group: null, hovered };
  const chosen = selection.value;
  if (!chosen) return none;
  if (chosen.kind === "group") {
    return chosen.by === groupingOf(by)
      ? { ...none, group: ownNumber(run, chosen.by, chosen.id, tile) }
      : none;
  }
  if (by === "block") return isChosen(run) ? { ...none, row: chosen.row } : none;
  const block = selectedBlock.value;
  return by === "site" && block ? { ...none, group: ownNumber(run, "site", block.group, tile) } : none;
}
