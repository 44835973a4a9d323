// The panels below the timeline, and their tabs. A new panel is a line of the table.

import type { ComponentType } from "preact";
import type { Run } from "../protocol";
import { overview, run, tab } from "../state/store";
import { FlamePanel } from "./flame";
import { HoldersPanel } from "./holders";
import { MapPanel } from "./map";
import { ProcessPanel } from "./process";
import { RanksPanel } from "./ranks";
import { TablePanel } from "./table";
import { WhatIfPanel } from "./whatif";

interface PanelEntry {
  /** Name in the address of the page. */
  tab: string;
  label: string;
  Panel: ComponentType<{ run: Run }>;
  /** Whether these inputs have it; always if absent. */
  isThere?: () => boolean;
}

const PANELS: [PanelEntry, ...PanelEntry[]] = [
  { tab: "map", label: "Memory map", Panel: MapPanel },
  { tab: "flame", label: "Flame graph", Panel: FlamePanel },
  { tab: "table", label: "Table", Panel: TablePanel },
  { tab: "whatif", label: "What if", Panel: WhatIfPanel },
  { tab: "holders", label: "Holders", Panel: HoldersPanel },
  { tab: "process", label: "Process", Panel: ProcessPanel, isThere: () => run.value?.hasProcess ?? false },
  { tab: "ranks", label: "Ranks", Panel: RanksPanel, isThere: () => overview.value?.relation === "ranks" },
];

/** The panels that these inputs have. */
export function panels(): PanelEntry[] {
  return PANELS.filter(({ isThere }) => isThere?.() ?? true);
}

/** The panel to show: an address may name one that these inputs do not have. */
export function openPanel(): PanelEntry {
  return panels().find((each) => each.tab === tab.value) ?? PANELS[0];
}

export function Tabs() {
  const all = panels();
  const open = openPanel().tab;
  const move = (event: KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const next = all[(all.findIndex((each) => each.tab === open) + step + all.length) % all.length]!;
    tab.value = next.tab;
    document.getElementById(`tab-${next.tab}`)?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label="Views" onKeyDown={move}>
      {all.map((each, place) => (
        <button
          key={each.tab}
          id={`tab-${each.tab}`}
          type="button"
          role="tab"
          aria-selected={each.tab === open}
          aria-controls="panel"
          tabIndex={each.tab === open ? 0 : -1}
          title={`Key ${place + 1}`}
          onClick={() => (tab.value = each.tab)}
        >
          {each.label}
        </button>
      ))}
    </div>
  );
}
