// The page: what is wrong on the left, the picture on the right, the views of a moment below it.

import { signal } from "@preact/signals";
import { Details } from "./details";
import { Findings } from "./findings";
import { FlamePanel } from "./flame";
import { Header } from "./header";
import { Help } from "./help";
import { HoldersPanel } from "./holders";
import { kept } from "./kept";
import { MemoryMap } from "./map";
import type { Run } from "./protocol";
import { RanksPanel } from "./ranks";
import { Section } from "./section";
import { Splitter } from "./splitter";
import { other, run } from "./store";
import { TablePanel } from "./table";
import { openTab, Tabs } from "./tabs";
import { Timeline } from "./timeline";
import { WhatIfPanel } from "./whatif";

const sideWidth = kept("side", window.innerWidth < 2000 ? 340 : 420);
/** Share of the height that the timeline has. */
const timelineShare = kept("timeline", 0.45);
const sideIsOpen = signal(window.innerWidth >= 900);

export function App() {
  const shown = run.value;
  if (!shown) return <p class="empty">There is nothing in this input that allocates memory.</p>;
  return (
    <div class="app">
      <Header run={shown} side={sideIsOpen} />
      <div class={sideIsOpen.value ? "body" : "body without-side"}>
        {sideIsOpen.value && (
          <>
            <aside class="side" style={{ width: `${sideWidth.value}px` }}>
              <Findings run={shown} />
              <Details run={shown} />
            </aside>
            <Splitter
              label="Width of the left column"
              axis="x"
              value={sideWidth}
              lowest={240}
              highest={640}
              keyStep={20}
              at={(place, around) => place.x - around.left}
            />
          </>
        )}
        <main class="centre">
          <div class="timelines" style={{ flexBasis: `${timelineShare.value * 100}%` }}>
            <Timeline run={shown} />
            {other.value && <Timeline run={other.value} />}
          </div>
          <Splitter
            label="Height of the timeline"
            axis="y"
            value={timelineShare}
            lowest={0.15}
            highest={0.85}
            keyStep={0.05}
            at={(place, around) => (place.y - around.top) / around.height}
          />
          <Tabs />
          <section class="panel" id="panel" role="tabpanel" aria-labelledby={`tab-${openTab()}`}>
            <Panel run={shown} />
          </section>
        </main>
      </div>
      <Help />
    </div>
  );
}

function Panel({ run }: { run: Run }) {
  switch (openTab()) {
    case "map":
      return (
        <div class="map-and-section">
          <MemoryMap run={run} />
          <Section run={run} />
        </div>
      );
    case "flame":
      return <FlamePanel run={run} />;
    case "table":
      return <TablePanel run={run} />;
    case "whatif":
      return <WhatIfPanel run={run} />;
    case "holders":
      return <HoldersPanel run={run} />;
    case "ranks":
      return <RanksPanel />;
  }
}
