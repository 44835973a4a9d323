// The panels below the timeline.

import { overview, tab, type Tab } from "./store";

const TABS: { tab: Tab; label: string }[] = [
  { tab: "map", label: "Memory map" },
  { tab: "flame", label: "Flame graph" },
  { tab: "table", label: "Table" },
  { tab: "whatif", label: "What if" },
  { tab: "holders", label: "Holders" },
  { tab: "ranks", label: "Ranks" },
];

/** The panels that this input has. */
export function tabsOf(): { tab: Tab; label: string }[] {
  return TABS.filter((each) => each.tab !== "ranks" || overview.value?.relation === "ranks");
}

/** The panel to show: an address may name one that this input does not have. */
export function openTab(): Tab {
  return tabsOf().some((each) => each.tab === tab.value) ? tab.value : "map";
}

export function Tabs() {
  const all = tabsOf();
  const open = openTab();
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
