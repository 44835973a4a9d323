// The groups of the timeline: their colours, and their bytes at the chosen moment.

import { mergedCss, shownTheme } from "../canvas/colors";
import { type MomentColumn, useMomentColumn } from "../canvas/moment-column";
import { chosenNumber, groupColor, groupingOf } from "../canvas/paints";
import type { TimelineView } from "../canvas/timeline-view";
import { type Group, MERGED } from "../protocol";
import { momentName, stepAt } from "../state/axis";
import { bytes, count } from "../state/format";
import { type ShortLabel, shortLabels } from "../state/labels";
import { selection } from "../state/store";

const MAX_ROWS = 60;

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
  const rows = [...groups.values()].sort(
    (a, b) => (sums.get(b.id) ?? 0) - (sums.get(a.id) ?? 0) || a.id - b.id,
  );
  const merged = sums.get(MERGED);
  const shown = rows.slice(0, MAX_ROWS);
  const labels = shortLabels(shown);
  return (
    <aside class="bands-legend" aria-label="Groups at the chosen moment">
      <Heading of={of} at={at} shared={labels.shared} />
      <ul>
        {shown.map((group) => (
          <Row
            key={group.id}
            of={of}
            group={group}
            held={sums.get(group.id) ?? 0}
            label={labels.of.get(group.id)!}
          />
        ))}
        {merged !== undefined && (
          <li class="bands-legend-row" title="Each is less than a pixel high here; zoom in to see them">
            <i class="swatch" style={{ background: mergedCss(shownTheme.value) }} />
            <span class="label dim">smaller groups</span>
            <span class="figure">{bytes(merged)}</span>
          </li>
        )}
        {rows.length > MAX_ROWS && (
          <li class="dim">and {count(rows.length - MAX_ROWS)} more in this interval</li>
        )}
      </ul>
    </aside>
  );
}

function Heading({
  of,
  at: { tile, column },
  shared,
}: {
  of: TimelineView;
  at: MomentColumn;
  shared: string;
}) {
  const position = tile.position[column]!;
  const step = stepAt(of.run, position);
  return (
    <p class="bands-legend-heading">
      <b>{bytes(tile.total[column]!)}</b> allocated
      <span class="dim">
        {momentName(of.run, position)}
        {step !== null && ` · step ${count(step)}`}
      </span>
      {shared && (
        <span class="dim shared" title={shared}>
          {shared}
        </span>
      )}
    </p>
  );
}

interface RowProps {
  of: TimelineView;
  group: Group;
  held: number;
  label: ShortLabel;
}

function Row({ of, group, held, label }: RowProps) {
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
        title={[group.label, group.detail, `${bytes(held)} now`].filter(Boolean).join("\n")}
        onClick={choose}
        onPointerEnter={() => (of.pointed.value = group.id)}
        onPointerLeave={() => (of.pointed.value = null)}
      >
        <i class="swatch" style={{ background: groupColor(of.run, by, group, shownTheme.value).css }} />
        <span class="label">
          {label.name && <span class="name">{label.name}</span>}
          {label.line && <span class="line">{label.line}</span>}
          {label.detail && <span class="dim detail">{label.detail}</span>}
        </span>
        <span class="figure">{held > 0 ? bytes(held) : "–"}</span>
      </button>
    </li>
  );
}
