// A cell per rank, coloured by its peak: one canvas, however many ranks there are.

import { useEffect, useRef, useState } from "preact/hooks";
import { shownTheme } from "../canvas/colors";
import type { Ranks } from "../protocol";
import { bytes } from "../state/format";
import { openRun } from "../state/inputs";
import { shortName } from "../state/names";
import { overview, run } from "../state/store";
import { pointedGroup } from "./rank-groups";
import { useSize } from "./size";

/** Side of a cell with its gap, in CSS pixels: smaller ones for more ranks, so that most screens show all. */
const cellPixels = (ranks: number) => (ranks > 1024 ? 9 : 14);
const GAP_PIXELS = 2;
/** Opacity of the lowest peak; the highest is opaque. */
const FAINTEST = 0.16;
/** Differences below this share of the highest peak have one colour: they are noise. */
const MIN_SPREAD = 0.01;

/** A rank as it is drawn. */
interface Cell {
  input: number;
  /** Null if it is not read yet, or cannot be read. */
  rank: Ranks["ranks"][number] | null;
  isBroken: boolean;
}

function cellsOf({ ranks, unreadable }: Ranks, byPeak: boolean): Cell[] {
  const cells: Cell[] = ranks.map((rank) => ({ input: rank.input, rank, isBroken: false }));
  cells.push(...unreadable.map(({ input }) => ({ input, rank: null, isBroken: true })));
  const known = new Set(cells.map((cell) => cell.input));
  overview.value?.inputs.forEach((_, input) => {
    if (!known.has(input)) cells.push({ input, rank: null, isBroken: false });
  });
  const peak = (cell: Cell) => cell.rank?.peak ?? -1;
  return cells.sort((a, b) => (byPeak ? peak(b) - peak(a) : 0) || a.input - b.input);
}

export function RankCells({ of, byPeak }: { of: Ranks; byPeak: boolean }) {
  const element = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const { width } = useSize(element);
  const [cursor, setCursor] = useState<number | null>(null);
  const cells = cellsOf(of, byPeak);
  const pitch = cellPixels(cells.length);
  const columns = Math.max(1, Math.floor(width / pitch));
  const height = Math.ceil(cells.length / columns) * pitch;
  const [chosen, group, theme] = [run.value?.id, pointedGroup.value, shownTheme.value];

  useEffect(() => {
    if (canvas.current && width)
      draw(canvas.current, cells, { pitch, columns, width, height, cursor, chosen, group });
  }, [of, byPeak, width, cursor, chosen, group, theme]);

  const at = (event: MouseEvent): number | null => {
    const box = canvas.current!.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const place = Math.floor(y / pitch) * columns + Math.floor(x / pitch);
    return x < columns * pitch && place >= 0 && place < cells.length ? place : null;
  };
  const open = (place: number | null) => {
    const cell = place === null ? undefined : cells[place];
    if (cell) void openRun(cell.rank?.run ?? cell.input);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const steps: Record<string, number> = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -columns,
      ArrowDown: columns,
      Home: -cells.length,
      End: cells.length,
    };
    const step = steps[event.key];
    if (step !== undefined) setCursor(Math.max(0, Math.min(cells.length - 1, (cursor ?? 0) + step)));
    else if (event.key === "Enter") open(cursor);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  return (
    <div class="rank-cells">
      <div
        ref={element}
        role="grid"
        tabIndex={0}
        aria-label="Ranks, coloured by their peak"
        aria-describedby="rank-cell"
        onKeyDown={onKeyDown}
        onPointerMove={(event) => setCursor(at(event))}
        onPointerLeave={() => setCursor(null)}
        onClick={(event) => open(at(event))}
      >
        <canvas ref={canvas} style={{ width: `${width}px`, height: `${height}px` }} />
      </div>
      <p id="rank-cell" class="dim" role="status">
        {cursor === null ? scaleWords(of) : words(cells[cursor], of)}
      </p>
    </div>
  );
}

/** What the colours mean. */
function scaleWords({ ranks, groups }: Ranks): string {
  if (!ranks.length) return "No rank is read yet.";
  const lowest = Math.min(...groups.map((group) => group.lowest));
  return `The darker, the higher the peak: ${bytes(lowest)} to ${bytes(groups[0]!.highest)}. Click to show a rank.`;
}

function words(cell: Cell | undefined, { unreadable }: Ranks): string {
  if (!cell) return "";
  const name = shortName(overview.value?.inputs[cell.input] ?? "");
  if (cell.rank) return `${name}: peak ${bytes(cell.rank.peak)}, ${bytes(cell.rank.reserved)} reserved`;
  const broken = unreadable.find((each) => each.input === cell.input);
  return broken ? `${name}: ${broken.problem}` : `${name}: not read yet`;
}

interface Look {
  pitch: number;
  columns: number;
  width: number;
  height: number;
  cursor: number | null;
  /** Number of the run that the page shows. */
  chosen: number | undefined;
  group: number | null;
}

function draw(canvas: HTMLCanvasElement, cells: Cell[], look: Look): void {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(look.width * ratio);
  canvas.height = Math.round(look.height * ratio);
  const context = canvas.getContext("2d")!;
  const style = getComputedStyle(canvas);
  const ink = (name: string) => style.getPropertyValue(`--${name}`).trim();
  const [accent, bad, line, text] = [ink("accent"), ink("bad"), ink("line"), ink("text")];
  const peaks = cells.flatMap((cell) => (cell.rank ? [cell.rank.peak] : []));
  const highest = peaks.reduce((a, b) => Math.max(a, b), 0);
  const lowest = peaks.reduce((a, b) => Math.min(a, b), highest);
  const range = Math.max(highest - lowest, MIN_SPREAD * highest, 1);
  const side = look.pitch - GAP_PIXELS;
  context.scale(ratio, ratio);
  cells.forEach((cell, place) => {
    const x = (place % look.columns) * look.pitch;
    const y = Math.floor(place / look.columns) * look.pitch;
    const share = cell.rank ? (cell.rank.peak - lowest) / range : 0;
    context.globalAlpha = cell.rank ? FAINTEST + (1 - FAINTEST) * share : 1;
    context.fillStyle = cell.rank ? accent : cell.isBroken ? bad : line;
    if (cell.rank || cell.isBroken) context.fillRect(x, y, side, side);
    else context.fillRect(x + side / 3, y + side / 3, side / 3, side / 3);
    context.globalAlpha = 1;
    const isPointed = place === look.cursor || (look.group !== null && cell.rank?.group === look.group);
    if (isPointed || (cell.rank && cell.rank.run === look.chosen)) {
      context.strokeStyle = text;
      context.lineWidth = isPointed ? 1 : 2;
      context.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
    }
  });
}
