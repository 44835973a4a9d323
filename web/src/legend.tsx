// The groups of the timeline with their colours and what they hold at the chosen moment.

import { momentName, stepAt } from "./axis";
import { mergedCss, shownTheme } from "./colors";
import { bytes, count } from "./format";
import { useMomentColumn, type MomentColumn } from "./moment-column";
import { chosenNumber, groupColor, groupingOf } from "./paints";
import { MERGED, type Group } from "./protocol";
import { selection } from "./store";
import type { TimelineView } from "./timeline-view";

const MOST_ROWS = 60;

/** Bytes of each group in a column. */
function sumsIn({ tile, column }: MomentColumn): Map<number, number> {
  const sums = new Map<number, number>();
  for (let run = tile.start[column]!; run < tile.end[column]!; run++) {
    const group = tile.group[run]!;
    sums.set(group, (sums.get(group) ?? 0) + tile.size[run]!);
  }
  return sums;
}

export function Legend({ of }: { of: TimelineView }) {
  const at = useMomentColumn(of);
  const drawn = of.seen.value.tile;
  if (!at || !drawn) return <aside class="bands-legend" />;
  const sums = sumsIn(at);
  const groups = new Map([...drawn.groups, ...at.tile.groups]);
  const rows = [...groups.values()].sort((a, b) => (sums.get(b.id) ?? 0) - (sums.get(a.id) ?? 0) || a.id - b.id);
  const merged = sums.get(MERGED);
  const labels = new Map<string, number>();
  for (const { label } of rows) labels.set(label, (labels.get(label) ?? 0) + 1);
  return (
    <aside class="bands-legend" aria-label="Groups at the chosen moment">
      <Heading of={of} at={at} />
      <ul>
        {rows.slice(0, MOST_ROWS).map((group) => (
          <Row key={group.id} of={of} group={group} held={sums.get(group.id) ?? 0} isOneOfSeveral={labels.get(group.label)! > 1} />
        ))}
        {merged !== undefined && (
          <li class="bands-legend-row" title="Each is less than a pixel high here; zoom in to see them">
            <i class="swatch" style={{ background: mergedCss(shownTheme.value) }} />
            <span class="dim">smaller ones</span>
            <span>{bytes(merged)}</span>
          </li>
        )}
        {rows.length > MOST_ROWS && <li class="dim">and {count(rows.length - MOST_ROWS)} more in this stretch</li>}
      </ul>
    </aside>
  );
}

function Heading({ of, at: { tile, column } }: { of: TimelineView; at: MomentColumn }) {
  const position = tile.position[column]!;
  const step = stepAt(of.run, position);
  return (
    <p class="bands-legend-heading">
      <b>{bytes(tile.total[column]!)}</b> allocated
      <span class="dim">
        {momentName(of.run, position)}
        {step !== null && ` · step ${count(step)}`}
      </span>
    </p>
  );
}

interface RowProps {
  of: TimelineView;
  group: Group;
  held: number;
  /** Others have the same label: it takes the detail to tell them apart. */
  isOneOfSeveral: boolean;
}

function Row({ of, group, held, isOneOfSeveral }: RowProps) {
  const by = groupingOf(of.by());
  const id = chosenNumber(of.run, by, group);
  const chosen = selection.value;
  const isSelected = chosen?.kind === "group" && chosen.by === by && chosen.id === id;
  const choose = () => {
    if (id !== null) selection.value = isSelected ? null : { kind: "group", by, id };
  };
  return (
    <li>
      <button
        type="button"
        class={held > 0 ? "bands-legend-row" : "bands-legend-row none"}
        aria-pressed={isSelected}
        title={[group.label, group.detail].filter(Boolean).join(" · ")}
        onClick={choose}
        onPointerEnter={() => (of.pointed.value = group.id)}
        onPointerLeave={() => (of.pointed.value = null)}
      >
        <i class="swatch" style={{ background: groupColor(of.run, by, group, shownTheme.value).css }} />
        <Label text={group.label} />
        {isOneOfSeveral && <span class="dim detail">{group.detail}</span>}
        <span>{held > 0 ? bytes(held) : "–"}</span>
      </button>
    </li>
  );
}

/** Where there is no room for all of a place, its line is what matters. */
function Label({ text }: { text: string }) {
  const [, file = text, line = ""] = /^(.*)(:\d+)$/.exec(text) ?? [];
  return (
    <>
      <span>{file}</span>
      <span class="line">{line}</span>
    </>
  );
}
