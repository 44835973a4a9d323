// The segments at the chosen moment, for the views that show them.

import type { Layout, Run } from "../protocol";
import { isExported } from "../protocol/source";
import { type AnswerState, useAnswer } from "../protocol/use-answer";
import { moment } from "./store";

/** Blocks below this share of the address space are merged. */
const MAX_BLOCKS_ACROSS = 2 ** 16;
const MIN_BLOCK_LOG2_BYTES = 9;

export function useLayout(run: Run): AnswerState<Layout> {
  const at = Math.min(moment.value, run.events);
  const smallest = Math.max(
    MIN_BLOCK_LOG2_BYTES,
    Math.floor(Math.log2(Math.max(1, run.space) / MAX_BLOCKS_ACROSS)),
  );
  // An exported page has all blocks of its moments.
  return useAnswer("layout", isExported ? { run: run.id, at } : { run: run.id, at, smallest });
}
