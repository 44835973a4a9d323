// The timeline without its DOM: what it shows, and how that is drawn.

import { signal } from "@preact/signals";
import type { TimelineBy } from "../protocol";
import { momentName, roundTop } from "../state/axis";
import { ruler } from "../state/navigate";
import {
  by,
  heights,
  interval,
  moment,
  other,
  run,
  type Span,
  selection,
  shown,
  xAxis,
} from "../state/store";
import { shownTheme } from "./colors";
import { selectedBlock } from "./emphasis";
import { drawByteAxis, drawInterval, drawMoment, drawPointer, drawXAxis } from "./marks";
import { Picture } from "./picture";
import type { Prepared, Viewport } from "./raster";
import { arrivals, smallestFor } from "./tiles";
import { drawLimit, drawOoms, drawReserved, drawRuler, drawStepMarks } from "./timeline-marks";

/** The highest visible bytes of each run; two runs share one scale. */
const highest = signal<ReadonlyMap<number, number>>(new Map());

/** The limit is shown once memory comes this near to it. */
const MAX_LIMIT_RATIO = 1.3;

function topOfScale(): number {
  const tops = [run.value, other.value].map((each) => {
    if (!each) return 0;
    const top = highest.value.get(each.id) ?? Math.max(each.reservedPeak.bytes, each.peak.bytes);
    return each.limit != null && each.limit <= top * MAX_LIMIT_RATIO ? Math.max(top, each.limit) : top;
  });
  return roundTop(Math.max(...tops));
}

function highestIn(tile: Prepared, { from, to }: Span): number {
  const unit = 2 ** tile.level;
  const first = Math.max(0, Math.floor(from / unit) - tile.first);
  const last = Math.min(tile.columns, Math.ceil(to / unit) - tile.first);
  let high = 0;
  for (let column = first; column < last; column++)
    high = Math.max(high, tile.reserved[column]!, tile.total[column]!);
  return high;
}

export class TimelineView extends Picture {
  by(): TimelineBy {
    return this.run.groupings.includes(by.value) ? by.value : "site";
  }

  range(): { low: number; high: number } {
    return heights.value ?? { low: 0, high: topOfScale() };
  }

  smallest(): number {
    const { low, high } = this.range();
    return smallestFor((high - low) / Math.max(1, this.surface.size.value.height));
  }

  protected wholeRange(): Span {
    return { from: 0, to: Math.max(this.range().high, topOfScale()) };
  }

  protected showRange({ from, to }: Span): void {
    const isAll = from <= 0 && to >= topOfScale();
    heights.value = isAll ? null : { low: from, high: to };
  }

  /** Reads all that a frame depends on. */
  readonly describe = () => [
    this.viewport(),
    this.by(),
    xAxis.value,
    moment.value,
    interval.value,
    selection.value,
    selectedBlock.value,
    this.pointer.value,
    this.pointed.value,
    ruler.value,
    shownTheme.value,
    arrivals.value,
  ];

  readonly paint = () => {
    const { width, height } = this.surface.size.value;
    if (width < 1 || height < 1) return;
    const tile = this.findTile({
      kind: "timeline",
      run: this.run,
      by: this.by(),
      x: xAxis.value,
      span: shown.value,
      width,
      smallest: this.smallest(),
    });
    if (tile) this.tellHighest(highestIn(tile, shown.value));
    this.followPointer(tile);
    this.drawBands(tile, false);
    this.surface.drawMarks(shownTheme.value, (context, _, ink) => {
      const view = this.viewport();
      drawByteAxis(context, view, ink);
      drawXAxis(context, view, xAxis.value, ink);
      if (!tile) return;
      drawStepMarks(context, this.run, xAxis.value, view, ink);
      drawReserved(context, tile, view, ink);
      drawLimit(context, this.run, view, ink);
      const brushed = this.brushed(view);
      if (brushed) drawInterval(context, view, brushed.from, brushed.to, ink);
      drawOoms(context, this.run, xAxis.value, view, ink);
      const pointer = this.pointer.value;
      if (pointer) drawPointer(context, view, pointer.x, ink);
      const at = moment.value <= this.run.events ? this.pixelOf(moment.value) : null;
      if (at !== null) drawMoment(context, view, at, momentName(this.run, moment.value), ink);
      const ends = ruler.value;
      if (ends?.run === this.run.id) drawRuler(context, this.run, xAxis.value, tile, view, ends, ink);
    });
  };

  /** The brushed interval in pixels. Its ends may lie outside of the tile. */
  private brushed(view: Viewport): Span | null {
    const stretch = interval.value;
    if (!stretch) return null;
    const { tile } = this.seen.peek();
    if (!tile) return null;
    const last = tile.position[tile.columns - 1]!;
    const from = this.pixelOf(stretch.from) ?? (stretch.from > last ? view.width : 0);
    const to = this.pixelOf(stretch.to) ?? (stretch.to > last ? view.width : 0);
    return to > 0 && from < view.width ? { from, to } : null;
  }

  private tellHighest(high: number): void {
    const before = highest.peek();
    if (before.get(this.run.id) !== high) highest.value = new Map(before).set(this.run.id, high);
  }
}
