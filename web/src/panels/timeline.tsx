// Memory over time, as bands.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { gestureHandlers } from "../canvas/gesture-handlers";
import { isChosen } from "../canvas/paints";
import { answerProbes } from "../canvas/probe";
import { listenForTimelineKeys } from "../canvas/timeline-keys";
import { TimelineView } from "../canvas/timeline-view";
import type { Run } from "../protocol";
import { bytes, count, counted } from "../state/format";
import { runName } from "../state/names";
import { run as chosen, other } from "../state/store";
import { Legend } from "./legend";
import { Minimap } from "./minimap";
import { Plot } from "./plot";
import { TimelineTools } from "./timeline-tools";
import { PictureTip } from "./tooltip";

const handsFor = (view: TimelineView) => gestureHandlers(view, view.zoomBytes, view.drag);

function sentence(run: Run): string {
  const failures = run.ooms.length ? ` It ran out of memory ${counted(run.ooms.length, "time")}.` : "";
  return `Allocated memory of ${run.name} over ${counted(run.events, "event")}, at most ${bytes(run.peak.bytes)}, at event ${count(Math.max(0, run.peak.position - 1))}.${failures}`;
}

export function Timeline({ run }: { run: Run }) {
  const isMain = isChosen(run);
  const isLast = !other.value || !isMain;
  const view = useSignal<TimelineView | null>(null);
  useEffect(() => (isMain ? listenForTimelineKeys() : undefined), [isMain]);
  const make = (surface: ConstructorParameters<typeof TimelineView>[1]) => {
    const made = new TimelineView(run, surface);
    view.value = made;
    if (isMain) answerProbes(made);
    return made;
  };
  return (
    <section class="timeline" aria-label={`Timeline of ${run.name}`}>
      {isMain && <TimelineTools run={run} />}
      {other.value && <p class="timeline-name">{runName(run)}</p>}
      <div class="timeline-body">
        <div class="timeline-pictures">
          <Plot key={run.id} make={make} hands={handsFor} label={sentence(run)}>
            {(picture) => (
              <>
                {run.events === 0 && (
                  <p class="plot-note">This snapshot has no history: only its final state is known.</p>
                )}
                <PictureTip of={picture} />
              </>
            )}
          </Plot>
          {isLast && chosen.value && <Minimap key={chosen.value.id} run={chosen.value} />}
        </div>
        {view.value && <Legend key={run.id} of={view.value} />}
      </div>
    </section>
  );
}
