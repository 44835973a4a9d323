// The memory map without its DOM: addresses over the shared x axis.

import { signal } from "@preact/signals";
import type { Layout, TimelineBy } from "../protocol";
import { isWhole, momentName } from "../state/axis";
import { bytes } from "../state/format";
import { addresses, interval, moment, type Span, selection, shown, xAxis } from "../state/store";
import { shownTheme } from "./colors";
import { selectedBlock } from "./emphasis";
import {
  type Context,
  drawByteAxis,
  drawInterval,
  drawMoment,
  drawPointer,
  drawXAxis,
  horizontalLine,
  yPixel,
} from "./marks";
import { MIN_VISIBLE_BYTES, Picture } from "./picture";
import type { Hit, Viewport } from "./raster";
import type { Ink } from "./surface";
import { arrivals, smallestFor } from "./tiles";

/** Segments lower than this have no lines, in pixels. */
const SEGMENT_LINE_PIXELS = 10;
const SEGMENT_NAME_PIXELS = 22;
/** Finer than pixels, so that few cells stand for several blocks. */
const CELLS_PER_PIXEL = 2;

export class MapView extends Picture {
  /** The segments at the chosen moment. */
  readonly layout = signal<Layout | null>(null);

  by(): TimelineBy {
    return "block";
  }

  range(): { low: number; high: number } {
    return addresses.value ?? { low: 0, high: Math.max(1, this.run.space) };
  }

  readonly describe = () => [
    this.viewport(),
    xAxis.value,
    moment.value,
    interval.value,
    selection.value,
    selectedBlock.value,
    this.pointer.value,
    this.layout.value,
    shownTheme.value,
    arrivals.value,
  ];

  readonly paint = () => {
    const { width, height } = this.surface.size.value;
    if (width < 1 || height < 1) return;
    const { low, high } = this.range();
    const smallest = smallestFor((high - low) / height / CELLS_PER_PIXEL);
    const tile = this.findTile({
      kind: "map",
      run: this.run,
      x: xAxis.value,
      span: shown.value,
      width,
      smallest,
      low,
      high,
    });
    this.followPointer(tile);
    this.drawBands(tile, true);
    this.surface.drawMarks(shownTheme.value, (context, _, ink) => {
      const view = this.viewport();
      drawByteAxis(context, view, ink);
      drawXAxis(context, view, xAxis.value, ink);
      if (this.layout.value) drawSegments(context, this.layout.value, view, ink);
      const stretch = interval.value;
      const ends = stretch && [this.pixelOf(stretch.from), this.pixelOf(stretch.to)];
      if (ends && ends[0] != null && ends[1] != null) drawInterval(context, view, ends[0], ends[1], ink);
      const pointer = this.pointer.value;
      if (pointer) drawPointer(context, view, pointer.x, ink);
      const at = this.pixelOf(Math.min(moment.value, this.run.events));
      if (at !== null) drawMoment(context, view, at, momentName(this.run, moment.value), ink);
    });
  };

  protected wholeRange(): Span {
    return { from: 0, to: this.run.space };
  }

  protected showRange(stretch: Span): void {
    addresses.value = isWhole(stretch, this.wholeRange()) ? null : { low: stretch.from, high: stretch.to };
  }

  /** Shows the addresses of a slice, with a margin. */
  readonly zoomTo = (hit: Hit) => {
    const { tile } = this.seen.value;
    if (!tile || hit.run === null) return;
    let offset = tile.low;
    for (let run = tile.start[hit.column]!; run < hit.run; run++) offset += tile.size[run]!;
    const margin = Math.max(hit.bytes, MIN_VISIBLE_BYTES / 2);
    this.showRange({
      from: Math.max(0, offset - margin),
      to: Math.min(this.run.space, offset + hit.bytes + margin),
    });
  };
}

/** Where segments begin at the chosen moment. */
function drawSegments(context: Context, { segments }: Layout, view: Viewport, ink: Ink): void {
  context.lineWidth = 1;
  context.textAlign = "left";
  for (const { offset, size } of segments) {
    const [top, bottom] = [yPixel(view, offset + size), yPixel(view, offset)];
    if (bottom < 0 || top > view.height || bottom - top < SEGMENT_LINE_PIXELS) continue;
    context.strokeStyle = ink.text;
    context.globalAlpha = 0.4;
    for (const edge of [top, bottom])
      if (edge > 0 && edge < view.height) horizontalLine(context, edge, 0, view.width);
    context.globalAlpha = 1;
    if (Math.min(bottom, view.height) - Math.max(0, top) < SEGMENT_NAME_PIXELS) continue;
    const words = `segment, ${bytes(size)}`;
    const y = Math.max(0, top) + 10;
    context.fillStyle = ink.panel;
    context.globalAlpha = 0.75;
    context.fillRect(3, y - 7, context.measureText(words).width + 6, 14);
    context.globalAlpha = 1;
    context.fillStyle = ink.text;
    context.fillText(words, 6, y);
  }
}
