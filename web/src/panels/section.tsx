// The segments at the chosen moment: their blocks, free memory, and the blocks that keep them from being
// released.

import { type Signal, useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { SegmentBar, type SegmentCell } from "../canvas/segment-bar";
import { FREE, type Group, type LaidSegment, type Layout, MERGED, type Run } from "../protocol";
import { momentName } from "../state/axis";
import { showAddresses } from "../state/focus";
import { bytes, counted, percent } from "../state/format";
import { useLayout } from "../state/layout-now";
import { moment, selection } from "../state/store";
import { Answered, nextToPointer } from "./parts";
import { isPinned, type Listed, listed } from "./segments";
import { useSize } from "./size";

const PADDING_PIXELS = 12;
const MIN_BAR_PIXELS = 36;

interface HoveredCell {
  cell: SegmentCell;
  x: number;
  y: number;
}

export function Section({ run }: { run: Run }) {
  const answer = useLayout(run);
  return (
    <section class="section-view" aria-label="Segments at the chosen moment">
      <Answered answer={answer}>{(layout) => <Segments run={run} layout={layout} />}</Answered>
    </section>
  );
}

function Segments({ run, layout }: { run: Run; layout: Layout }) {
  const frame = useRef<HTMLDivElement>(null);
  const size = useSize(frame);
  const scrolled = useSignal(0);
  const hovered = useSignal<HoveredCell | null>(null);
  const groups = new Map(layout.groups.map((group) => [group.id, group]));
  const { rows, height } = listed(layout.segments);
  const visible = rows.filter(
    (row) => row.top + row.height > scrolled.value - 200 && row.top < scrolled.value + size.height + 200,
  );
  const largest = layout.segments.reduce((most, segment) => Math.max(most, segment.size), 1);
  const widthOf = (segment: LaidSegment) =>
    Math.max(MIN_BAR_PIXELS, Math.round(((size.width - 2 * PADDING_PIXELS) * segment.size) / largest));
  return (
    <>
      <Summary run={run} layout={layout} />
      <div
        ref={frame}
        class="segments"
        onScroll={(event) => (scrolled.value = event.currentTarget.scrollTop)}
      >
        <div style={{ height: `${height}px` }}>
          {visible.map((row) => (
            <Row key={row.key} run={run} row={row} groups={groups} widthOf={widthOf} hovered={hovered} />
          ))}
        </div>
        {hovered.value && <CellTip at={hovered.value} groups={groups} />}
      </div>
    </>
  );
}

function Summary({ run, layout }: { run: Run; layout: Layout }) {
  const { position, allocated, reserved, segments } = layout;
  return (
    <p class="section-summary">
      <b>{counted(segments.length, "segment")}</b> · {momentName(run, position)} · {bytes(reserved)} reserved,{" "}
      {percent(allocated, reserved)} in use
      {position !== Math.min(moment.value, run.events) && <span class="dim"> (nearest exported moment)</span>}
    </p>
  );
}

interface RowProps {
  run: Run;
  row: Listed;
  groups: Map<number, Group>;
  widthOf: (segment: LaidSegment) => number;
  hovered: Signal<HoveredCell | null>;
}

function Row({ run, row, groups, widthOf, hovered }: RowProps) {
  const style = { top: `${row.top}px`, height: `${row.height}px` };
  if (row.kind === "heading") {
    return (
      <h3 class="segment-heading" style={style}>
        {row.words}
        <span class="dim">{row.sums}</span>
      </h3>
    );
  }
  const { segment } = row;
  const end = segment.offset + segment.size;
  return (
    <div class="segment" style={style} onClick={() => showAddresses(segment.offset, end)}>
      <SegmentBar
        run={run}
        segment={segment}
        groups={groups}
        width={widthOf(segment)}
        onHover={(cell, event) => (hovered.value = cell && { cell, x: event.clientX, y: event.clientY })}
        onClick={(cell) => {
          if (cell && cell.row < FREE) selection.value = { kind: "block", row: cell.row };
          else showAddresses(segment.offset, end);
        }}
      />
      <SegmentWords of={segment} />
    </div>
  );
}

function SegmentWords({ of }: { of: LaidSegment }) {
  return (
    <p class="segment-words" title="Click: show its addresses in the memory map">
      {bytes(of.size)} · {of.used > 0 ? `${percent(of.used, of.size)} in use` : "empty"}
      {of.used > 0 && of.largestFree > 0 && (
        <span class="dim"> · largest free block {bytes(of.largestFree)}</span>
      )}
      {isPinned(of) && (
        <span>
          {" · held by "}
          {counted(of.blocks, "block")}:{" "}
          {of.pins.map((pin, place) => (
            <span key={pin.row}>
              {place > 0 && ", "}
              <button
                type="button"
                class="link"
                onClick={(event) => {
                  event.stopPropagation();
                  selection.value = { kind: "block", row: pin.row };
                }}
              >
                {pin.site}
              </button>{" "}
              <span class="dim">({bytes(pin.size)})</span>
            </span>
          ))}
        </span>
      )}
    </p>
  );
}

function CellTip({ at: { cell, x, y }, groups }: { at: HoveredCell; groups: Map<number, Group> }) {
  const style = nextToPointer({ x, y });
  const group = groups.get(cell.group);
  const words =
    cell.row === FREE
      ? "free"
      : cell.row === MERGED
        ? `${counted(cell.pieces, "block")}, too small to draw one by one`
        : (group?.label ?? "");
  return (
    <div class="tip" style={style}>
      <b>{words}</b>
      {cell.row < FREE && group?.detail && <p class="dim">{group.detail}</p>}
      <p>{bytes(cell.size)}</p>
    </div>
  );
}
