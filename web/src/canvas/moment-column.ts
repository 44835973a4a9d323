// The column of a tile that shows exactly the chosen moment.

import { useEffect, useState } from "preact/hooks";
import { MERGED, type TimelineBy } from "../protocol";
import { moment } from "../state/store";
import { columnOf, type Prepared } from "./raster";
import { finestAt } from "./tiles";
import type { TimelineView } from "./timeline-view";

export interface MomentColumn {
  tile: Prepared;
  column: number;
  by: TimelineBy;
}

/** How long a moment has to stay before its column is loaded. */
const LOOKUP_DELAY_MS = 120;

function drawnColumn(view: TimelineView, at: number): MomentColumn | null {
  const { tile } = view.seen.value;
  const column = tile ? columnOf(tile, at) : -1;
  return tile && column >= 0 && tile.position[column] === at ? { tile, column, by: view.by() } : null;
}

function hasMerged({ tile, column }: MomentColumn): boolean {
  return tile.id.subarray(tile.start[column]!, tile.end[column]!).includes(MERGED);
}

/**
 * The drawn tile has the column if the moment was chosen in it. Otherwise, or if groups are merged in it,
 * the finest tile is loaded.
 */
export function useMomentColumn(view: TimelineView): MomentColumn | null {
  const [asked, setAsked] = useState<(MomentColumn & { at: number }) | null>(null);
  const at = Math.min(moment.value, view.run.events);
  const by = view.by();
  const drawn = drawnColumn(view, at);
  const isEnough = drawn !== null && (by === "block" || !hasMerged(drawn));

  useEffect(() => {
    if (isEnough) return;
    let isHere = true;
    const timer = setTimeout(async () => {
      const tile = await finestAt(view.run, by, at, by === "block" ? view.smallest() : 0);
      if (tile && isHere) setAsked({ tile, column: Math.floor(at / 2 ** tile.level) - tile.first, by, at });
    }, LOOKUP_DELAY_MS);
    return () => {
      isHere = false;
      clearTimeout(timer);
    };
  }, [isEnough, at, by]);

  const isAnswered = asked?.by === by && asked.at === at;
  if (isEnough || (drawn && !isAnswered)) return drawn;
  return asked?.by === by ? asked : null;
}
