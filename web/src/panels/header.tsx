// The header: the run, its numbers, and which run to compare with.

import type { Signal } from "@preact/signals";
import type { Run } from "../protocol";
import { showMoment } from "../state/focus";
import { bytes, count, counted } from "../state/format";
import { openOther, openRun } from "../state/inputs";
import { runName, shortName } from "../state/names";
import { otherId, overview, runs } from "../state/store";
import { isDark, toggleTheme } from "../state/theme";
import { helpIsOpen } from "./keys";
import { Words } from "./parts";

export function Header({ run, side }: { run: Run; side: Signal<boolean> }) {
  return (
    <header class="header">
      <button
        type="button"
        class="quiet icon"
        aria-pressed={side.value}
        aria-label="Findings and details"
        title="Findings and details"
        onClick={() => (side.value = !side.value)}
      >
        ☰
      </button>
      <strong class="brand">oomph</strong>
      <Described run={run} />
      <Caveats of={run.caveats} />
      <div class="numbers">
        <Figure label="peak" value={run.peak.bytes} of={run} at={run.peak.position} />
        <Figure label="reserved" value={run.reservedPeak.bytes} of={run} at={run.reservedPeak.position} />
        <Figure label="at end" value={run.end.allocated} of={run} at={run.events} />
      </div>
      <OtherChooser run={run} />
      <button
        type="button"
        class="quiet icon"
        aria-label={isDark() ? "Light theme" : "Dark theme"}
        title={`${isDark() ? "Light" : "Dark"} theme (t)`}
        onClick={toggleTheme}
      >
        {isDark() ? "☀" : "☾"}
      </button>
      <button
        type="button"
        class="quiet icon"
        aria-label="Help"
        title="Keys and mouse (?)"
        onClick={() => (helpIsOpen.value = true)}
      >
        ?
      </button>
    </header>
  );
}

function Described({ run }: { run: Run }) {
  const steps = run.steps.bounds.length - 1;
  const parts = [
    run.card ? `${run.device}, ${run.card}` : run.device,
    run.torch,
    `${counted(run.events, "event")}, ${run.complete ? "complete" : "truncated: the beginning is missing"}`,
    steps > 0 ? `${counted(steps, "step")} (${run.steps.source})` : "no steps",
    run.settings,
    overview.value?.exported &&
      `exported page with ${counted(overview.value.exported.moments[run.id]?.length ?? 0, "moment")}`,
  ].filter(Boolean);
  const words = parts.join(" · ");
  return (
    <p class="described" title={`${run.name} · ${words}`}>
      {hasOthers() ? <RunChooser run={run} /> : <b>{shortName(run.name)}</b>}
      <span class="dim"> · {words}</span>
    </p>
  );
}

const TITLES: Record<string, string> = {
  peak: "Peak of allocated memory",
  reserved: "Peak of memory reserved from the device",
  "at end": "Allocated after the last event",
};

function Figure({ label, value, of, at }: { label: string; value: number; of: Run; at: number }) {
  const title = `${TITLES[label]}: ${count(value)} bytes. Click to go there`;
  return (
    <button type="button" class="number" title={title} onClick={() => showMoment(of, at)}>
      <span>{label}</span>
      <b>{bytes(value)}</b>
    </button>
  );
}

function Caveats({ of }: { of: string[] }) {
  if (!of.length) return null;
  return (
    <>
      <button type="button" class="caveat-button" popovertarget="caveats">
        ⚠ {counted(of.length, "caveat")}
      </button>
      <div id="caveats" class="popover" popover="auto">
        <h2>Caveats</h2>
        <ul>
          {of.map((caveat) => (
            <li key={caveat}>
              <Words text={caveat} />
            </li>
          ))}
        </ul>
      </div>
    </>
  );
}

/** Inputs up to which all can be chosen here; of more, only those that someone has looked at. */
const MAX_LISTED = 64;

/** Inputs that are not read yet: the number of their first run, and their path. */
function unread(): [number, string][] {
  const inputs = overview.value?.inputs ?? [];
  if (inputs.length > MAX_LISTED) return [];
  const read = new Set(runs.value.map((each) => each.input));
  return inputs.map((name, input): [number, string] => [input, name]).filter(([input]) => !read.has(input));
}

const hasOthers = () => runs.value.length + unread().length > 1;

function RunChooser({ run }: { run: Run }) {
  return (
    <select
      class="run"
      aria-label="Run"
      value={run.id}
      onChange={(event) => openRun(+event.currentTarget.value)}
    >
      <Options of={runs.value} />
    </select>
  );
}

function OtherChooser({ run }: { run: Run }) {
  if (!hasOthers()) return null;
  return (
    <label class="other">
      <span class="dim">compare with</span>
      <select
        value={otherId.value ?? ""}
        onChange={(event) => openOther(event.currentTarget.value === "" ? null : +event.currentTarget.value)}
      >
        <option value="">nothing</option>
        <Options of={runs.value.filter((each) => each.id !== run.id)} />
      </select>
    </label>
  );
}

const named = ([input, path]: [number, string]): [number, string] => [input, shortName(path)];

function Options({ of }: { of: Run[] }) {
  return (
    <>
      {[...of.map((run): [number, string] => [run.id, runName(run)]), ...unread().map(named)]
        .sort(([one], [other]) => one - other)
        .map(([id, name]) => (
          <option key={id} value={id}>
            {name}
          </option>
        ))}
    </>
  );
}
