// The whole run in a strip, with the visible interval as a movable window.

import { useEffect, useRef } from "preact/hooks";
import { shownTheme } from "../canvas/colors";
import { follow } from "../canvas/drawloop";
import { attach, type Drag, type GestureHandlers, type Point } from "../canvas/gestures";
import { type Context, veilOutside, verticalLine, xPixel, yPixel } from "../canvas/marks";
import { columnAt, type Prepared, type Viewport } from "../canvas/raster";
import { type Ink, MARGIN, Surface } from "../canvas/surface";
import { arrivals, TileFinder, type TileRequest } from "../canvas/tiles";
import type { Run } from "../protocol";
import { MIN_INTERVAL } from "../state/axis";
import { pan, show, zoom } from "../state/navigate";
import { moment, shown, whole, xAxis } from "../state/store";

/** Only the outline is drawn, so everything may be merged. */
const MERGE_ALL_LOG2_BYTES = 50;
const EDGE_PIXELS = 6;

const STRIP_MARGIN = { left: MARGIN.left, right: MARGIN.right, top: 2, bottom: 4 };

class Strip {
  private readonly finder = new TileFinder();

  constructor(
    private readonly run: Run,
    private readonly surface: Surface,
  ) {}

  readonly describe = () => [
    this.surface.size.value,
    shown.value,
    moment.value,
    shownTheme.value,
    arrivals.value,
    xAxis.value,
  ];

  readonly paint = () => {
    const view = this.viewport();
    if (view.width < 1 || view.height < 1) return;
    const { from, to } = view;
    const request: TileRequest = {
      kind: "timeline",
      run: this.run,
      by: "site",
      x: xAxis.value,
      span: { from, to },
      width: view.width,
      smallest: MERGE_ALL_LOG2_BYTES,
    };
    const { tile } = this.finder.find(request);
    this.surface.drawMarks(shownTheme.value, (context, _, ink) => {
      if (tile) drawOutline(context, tile, view, ink);
      drawWindow(context, view, ink);
      if (xAxis.value === "event") {
        context.strokeStyle = ink.accent;
        verticalLine(context, xPixel(view, moment.value + 0.5), 0, view.height);
      }
    });
  };

  private viewport(): Viewport {
    return {
      ...whole.value,
      low: 0,
      high: Math.max(1, this.run.peak.bytes) * 1.05,
      ...this.surface.size.value,
    };
  }

  readonly hands: GestureHandlers = {
    hover: () => {},
    zoom: (at, factor) => zoom(factor, this.xAt(at)),
    pan: (pixels) => {
      const { from, to, width } = this.viewport();
      pan((pixels / width) * (to - from));
    },
    grab: (at) => this.grab(at),
    click: (at) => pan(this.xAt(at) - (shown.value.from + shown.value.to) / 2),
    doubleClick: () => {},
  };

  private xAt({ x }: Point): number {
    const { from, to, width } = this.viewport();
    return from + (Math.max(0, Math.min(width, x)) / width) * (to - from);
  }

  /** Drags an edge of the window, the window, or a new one. */
  private grab(begin: Point): Drag {
    const view = this.viewport();
    const { from, to } = shown.value;
    const isAt = (x: number) => Math.abs(xPixel(view, x) - begin.x) <= EDGE_PIXELS;
    const fixed = isAt(from) ? to : isAt(to) ? from : null;
    const at = this.xAt(begin);
    if (fixed === null && at > from && at < to)
      return { move: (now, before) => pan(this.xAt(now) - this.xAt(before)) };
    const anchor = fixed ?? at;
    return {
      move: (now) => {
        const x = this.xAt(now);
        if (Math.abs(x - anchor) >= MIN_INTERVAL[xAxis.value])
          show({ from: Math.min(x, anchor), to: Math.max(x, anchor) });
      },
    };
  }
}

function drawOutline(context: Context, tile: Prepared, view: Viewport, ink: Ink): void {
  context.fillStyle = ink.dim;
  context.globalAlpha = 0.45;
  context.beginPath();
  context.moveTo(0, view.height);
  for (let x = 0; x < view.width; x++) {
    const column = columnAt(tile, view, x);
    context.lineTo(x, column < 0 ? view.height : yPixel(view, tile.total[column]!));
  }
  context.lineTo(view.width, view.height);
  context.fill();
  context.globalAlpha = 1;
}

function drawWindow(context: Context, view: Viewport, ink: Ink): void {
  const left = Math.max(0, xPixel(view, shown.value.from));
  const right = Math.max(left + 2, Math.min(view.width, xPixel(view, shown.value.to)));
  veilOutside(context, view, left, right, ink);
  context.strokeRect(left + 0.5, 0.5, right - left - 1, view.height - 1);
  context.fillStyle = ink.accent;
  for (const edge of [left, right - 3]) context.fillRect(edge, view.height / 2 - 6, 3, 12);
}

export function Minimap({ run }: { run: Run }) {
  const frame = useRef<HTMLDivElement>(null);
  const bands = useRef<HTMLCanvasElement>(null);
  const marks = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const surface = new Surface(bands.current!, marks.current!, STRIP_MARGIN);
    const strip = new Strip(run, surface);
    const ends = [
      surface.follow(frame.current!),
      attach(bands.current!, strip.hands),
      follow(strip.describe, strip.paint),
    ];
    return () => ends.forEach((end) => end());
  }, []);
  return (
    <div ref={frame} class="minimap">
      <canvas
        ref={bands}
        class="bands"
        role="img"
        aria-label="The whole run, with the part that is shown marked"
      />
      <canvas ref={marks} class="marks" aria-hidden="true" />
    </div>
  );
}
