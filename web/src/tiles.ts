// Tiles for what is to be seen: which one shows it best, a bounded store of those that came, and what to draw until it comes.

import { signal } from "@preact/signals";
import { COLUMNS, path, tile as decode, type By, type Query, type Run, type XAxis } from "./protocol";
import { footprint, prepare, type Prepared } from "./raster";
import { askBytes, Failed, isExported, stored } from "./source";
import { extent, type Span } from "./store";

/** What a view wants to show. */
export interface Sight {
  kind: "timeline" | "map";
  run: Run;
  /** Only of timelines. */
  by?: By;
  x: XAxis;
  span: Span;
  /** In CSS pixels. */
  width: number;
  smallest: number;
  /** Addresses, only of maps. */
  low?: number;
  high?: number;
}

export interface Seen {
  tile: Prepared | null;
  /** The tile that was wanted is on its way. */
  isLoading: boolean;
  /** This is an exported page, and it has no finer tile. */
  isCoarse: boolean;
  problem: Failed | null;
}

/** Which tile of a sight. */
interface Place {
  level: number;
  tile: number;
  smallest: number;
  low: number;
  high: number;
}

interface Kept extends Place {
  family: string;
  prepared: Prepared;
  bytes: number;
}

const CACHE_BYTES = 64 * 2 ** 20;
/** A tile that begins anywhere in its first quarter still has this share of its columns. */
const SURE = 3 / 4;
const RETRY_MS = 3000;
/** So many powers of two the smallest runs of an exported tile may be too large before it is said. */
const UNNOTICED = 2;

const cache = new Map<string, Kept>();
let cachedBytes = 0;
const underWay = new Map<string, Promise<Kept | null>>();
const failures = new Map<string, { problem: Failed; at: number }>();

/** Counts tiles that came or failed. Who has looked through a lens looks again when it changes. */
export const arrivals = signal(0);

export function isWaiting(): boolean {
  return underWay.size > 0;
}

/** Tiles of single blocks have fewer columns. */
function columnsOf({ kind, by }: Sight): number {
  return kind === "map" || by === "block" ? COLUMNS.blocks : COLUMNS.bands;
}

/** The finest level whose columns are at least one pixel wide. */
function levelFor(columns: number, span: Span, width: number): number {
  const most = SURE * columns - 1;
  return Math.max(0, Math.ceil(Math.log2((span.to - span.from) / Math.min(Math.max(1, width), most))));
}

/** Runs that are less than a pixel high are merged. */
export function smallestFor(bytesPerPixel: number): number {
  return Math.max(0, Math.floor(Math.log2(Math.max(1, bytesPerPixel))));
}

/** Addresses around the wanted ones, on a grid that is coarse enough to move about in. */
export function addressesFor(low: number, high: number, space: number): { low: number; high: number } {
  const grid = 2 ** Math.floor(Math.log2(Math.max(2, high - low)) - 1);
  return { low: Math.max(0, Math.floor(low / grid) * grid), high: Math.min(space, Math.ceil(high / grid) * grid) };
}

/** The tile of a level that has the stretch nearest to its middle. */
function tileFor(columns: number, level: number, span: Span): number {
  const stride = columns / 4;
  const first = Math.floor(span.from / 2 ** level);
  const last = Math.ceil(span.to / 2 ** level);
  const centred = Math.round((first + last - columns) / 2 / stride);
  return Math.max(0, Math.ceil((last - columns) / stride), Math.min(centred, Math.floor(first / stride)));
}

/** The part of the sight's stretch that the run has. */
function visible({ run, x, span }: Sight): Span | null {
  const whole = extent(run, x);
  const from = Math.max(span.from, whole.from);
  const to = Math.min(span.to, whole.to);
  return from < to ? { from, to } : null;
}

function covers(place: Place, span: Span, sight: Sight): boolean {
  const unit = 2 ** place.level;
  const columns = columnsOf(sight);
  const first = (place.tile * columns) / 4;
  const hasStretch = first * unit <= span.from && (first + columns) * unit >= span.to;
  return hasStretch && place.low <= (sight.low ?? 0) && place.high >= (sight.high ?? 0);
}

function wantedPlace(sight: Sight, span: Span): Place {
  const columns = columnsOf(sight);
  const level = levelFor(columns, sight.span, sight.width);
  const addresses = sight.kind === "map" ? addressesFor(sight.low ?? 0, sight.high ?? 0, sight.run.space) : { low: 0, high: 0 };
  return { level, tile: tileFor(columns, level, span), smallest: sight.smallest, ...addresses };
}

