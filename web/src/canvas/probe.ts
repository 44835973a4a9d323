// Functions of the page for tests in a browser.

import { by, run } from "../state/store";
import { allDrawn, frameTimes } from "./drawloop";
import { finestAt, isWaiting } from "./tiles";
import type { TimelineView } from "./timeline-view";

declare global {
  interface Window {
    oomph: {
      /** How long the last frames took to draw, in milliseconds. */
      frames: number[];
      /** Bytes of all bands that are drawn at a position, at the finest level. */
      drawnAt(position: number): Promise<number>;
      /** Whether nothing is loading and everything is drawn. */
      settled(): boolean;
    };
  }
}

export function answerProbes(view: TimelineView): void {
  window.oomph = {
    frames: frameTimes,
    settled: () => !isWaiting() && allDrawn(),
    async drawnAt(position) {
      const tile = run.value && (await finestAt(run.value, by.value, position, view.smallest()));
      if (!tile) throw new Error("there is no picture of this position");
      const column = Math.floor(position / 2 ** tile.level) - tile.first;
      if (tile.position[column] !== position) throw new Error("no column shows this position");
      return tile.size
        .subarray(tile.start[column]!, tile.end[column]!)
        .reduce((sum, bytes) => sum + bytes, 0);
    },
  };
}
