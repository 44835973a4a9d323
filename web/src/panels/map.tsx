// The memory map: addresses over time.

import { useSignal } from "@preact/signals";
import { freeCss, shownTheme, usageCss } from "../canvas/colors";
import { gestureHandlers } from "../canvas/gesture-handlers";
import { MapView } from "../canvas/map-view";
import type { Run } from "../protocol";
import { bytes } from "../state/format";
import { useLayout } from "../state/layout-now";
import { addresses } from "../state/store";
import { Plot } from "./plot";
import { Section } from "./section";
import { PictureTip } from "./tooltip";

function handsFor(view: MapView) {
  const hands = gestureHandlers(view, view.zoomBytes, view.drag);
  return {
    ...hands,
    doubleClick: (at: Parameters<typeof hands.doubleClick>[0]) => {
      const hit = view.hitAt(at);
      hands.doubleClick(at);
      if (hit) view.zoomTo(hit);
    },
  };
}

/** The memory map, and the segments at the chosen moment. */
export function MapPanel({ run }: { run: Run }) {
  return (
    <div class="map-and-section">
      <MemoryMap run={run} />
      <Section run={run} />
    </div>
  );
}

function MemoryMap({ run }: { run: Run }) {
  const view = useSignal<MapView | null>(null);
  const layout = useLayout(run).value;
  if (view.value) view.value.layout.value = layout;
  if (run.space === 0) {
    return (
      <p class="empty">
        No segments: the snapshot was taken without them, or PyTorch's allocator never reserved memory.
      </p>
    );
  }
  const label = `Memory map of ${run.name}: ${bytes(run.space)} of addresses that were ever reserved, over the events of the run.`;
  return (
    <section class="memory-map" aria-label="Memory map">
      <div class="map-tools">
        <MapKey />
        <button
          type="button"
          disabled={addresses.value === null}
          title="Show all addresses"
          onClick={() => (addresses.value = null)}
        >
          All addresses
        </button>
      </div>
      <Plot
        key={run.id}
        make={(surface) => (view.value = new MapView(run, surface))}
        hands={handsFor}
        label={label}
      >
        {(picture) => <PictureTip of={picture} />}
      </Plot>
    </section>
  );
}

/** The key of the tones; blocks have the colours of their sites. */
function MapKey() {
  const theme = shownTheme.value;
  const entries = [
    ["in use", "linear-gradient(90deg, rgb(0 114 178) 50%, rgb(230 159 0) 50%)"],
    ["several small blocks", usageCss(theme)],
    ["free", freeCss(theme)],
    ["not reserved", "var(--panel)"],
  ] as const;
  return (
    <ul class="map-key">
      {entries.map(([words, background]) => (
        <li key={words}>
          <i class="swatch" style={{ background }} />
          {words}
        </li>
      ))}
    </ul>
  );
}
