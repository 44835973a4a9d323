// The page: findings and details on the left, the timeline on the right, the panels below it.

import { signal } from "@preact/signals";
import { Details } from "./panels/details";
import { Findings } from "./panels/findings";
import { Header } from "./panels/header";
import { Help } from "./panels/help";
import { Splitter } from "./panels/splitter";
import { openPanel, Tabs } from "./panels/tabs";
import { Timeline } from "./panels/timeline";
import { persisted } from "./state/persisted";
import { other, run } from "./state/store";

const sideWidth = persisted("side", window.innerWidth < 2000 ? 340 : 420);
/** Share of the height that the timeline has. */
const timelineShare = persisted("timeline", 0.45);
const sideIsOpen = signal(window.innerWidth >= 900);

export function App() {
  const shown = run.value;
  const open = openPanel();
  if (!shown) return <p class="empty">This input has no device with allocated memory.</p>;
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
          <section class="panel" id="panel" role="tabpanel" aria-labelledby={`tab-${open.tab}`}>
            <open.Panel run={shown} />
          </section>
        </main>
      </div>
      <Help />
    </div>
  );
}
