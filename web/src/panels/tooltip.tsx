// The tip at the pointer.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { mergedCss, shownTheme } from "../canvas/colors";
import { groupColor, groupingOf } from "../canvas/paints";
import type { HoveredSlice, Picture } from "../canvas/picture";
import { columnsAlike, type Hit, type Prepared } from "../canvas/raster";
import { type BlockDetails, FREE, GAP, MERGED, type Run } from "../protocol";
import { answerTo } from "../protocol/use-answer";
import { momentName, stepAt } from "../state/axis";
import { bytes, count, counted, duration, percent, site } from "../state/format";
import { xAxis } from "../state/store";
import { nextToPointer } from "./parts";

/** How long the pointer has to rest before a block is looked up. */
const LOOKUP_DELAY_MS = 60;
const MAX_FRAMES = 4;

export function PictureTip({ of }: { of: Picture }) {
  const hovered = of.hovered.value;
  return hovered && <Tip of={of} hovered={hovered} />;
}

function Tip({ of, hovered: { hit, tile, at } }: { of: Picture; hovered: HoveredSlice }) {
  const style = nextToPointer(of.surface.onPage(at));
  const isBlock = of.by() === "block" && hit.id < GAP;
  return (
    <div class="tip picture-tip" style={style}>
      <What of={of} hit={hit} tile={tile} />
      {isBlock && <BlockWords key={hit.id} run={of.run} row={hit.id} />}
      <When run={of.run} hit={hit} tile={tile} />
    </div>
  );
}

function What({ of, hit, tile }: { of: Picture; hit: Hit; tile: Prepared }) {
  const theme = shownTheme.value;
  const share = ` · ${percent(hit.bytes, hit.total)} of allocated memory`;
  if (hit.run === null && hit.height < hit.reserved)
    return <Heading>Reserved, not allocated: {bytes(hit.reserved - hit.total)}</Heading>;
  if (hit.run === null || hit.id === GAP) return <Heading>Not reserved at this moment</Heading>;
  if (hit.id === FREE) return <Heading>Reserved and free: {bytes(hit.bytes)}</Heading>;
  if (hit.id === MERGED) {
    const things = of.by() === "block" ? "block" : "group";
    return (
      <>
        <Heading swatch={mergedCss(theme)}>{counted(hit.pieces, things)}, each too small to draw</Heading>
        <p>{tile.used ? `${bytes(hit.used)} in use of ${bytes(hit.bytes)}` : bytes(hit.bytes) + share}</p>
      </>
    );
  }
  const group = tile.groups.get(hit.group);
  if (!group) return null;
  return (
    <>
      <Heading swatch={groupColor(of.run, groupingOf(of.by()), group, theme).css}>{group.label}</Heading>
      {group.detail && <p class="dim">{group.detail}</p>}
      {of.by() !== "block" && <p>{bytes(hit.bytes) + share}</p>}
    </>
  );
}

function Heading({ swatch, children }: { swatch?: string; children: ComponentChildren }) {
  return (
    <p class="tip-heading">
      {swatch && <i class="swatch" style={{ background: swatch }} />}
      <b>{children}</b>
    </p>
  );
}

/** The moment that the column shows. */
function When({ run, hit, tile }: { run: Run; hit: Hit; tile: Prepared }) {
  const length = 2 ** tile.level;
  const alike = columnsAlike(tile, hit.column);
  const first = (tile.first + alike.first) * length;
  const last = Math.min((tile.first + alike.last + 1) * length - 1, run.events);
  const step = stepAt(run, hit.position);
  const lowest = tile.lowest[hit.column]!;
  const stretch =
    xAxis.value === "event" && last > first
      ? `highest of events ${count(Math.max(0, first - 1))}–${count(last - 1)}, at `
      : "";
  return (
    <p class="dim tip-when">
      {stretch + momentName(run, hit.position)}
      {step !== null && ` · step ${count(step)}`}
      {run.endUs > run.beginUs && ` · ${duration(tile.elapsedUs[hit.column]!)}`}
      <br />
      {!tile.used &&
        `${bytes(hit.total)} allocated${lowest < hit.total ? ` (at least ${bytes(lowest)} within this column)` : ""} · `}
      {bytes(hit.reserved)} reserved
    </p>
  );
}

function BlockWords({ run, row }: { run: Run; row: number }) {
  const [block, setBlock] = useState<BlockDetails | null>(null);
  useEffect(() => {
    let isHere = true;
    const timer = setTimeout(() => {
      answerTo("block", { run: run.id, row }).then(
        (found) => isHere && setBlock(found),
        // The tip works without it; the details show the reason after a click.
        () => {},
      );
    }, LOOKUP_DELAY_MS);
    return () => {
      isHere = false;
      clearTimeout(timer);
    };
  }, []);
  if (!block) return <p class="dim">…</p>;
  const own = block.stack.filter((frame) => frame.user);
  const frames = (own.length ? own : block.stack).slice(0, MAX_FRAMES);
  return (
    <>
      <p>
        {bytes(block.size)}
        {block.tensor ? ` · ${block.tensor}` : ` · ${block.category}`}
      </p>
      <p>allocated for {block.lifetime}</p>
      <ol class="tip-stack">
        {frames.map((frame, depth) => (
          <li key={depth}>
            {frame.function} <span class="dim">{site(frame)}</span>
          </li>
        ))}
      </ol>
    </>
  );
}
