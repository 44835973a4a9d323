// Memory by call stack, as a flame graph or a tree map: at the chosen moment, over the brushed interval, or
// as a difference.

import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { bytesOfMatches, follow, type Trail } from "../canvas/frames";
import type { FlameAnswer, FlameQuery, Run } from "../protocol";
import { isExported } from "../protocol/source";
import { useAnswer } from "../protocol/use-answer";
import { bytes, change, percent } from "../state/format";
import { runName } from "../state/names";
import { persisted } from "../state/persisted";
import { base, interval, moment, other, search } from "../state/store";
import type { HoveredBox } from "./boxes";
import { Crumbs, FrameTip } from "./frametip";
import { Icicle } from "./icicle";
import { Answered, Choice, SearchField } from "./parts";
import { TreeMap } from "./treemap";

const shape = persisted<"flame" | "tree">("flame", "flame");
const zoom = signal<Trail>([]);

function question(run: Run): FlameQuery {
  const compared = base.value ? { base_run: base.value.run, base_at: base.value.at } : {};
  const stretch = interval.value;
  return stretch
    ? { run: run.id, from: stretch.from, to: stretch.to, ...compared }
    : { run: run.id, at: moment.value, ...compared };
}

export function FlamePanel({ run }: { run: Run }) {
  const answer = useAnswer("flame", question(run));
  return (
    <div class="flame-panel">
      <div class="toolbar">
        <Choice
          label="Shape"
          value={shape.value}
          options={[
            ["flame", "Flame graph"],
            ["tree", "Tree map"],
          ]}
          onChoose={(value) => (shape.value = value)}
        />
        <Said answer={answer.value} at={answer.at} />
        <SearchField
          value={search.value}
          hint="Highlight function or file"
          onSearch={(text) => (search.value = text)}
        />
        <Compare run={run} />
      </div>
      <Difference answer={answer.value} />
      <Answered answer={answer}>{(value) => <Picture answer={value} />}</Answered>
    </div>
  );
}

/** The amount and the moment, in words. */
function Said({ answer, at }: { answer: FlameAnswer | null; at: number | null }) {
  if (!answer) return <p class="said" />;
  const { root, what } = answer;
  const found = search.value ? bytesOfMatches(root, search.value) : null;
  return (
    <p class="said">
      <b>{bytes(root.bytes)}</b> allocated, {what}
      {at !== null && at !== moment.value && isExported && (
        <span class="dim"> (nearest exported moment)</span>
      )}
      {found !== null && (
        <span class="dim">
          {" "}
          · matches hold {bytes(found)} ({percent(found, root.bytes)})
        </span>
      )}
    </p>
  );
}

/** The comparison, with a key of its colours. */
function Difference({ answer }: { answer: FlameAnswer | null }) {
  if (!answer || answer.against === null) return null;
  const { root, against } = answer;
  return (
    <p class="difference">
      <span>
        against <b>{bytes(root.base)}</b> {against}: <b>{change(root.bytes - root.base)}</b>
      </span>
      <i class="swatch is-less" /> - less than then
      <i class="swatch is-more" /> + more than then
    </p>
  );
}

function Compare({ run }: { run: Run }) {
  const second = other.value;
  return (
    <div class="compare" role="group" aria-label="Compare">
      <button
        type="button"
        title="Move the moment afterwards to see the difference"
        onClick={() => (base.value = { run: run.id, at: moment.value })}
      >
        Pin this moment
      </button>
      {second && (
        <button
          type="button"
          title={`Difference to ${runName(second)} after the same number of events`}
          onClick={() => (base.value = { run: second.id, at: Math.min(moment.value, second.events) })}
        >
          Other run, here
        </button>
      )}
      {second && (
        <button
          type="button"
          title={`Difference to the peak of ${runName(second)}`}
          onClick={() => (base.value = { run: second.id, at: second.peak.position })}
        >
          Other run's peak
        </button>
      )}
      {base.value && (
        <button type="button" onClick={() => (base.value = null)}>
          Clear
        </button>
      )}
    </div>
  );
}

function Picture({ answer }: { answer: FlameAnswer }) {
  const [hovered, setHovered] = useState<HoveredBox | null>(null);
  const { root } = answer;
  const compared = answer.against !== null;
  if (!root.bytes && !root.base) return <p class="empty">Nothing is allocated {answer.what}.</p>;
  const Shape = shape.value === "flame" ? Icicle : TreeMap;
  return (
    <>
      <Crumbs way={follow(root, zoom.value)} trail={zoom.value} onZoom={(trail) => (zoom.value = trail)} />
      <Shape
        root={root}
        trail={zoom.value}
        compared={compared}
        search={search.value}
        onHover={setHovered}
        onZoom={(trail) => {
          zoom.value = trail;
          setHovered(null);
        }}
      />
      {hovered && <FrameTip at={hovered} root={root} compared={compared} />}
    </>
  );
}
