// What the timeline and the memory map have in common: tiles as bands of pixels over the shared x axis.

import { signal } from "@preact/signals";
import type { Run, TimelineBy } from "../protocol";
import { panned, zoomed } from "../state/axis";
import { moment, type Span, shown, xAxis } from "../state/store";
import { shownTheme } from "./colors";
import { focusIn } from "./emphasis";
import { moveAlong } from "./gesture-handlers";
import type { Drag, Point } from "./gestures";
import { xPixel } from "./marks";
import { paintsFor } from "./paints";
import { columnAt, columnOf, type Hit, hit, type Prepared, raster, type Viewport } from "./raster";
import type { Surface } from "./surface";
import { TileFinder, type TileRequest, type TileResult } from "./tiles";

/** What is under the pointer. */
export interface HoveredSlice {
  hit: Hit;
  tile: Prepared;
  at: Point;
}

const NOTHING: TileResult = { tile: null, isLoading: true, isCoarse: false, problem: null };
/** Shortest visible interval of the y axis. */
export const MIN_VISIBLE_BYTES = 4096;
/** How near the pointer has to be to grab the line of the moment. */
const GRAB_PIXELS = 6;

export abstract class Picture {
  /** In CSS pixels of the plot. */
  readonly pointer = signal<Point | null>(null);
  readonly hovered = signal<HoveredSlice | null>(null);
  /** The group that is hovered over in the legend. */
  readonly pointed = signal<number | null>(null);
  readonly seen = signal<TileResult>(NOTHING);
  private readonly finder = new TileFinder();
  private drawn: unknown[] = [];

  constructor(
    readonly run: Run,
    readonly surface: Surface,
  ) {}

  /** What the picture is split by; `block` for single blocks. */
  abstract by(): TimelineBy;

  /** Bytes at the lower and at the upper edge. */
  abstract range(): { low: number; high: number };

  /** The whole range of bytes. */
  protected abstract wholeRange(): Span;

  /** Shows a range of bytes. */
  protected abstract showRange(stretch: Span): void;

  readonly zoomBytes = (at: Point, factor: number) => {
    const { low, high } = this.range();
    const { height } = this.surface.size.value;
    const under = low + ((height - at.y) / height) * (high - low);
    this.showRange(zoomed({ from: low, to: high }, under, factor, this.wholeRange(), MIN_VISIBLE_BYTES));
  };

  /** Moves along both axes. */
  readonly drag = (): Drag => {
    const along = moveAlong(this);
    return {
      move: (to, from) => {
        along.move(to, from);
        const { low, high } = this.range();
        const by = ((to.y - from.y) * (high - low)) / this.surface.size.value.height;
        this.showRange(panned({ from: low, to: high }, by, this.wholeRange()));
      },
    };
  };

  /** In CSS pixels, or in those of the bands. */
  viewport(density = 1): Viewport {
    const { width, height } = this.surface.size.value;
    return {
      ...shown.value,
      ...this.range(),
      width: Math.round(width * density),
      height: Math.round(height * density),
    };
  }

  /** The tile to draw now. */
  protected findTile(request: TileRequest): Prepared | null {
    const seen = this.finder.find(request);
    const before = this.seen.peek();
    const isSame = (Object.keys(seen) as (keyof TileResult)[]).every((key) => seen[key] === before[key]);
    if (!isSame) this.seen.value = seen;
    return seen.tile;
  }

  /** Draws the bands, unless nothing has changed. */
  protected drawBands(tile: Prepared | null, shadesUsage: boolean): void {
    const view = this.viewport(this.surface.density);
    // The previous picture stays until there is another tile.
    if (!tile) return;
    const by = this.by();
    const paints = paintsFor(tile, this.run, by, shownTheme.peek(), shadesUsage);
    const focus = focusIn(tile, this.run, by, this.hovered.peek()?.hit.id ?? this.pointed.peek());
    const now = [tile, paints, ...Object.values(view), ...Object.values(focus)];
    if (now.every((value, place) => value === this.drawn[place])) return;
    this.drawn = now;
    this.surface.drawBands((pixels) => raster(pixels, tile, view, paints, focus));
  }

  /** Finds out what is under the pointer. */
  protected followPointer(tile: Prepared | null): void {
    const at = this.pointer.peek();
    const found = at && tile && hit(tile, this.viewport(), Math.floor(at.x), at.y);
    this.hovered.value = at && tile && found ? { hit: found, tile, at } : null;
  }

  hitAt(at: Point): Hit | null {
    const { tile } = this.seen.peek();
    return tile && hit(tile, this.viewport(), Math.floor(at.x), at.y);
  }

  /** The point of the x axis at a pixel. */
  xAt(pixel: number): number {
    const { from, to } = shown.value;
    return from + (pixel / this.surface.size.value.width) * (to - from);
  }

  /** The moment that a pixel shows. */
  positionAt(pixel: number): number | null {
    const { tile } = this.seen.peek();
    const view = this.viewport();
    const column = tile ? columnAt(tile, view, Math.max(0, Math.min(view.width - 1, Math.floor(pixel)))) : -1;
    return tile && column >= 0 ? tile.position[column]! : null;
  }

  /** The pixel of a position; null where the tile does not have it. */
  pixelOf(position: number): number | null {
    const view = this.viewport();
    if (xAxis.value === "event") return xPixel(view, position + 0.5);
    const { tile } = this.seen.peek();
    const column = tile ? columnOf(tile, position) : -1;
    return tile && column >= 0 ? xPixel(view, (tile.first + column + 0.5) * 2 ** tile.level) : null;
  }

  isOnMoment({ x }: Point): boolean {
    const pixel = this.pixelOf(moment.value);
    return pixel !== null && Math.abs(pixel - x) <= GRAB_PIXELS;
  }
}
