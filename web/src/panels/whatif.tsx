// What-if: the recorded requests replayed through the allocator model, with other settings or on another GPU.

import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import type { Run, WhatIfAnswer, WhatIfQuery } from "../protocol";
import { type AnswerError, ask, isExported } from "../protocol/source";
import { asAnswerError } from "../protocol/use-answer";
import { bytes, count } from "../state/format";
import { settingIn, sizeIn, withSetting } from "../state/settings";
import { replayed } from "../state/store";
import { Outcome, verdict } from "./outcome";
import { Loading, Problem } from "./parts";

interface Trial {
  number: number;
  run: number;
  conf: string;
  gpu: number | null; // bytes of the GPU; null is the recorded one
  fraction: string;
  result: WhatIfAnswer | AnswerError | null; // null while it runs
}

/** Replays since the page was opened, newest first. */
const trials = signal<Trial[]>([]);
const shown = signal<number | null>(null);

/** The server drops older replays. */
const MAX_REPLAYS = 4;

async function replay(run: Run, conf: string, gpu: number | null, fraction: string): Promise<void> {
  const number = trials.value.length;
  const trial: Trial = { number, run: run.id, conf, gpu, fraction, result: null };
  trials.value = [trial, ...trials.value];
  shown.value = number;
  const query: WhatIfQuery = {
    run: run.id,
    conf,
    gpu: gpu ?? undefined,
    fraction: fraction ? Number(fraction) : undefined,
  };
  const result = await ask("whatif", query).catch(asAnswerError);
  trials.value = trials.value.map((each) => (each.number === number ? { ...each, result } : each));
  if ("run" in result) replayed.value = [...replayed.value, result.run].slice(-MAX_REPLAYS);
}

export function WhatIfPanel({ run }: { run: Run }) {
  if (isExported) {
    return (
      <p class="empty">
        An exported page cannot replay. Open the recording with <code>oomph view</code>, or use{" "}
        <code>oomph simulate</code>.
      </p>
    );
  }
  if (run.whatIf)
    return (
      <p class="empty">This run is itself a replay. Choose the recorded run above to try other settings.</p>
    );
  const mine = trials.value.filter((each) => each.run === run.id);
  const trial = mine.find((each) => each.number === shown.value) ?? mine[0];
  return (
    <div class="what-if">
      <Form key={run.id} run={run} busy={mine.some((each) => each.result === null)} />
      <div class="answer" aria-live="polite">
        {!trial && (
          <p class="empty">
            Would the run fit on another GPU, or with other settings? The requests of this recording are
            replayed through a model of PyTorch's allocator, event by event.
          </p>
        )}
        {trial && !trial.result && <Loading what={`Replaying ${count(run.events)} events`} />}
        {trial?.result && "message" in trial.result && <Problem of={trial.result} />}
        {trial?.result && "run" in trial.result && (
          <Outcome recorded={run} whatIf={trial.result} gpu={trial.gpu} />
        )}
        {mine.length > 1 && <History of={mine} chosen={trial!} />}
      </div>
    </div>
  );
}

function named(trial: Trial): string {
  const card = trial.gpu
    ? `${bytes(trial.gpu)}${trial.fraction ? ` × ${trial.fraction}` : ""}`
    : "recorded GPU";
  return `${trial.conf || "recorded settings"}, ${card}`;
}

function History({ of, chosen }: { of: Trial[]; chosen: Trial }) {
  return (
    <>
      <h3>Tried so far</h3>
      <ol class="history">
        {of.map((trial) => (
          <li key={trial.number}>
            <button
              type="button"
              class="quiet"
              aria-pressed={trial === chosen}
              onClick={() => (shown.value = trial.number)}
            >
              <code>{named(trial)}</code>
              <span>{!trial.result ? "…" : "run" in trial.result ? verdict(trial.result) : "no answer"}</span>
            </button>
          </li>
        ))}
      </ol>
    </>
  );
}

const GPU_SIZES_GIB = [8, 16, 24, 40, 48, 80, 141];

function Form({ run, busy }: { run: Run; busy: boolean }) {
  const [conf, setConf] = useState(run.settings);
  const [gpu, setGpu] = useState("");
  const [fraction, setFraction] = useState("");
  const card = gpu.trim() ? sizeIn(gpu) : null;
  const isUnclear = gpu.trim() !== "" && card === null;
  const field = (name: string) => ({
    value: settingIn(conf, name),
    onInput: (event: { currentTarget: { value: string } }) =>
      setConf(withSetting(conf, name, event.currentTarget.value)),
  });
  return (
    <form
      class="form"
      onSubmit={(event) => {
        event.preventDefault();
        if (!isUnclear) void replay(run, conf.trim(), card, card ? fraction : "");
      }}
    >
      <fieldset>
        <legend>GPU memory in GiB</legend>
        <div class="presets">
          <button type="button" aria-pressed={gpu === ""} onClick={() => setGpu("")}>
            as recorded
          </button>
          {GPU_SIZES_GIB.map((size) => (
            <button
              key={size}
              type="button"
              aria-pressed={gpu === `${size} GiB`}
              onClick={() => setGpu(`${size} GiB`)}
            >
              {size}
            </button>
          ))}
        </div>
        <div class="pair">
          <label>
            <span>another size</span>
            <input
              type="text"
              placeholder="20 GiB"
              value={gpu}
              aria-invalid={isUnclear}
              onInput={(event) => setGpu(event.currentTarget.value)}
            />
          </label>
          <label title="What `set_per_process_memory_fraction` would allow">
            <span>usable share</span>
            <input
              type="number"
              min="0.05"
              max="1"
              step="0.05"
              placeholder="1"
              disabled={!gpu}
              value={fraction}
              onInput={(event) => setFraction(event.currentTarget.value)}
            />
          </label>
        </div>
        {isUnclear && <p class="caveat">A size is a number with a unit: 20 GiB.</p>}
      </fieldset>
      <fieldset>
        <legend>Allocator settings</legend>
        <label>
          <code>expandable_segments</code>
          <select {...field("expandable_segments")}>
            <option value="">not set</option>
            <option value="True">True</option>
            <option value="False">False</option>
          </select>
        </label>
        <label>
          <code>max_split_size_mb</code>
          <input type="number" min="1" step="1" placeholder="no limit" {...field("max_split_size_mb")} />
        </label>
        <label>
          <code>roundup_power2_divisions</code>
          <input type="text" placeholder="none" {...field("roundup_power2_divisions")} />
        </label>
        <label>
          <code>garbage_collection_threshold</code>
          <input
            type="number"
            min="0.05"
            max="0.95"
            step="0.05"
            placeholder="off"
            {...field("garbage_collection_threshold")}
          />
        </label>
        <label class="line">
          <code>PYTORCH_CUDA_ALLOC_CONF</code>
          <input
            type="text"
            spellcheck={false}
            placeholder="empty: as recorded"
            value={conf}
            onInput={(event) => setConf(event.currentTarget.value)}
          />
        </label>
      </fieldset>
      <button type="submit" class="primary" disabled={busy || isUnclear}>
        {busy ? "Replaying…" : "Replay"}
      </button>
    </form>
  );
}