/** How much worse than the wanted one another place looks. */
function distance(place: Place, wanted: Place): number {
  const coarser = place.level - wanted.level;
  const tooTall = Math.log2((place.high - place.low || 1) / (wanted.high - wanted.low || 1));
  return (coarser > 0 ? 3 * coarser : -coarser) + Math.abs(place.smallest - wanted.smallest) + Math.abs(tooTall);
}

function nearest<T extends Place>(places: Iterable<T>, wanted: Place, span: Span, sight: Sight): T | null {
  let best: T | null = null;
  for (const place of places) {
    if (covers(place, span, sight) && (!best || distance(place, wanted) < distance(best, wanted))) best = place;
  }
  return best;
}

function familyOf({ kind, run, by, x }: Sight): string {
  return `${kind}/${run.id}/${by ?? ""}/${x}`;
}

function queryOf(sight: Sight, place: Place): Query {
  const { level, tile, smallest, low, high } = place;
  const addresses = sight.kind === "map" ? { low, high } : {};
  return { run: sight.run.id, by: sight.by, x: sight.x, level, tile, smallest, ...addresses };
}

/** What an exported page has of a sight. */
function storedPlaces(sight: Sight): Place[] {
  const matching = stored(sight.kind).filter(
    (query) => Number(query.run) === sight.run.id && query.x === sight.x && (sight.kind === "map" || query.by === sight.by),
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

function keep(key: string, kept: Kept): void {
  cache.set(key, kept);
  cachedBytes += kept.bytes;
  for (const [oldest, { bytes }] of cache) {
    if (cachedBytes <= CACHE_BYTES || oldest === key) break;
    cache.delete(oldest);
    cachedBytes -= bytes;
  }
}

async function load(key: string, sight: Sight, place: Place): Promise<Kept | null> {
  try {
    const prepared = prepare(decode(await askBytes(sight.kind, queryOf(sight, place))), place.level, place.low);
    const kept = { ...place, family: familyOf(sight), prepared, bytes: footprint(prepared) };
    keep(key, kept);
    failures.delete(key);
    return kept;
  } catch (error) {
    const problem = error instanceof Failed ? error : new Failed("This picture cannot be read.", String(error));
    failures.clear();
    failures.set(key, { problem, at: performance.now() });
    // Who still wants it asks again.
    setTimeout(() => arrivals.value++, RETRY_MS + 100);
    return null;
  } finally {
    underWay.delete(key);
    arrivals.value++;
  }
}

function fetched(key: string, sight: Sight, place: Place): Promise<Kept | null> {
  const asked = underWay.get(key) ?? load(key, sight, place);
  underWay.set(key, asked);
  return asked;
}

/** One view's way to its tiles: it asks for one at a time, and what it wants by then when that one has come. */
export class Lens {
  private isAsking = false;

  look(sight: Sight): Seen {
    const span = visible(sight);
    if (!span) return { tile: null, isLoading: false, isCoarse: false, problem: null };
    const ideal = wantedPlace(sight, span);
    const place = isExported ? nearest(storedPlaces(sight), ideal, span, sight) : ideal;
    if (!place) return { tile: null, isLoading: false, isCoarse: true, problem: null };
    const key = path(sight.kind, queryOf(sight, place));
    const family = familyOf(sight);
    const shown = cache.get(key) ?? nearest([...cache.values()].filter((kept) => kept.family === family), ideal, span, sight);
    if (shown) this.touch(shown, sight);
    const failure = failures.get(key);
    const isThere = cache.has(key);
    if (!isThere && !this.isAsking && !(failure && performance.now() - failure.at < RETRY_MS)) {
      this.isAsking = true;
      void fetched(key, sight, place).finally(() => (this.isAsking = false));
    }
    return {
      tile: shown?.prepared ?? null,
      isLoading: !isThere && !failure,
      isCoarse: isExported && (place.level > ideal.level || place.smallest > ideal.smallest + UNNOTICED),
      problem: isThere ? null : (failure?.problem ?? null),
    };
  }

  /** What was shown last goes last. */
  private touch(kept: Kept, sight: Sight): void {
    const key = path(sight.kind, queryOf(sight, kept));
    cache.delete(key);
    cache.set(key, kept);
  }
}

/** The tile with one column for each position, around a position. */
export async function finestAt(run: Run, by: By, position: number, smallest: number): Promise<Prepared | null> {
  const span = { from: position, to: position + 1 };
  const sight: Sight = { kind: "timeline", run, by, x: "event", span, width: 1, smallest };
  const ideal = wantedPlace(sight, span);
  const place = isExported ? nearest(storedPlaces(sight), ideal, span, sight) : ideal;
  if (!place) return null;
  const key = path(sight.kind, queryOf(sight, place));
  const kept = cache.get(key) ?? (await fetched(key, sight, place));
  return kept?.prepared ?? null;
}
