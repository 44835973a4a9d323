// Tiles for the visible part of a picture: which one to load, a bounded cache, and which one to draw
// meanwhile.

import { signal } from "@preact/signals";
import { COLUMNS, decodeTile, path, type Query, type Run, type TimelineBy, type XAxis } from "../protocol";
import { AnswerError, askBytes, isExported, stored } from "../protocol/source";
import { extent, type Span } from "../state/store";
import { footprint, type Prepared, prepare } from "./raster";

/** What a view shows. */
export interface TileRequest {
  kind: "timeline" | "map";
  run: Run;
  /** Only of timelines. */
  by?: TimelineBy;
  x: XAxis;
  span: Span;
  /** In CSS pixels. */
  width: number;
  smallest: number;
  /** Addresses, only of maps. */
  low?: number;
  high?: number;
}

export interface TileResult {
  tile: Prepared | null;
  /** Whether the wanted tile is loading. */
  isLoading: boolean;
  /** Whether this is an exported page without a finer tile. */
  isCoarse: boolean;
  problem: AnswerError | null;
}

/** The tile that answers a request. */
interface TileKey {
  level: number;
  tile: number;
  smallest: number;
  low: number;
  high: number;
}

interface CachedTile extends TileKey {
  family: string;
  prepared: Prepared;
  bytes: number;
}

const CACHE_BYTES = 64 * 2 ** 20;
/** A tile that begins anywhere in its first quarter still has this share of its columns. */
const CERTAIN_SHARE = 3 / 4;
const RETRY_MS = 3000;
/**
 * How many powers of two the smallest slices of an exported tile may be too large before the page says so.
 */
const MAX_COARSER_LOG2 = 2;

const cache = new Map<string, CachedTile>();
let cachedBytes = 0;
const underWay = new Map<string, Promise<CachedTile | null>>();
const failures = new Map<string, { problem: AnswerError; at: number }>();

/** Counts tiles that arrived or failed; views draw again when it changes. */
export const arrivals = signal(0);

export function isWaiting(): boolean {
  return underWay.size > 0;
}

/** Tiles of single blocks have fewer columns. */
function columnsOf({ kind, by }: TileRequest): number {
  return kind === "map" || by === "block" ? COLUMNS.blocks : COLUMNS.bands;
}

/** The finest level whose columns are at least one pixel wide. */
function levelFor(columns: number, span: Span, width: number): number {
  const most = CERTAIN_SHARE * columns - 1;
  return Math.max(0, Math.ceil(Math.log2((span.to - span.from) / Math.min(Math.max(1, width), most))));
}

/** Slices less than a pixel high are merged. */
export function smallestFor(bytesPerPixel: number): number {
  return Math.max(0, Math.floor(Math.log2(Math.max(1, bytesPerPixel))));
}

/** Addresses around the wanted ones, on a grid that leaves room for panning. */
export function addressesFor(low: number, high: number, space: number): { low: number; high: number } {
  const grid = 2 ** Math.floor(Math.log2(Math.max(2, high - low)) - 1);
  return {
    low: Math.max(0, Math.floor(low / grid) * grid),
    high: Math.min(space, Math.ceil(high / grid) * grid),
  };
}

/** The tile of a level that has the interval nearest to its middle. */
function tileFor(columns: number, level: number, span: Span): number {
  const stride = columns / 4;
  const first = Math.floor(span.from / 2 ** level);
  const last = Math.ceil(span.to / 2 ** level);
  const centred = Math.round((first + last - columns) / 2 / stride);
  return Math.max(0, Math.ceil((last - columns) / stride), Math.min(centred, Math.floor(first / stride)));
}

/** The part of the request's interval that the run has. */
function visible({ run, x, span }: TileRequest): Span | null {
  const whole = extent(run, x);
  const from = Math.max(span.from, whole.from);
  const to = Math.min(span.to, whole.to);
  return from < to ? { from, to } : null;
}

function covers(place: TileKey, span: Span, request: TileRequest): boolean {
  const unit = 2 ** place.level;
  const columns = columnsOf(request);
  const first = (place.tile * columns) / 4;
  const hasStretch = first * unit <= span.from && (first + columns) * unit >= span.to;
  return hasStretch && place.low <= (request.low ?? 0) && place.high >= (request.high ?? 0);
}

function wantedPlace(request: TileRequest, span: Span): TileKey {
  const columns = columnsOf(request);
  const level = levelFor(columns, request.span, request.width);
  const addresses =
    request.kind === "map"
      ? addressesFor(request.low ?? 0, request.high ?? 0, request.run.space)
      : { low: 0, high: 0 };
  return { level, tile: tileFor(columns, level, span), smallest: request.smallest, ...addresses };
}

/** How much worse than the wanted tile another one looks. */
function distance(place: TileKey, wanted: TileKey): number {
  const coarser = place.level - wanted.level;
  const tooTall = Math.log2((place.high - place.low || 1) / (wanted.high - wanted.low || 1));
  return (
    (coarser > 0 ? 3 * coarser : -coarser) + Math.abs(place.smallest - wanted.smallest) + Math.abs(tooTall)
  );
}

