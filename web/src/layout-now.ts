// The segments at the chosen moment, for the views that show them.

import { useAnswer, type Answer } from "./answers";
import type { Layout, Query, Run } from "./protocol";
import { isExported, stored } from "./source";
import { moment } from "./store";

/** Blocks below this share of the address space are merged. */
const FINEST_SHARE = 2 ** 16;
const SMALLEST_BLOCK = 9;

/** Of an exported page: the nearest moment whose segments it has. */
function nearestStored(run: Run, at: number): Query | null {
  const all = stored("layout").filter((query) => Number(query.run) === run.id);
  const distance = (query: Query) => Math.abs(Number(query.at) - at);
  return all.reduce<Query | null>((best, query) => (!best || distance(query) < distance(best) ? query : best), null);
}

export function useLayout(run: Run): Answer<Layout> {
  const at = Math.min(moment.value, run.events);
  const smallest = Math.max(SMALLEST_BLOCK, Math.floor(Math.log2(Math.max(1, run.space) / FINEST_SHARE)));
  return useAnswer<Layout>("layout", (isExported && nearestStored(run, at)) || { run: run.id, at, smallest });
}
