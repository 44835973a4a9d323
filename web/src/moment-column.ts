// The column of a tile that shows exactly the chosen moment.

import { useEffect, useState } from "preact/hooks";
import type { By } from "./protocol";
import { columnOf, type Prepared } from "./raster";
import { moment } from "./store";
import { finestAt } from "./tiles";
import type { TimelineView } from "./timeline-view";

export interface MomentColumn {
  tile: Prepared;
  column: number;
  by: By;
}

/** A moment that stands this long is asked for. */
const REST_MS = 120;

/** The drawn tile has it where the moment was chosen by pointing at it; otherwise the finest tile is asked for. */
export function useMomentColumn(view: TimelineView): MomentColumn | null {
  const [asked, setAsked] = useState<MomentColumn | null>(null);
  const at = Math.min(moment.value, view.run.events);
  const by = view.by();
  const drawn = view.seen.value.tile;
  const column = drawn ? columnOf(drawn, at) : -1;
  const isDrawn = drawn !== null && column >= 0 && drawn.position[column] === at;

  useEffect(() => {
    if (isDrawn) return;
    let isHere = true;
    const timer = setTimeout(async () => {
      const tile = await finestAt(view.run, by, at, view.smallest());
      if (tile && isHere) setAsked({ tile, column: Math.floor(at / 2 ** tile.level) - tile.first, by });
    }, REST_MS);
    return () => {
      isHere = false;
      clearTimeout(timer);
    };
  }, [isDrawn, at, by]);

  if (isDrawn) return { tile: drawn, column, by };
  return asked?.by === by ? asked : null;
}