function nearest<T extends TileKey>(
  places: Iterable<T>,
  wanted: TileKey,
  span: Span,
  request: TileRequest,
): T | null {
  let best: T | null = null;
  for (const place of places) {
    if (covers(place, span, request) && (!best || distance(place, wanted) < distance(best, wanted)))
      best = place;
  }
  return best;
}

function familyOf({ kind, run, by, x }: TileRequest): string {
  return `${kind}/${run.id}/${by ?? ""}/${x}`;
}

function queryOf(request: TileRequest, place: TileKey): Query {
  const { level, tile, smallest, low, high } = place;
  const addresses = request.kind === "map" ? { low, high } : {};
  return { run: request.run.id, by: request.by, x: request.x, level, tile, smallest, ...addresses };
}

/** Tiles of an exported page that answer a request. */
function storedPlaces(request: TileRequest): TileKey[] {
  const matching = stored(request.kind).filter(
    (query) =>
      Number(query.run) === request.run.id &&
      query.x === request.x &&
      (request.kind === "map" || query.by === request.by),
  );
  const number = (value: Query[string]) => Number(value ?? 0);
  return matching.map(({ level, tile, smallest, low, high }) => ({
    level: number(level),
    tile: number(tile),
    smallest: number(smallest),
    low: number(low),
    high: number(high),
  }));
}

function keep(key: string, kept: CachedTile): void {
  cache.set(key, kept);
  cachedBytes += kept.bytes;
  for (const [oldest, { bytes }] of cache) {
    if (cachedBytes <= CACHE_BYTES || oldest === key) break;
    cache.delete(oldest);
    cachedBytes -= bytes;
  }
}

async function load(key: string, request: TileRequest, place: TileKey): Promise<CachedTile | null> {
  try {
    const prepared = prepare(
      decodeTile(await askBytes(request.kind, queryOf(request, place))),
      place.level,
      place.low,
    );
    const kept = { ...place, family: familyOf(request), prepared, bytes: footprint(prepared) };
    keep(key, kept);
    failures.delete(key);
    return kept;
  } catch (error) {
    const problem =
      error instanceof AnswerError ? error : new AnswerError("The answer cannot be read.", String(error));
    failures.clear();
    failures.set(key, { problem, at: performance.now() });
    // Views that still want it ask again.
    setTimeout(() => arrivals.value++, RETRY_MS + 100);
    return null;
  } finally {
    underWay.delete(key);
    arrivals.value++;
  }
}

function fetched(key: string, request: TileRequest, place: TileKey): Promise<CachedTile | null> {
  const asked = underWay.get(key) ?? load(key, request, place);
  underWay.set(key, asked);
  return asked;
}

/**
 * Finds the tiles of one view; loads one at a time, and next the one that is wanted by then.
 */
export class TileFinder {
  private isAsking = false;

  find(request: TileRequest): TileResult {
    const span = visible(request);
    if (!span) return { tile: null, isLoading: false, isCoarse: false, problem: null };
    const ideal = wantedPlace(request, span);
    const place = isExported ? nearest(storedPlaces(request), ideal, span, request) : ideal;
    if (!place) return { tile: null, isLoading: false, isCoarse: true, problem: null };
    const key = path(request.kind, queryOf(request, place));
    const family = familyOf(request);
    const shown =
      cache.get(key) ??
      nearest(
        [...cache.values()].filter((kept) => kept.family === family),
        ideal,
        span,
        request,
      );
    if (shown) this.touch(shown, request);
    const failure = failures.get(key);
    const isThere = cache.has(key);
    if (!isThere && !this.isAsking && !(failure && performance.now() - failure.at < RETRY_MS)) {
      this.isAsking = true;
      void fetched(key, request, place).finally(() => (this.isAsking = false));
    }
    return {
      tile: shown?.prepared ?? null,
      isLoading: !isThere && !failure,
      isCoarse:
        isExported && (place.level > ideal.level || place.smallest > ideal.smallest + MAX_COARSER_LOG2),
      problem: isThere ? null : (failure?.problem ?? null),
    };
  }

  /** Marks a tile as the last one used. */
  private touch(kept: CachedTile, request: TileRequest): void {
    const key = path(request.kind, queryOf(request, kept));
    cache.delete(key);
    cache.set(key, kept);
  }
}

/** The tile with one column for each position, around a position. */
export async function finestAt(
  run: Run,
  by: TimelineBy,
  position: number,
  smallest: number,
): Promise<Prepared | null> {
  const span = { from: position, to: position + 1 };
  const request: TileRequest = { kind: "timeline", run, by, x: "event", span, width: 1, smallest };
  const ideal = wantedPlace(request, span);
  const place = isExported ? nearest(storedPlaces(request), ideal, span, request) : ideal;
  if (!place) return null;
  const key = path(request.kind, queryOf(request, place));
  const kept = cache.get(key) ?? (await fetched(key, request, place));
  return kept?.prepared ?? null;
}
