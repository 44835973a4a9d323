// The toolbar of the timeline.

import type { Run, TimelineBy } from "../protocol";
import { rulerIsOn, showAll, turnTo, zoom } from "../state/navigate";
import { by, xAxis } from "../state/store";

const BY_WORDS: Record<TimelineBy, string> = {
  site: "line of code",
  category: "category",
  module: "module",
  stack: "call stack",
  size: "block size",
  block: "single blocks",
};

const ZOOM_FACTOR = 0.6;

export function TimelineTools({ run }: { run: Run }) {
  return (
    <div class="timeline-tools" role="toolbar" aria-label="Timeline">
      <label>
        <span class="dim">Bands by</span>
        <select value={by.value} onChange={(event) => (by.value = event.currentTarget.value as TimelineBy)}>
          {run.groupings.map((each) => (
            <option key={each} value={each}>
              {BY_WORDS[each]}
            </option>
          ))}
        </select>
      </label>
      <AxisChoice run={run} />
      <span class="buttons">
        <button
          type="button"
          aria-label="Zoom out"
          title="Zoom out (-)"
          onClick={() => zoom(1 / ZOOM_FACTOR)}
        >
          −
        </button>
        <button type="button" aria-label="Zoom in" title="Zoom in (+)" onClick={() => zoom(ZOOM_FACTOR)}>
          +
        </button>
        <button type="button" title="Show the whole run (Home)" onClick={showAll}>
          All
        </button>
      </span>
      <button
        type="button"
        aria-pressed={rulerIsOn.value}
        title="Drag to measure (r, or alt + drag)"
        onClick={() => (rulerIsOn.value = !rulerIsOn.value)}
      >
        Ruler
      </button>
    </div>
  );
}

function AxisChoice({ run }: { run: Run }) {
  const hasClock = run.endUs > run.beginUs;
  const button = (axis: "event" | "time", words: string, title: string) => (
    <button
      type="button"
      aria-pressed={xAxis.value === axis}
      disabled={axis === "time" && !hasClock}
      title={title}
      onClick={() => turnTo(axis, run)}
    >
      {words}
    </button>
  );
  return (
    <span class="buttons" role="group" aria-label="Horizontal axis">
      {button("event", "Events", "Every event is as wide as any other: busy phases have room")}
      {button(
        "time",
        "Time",
        hasClock ? "Wall clock" : "This recording has no times: its snapshot was taken without a clock",
      )}
    </span>
  );
}
