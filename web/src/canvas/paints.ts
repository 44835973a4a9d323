// The colours of a tile. In a comparison a site has one colour in both runs, although
// each run numbers its groups on its own.

import type { Group, GroupBy, Run, TimelineBy } from "../protocol";
import { run as chosenRun } from "../state/store";
import { type Color, colorOf, NEUTRALS, type Theme } from "./colors";
import type { Paints, Prepared } from "./raster";

/** Blocks have the colours of their sites. */
export function groupingOf(by: TimelineBy): GroupBy {
  return by === "block" ? "site" : by;
}

const nameOf = ({ label, detail }: Group) => `${label}\n${detail}`;

/** Numbers of the groups of a run that were seen so far, by their names. */
const numbers = new Map<string, Map<string, number>>();

function numbersOf(run: Run, by: TimelineBy): Map<string, number> {
  const key = `${run.id}/${by}`;
  const known = numbers.get(key) ?? new Map<string, number>();
  numbers.set(key, known);
  return known;
}

export function isChosen(run: Run): boolean {
  return run.id === chosenRun.value?.id;
}

/** The number that the chosen run gives to a group of any run; null where it has no such group. */
export function chosenNumber(run: Run, by: TimelineBy, group: Group): number | null {
  const chosen = chosenRun.value;
  if (!chosen || isChosen(run)) return group.id;
  return numbersOf(chosen, by).get(nameOf(group)) ?? null;
}

/** The number that a run gives to a group of the chosen run, as far as the tile has it. */
export function ownNumber(run: Run, by: TimelineBy, chosen: number, tile: Prepared): number | null {
  if (isChosen(run)) return chosen;
  for (const group of tile.groups.values()) if (chosenNumber(run, by, group) === chosen) return group.id;
  return null;
}

export function groupColor(run: Run, by: TimelineBy, group: Group, theme: Theme): Color {
  return colorOf(by, chosenNumber(run, by, group) ?? group.id, group.label, theme);
}

/** Neighbouring blocks of one site: every other one is a little darker. */
const shaded = (color: number) =>
  ((color & 0xff000000) | ((color & 0xffffff) - ((color >>> 3) & 0x1f1f1f))) >>> 0;

const made = new WeakMap<Prepared, { paints: Paints; theme: Theme; chosen: Run | null; known: number }>();

/** The paints of a tile; `by` is how it is grouped, or `block` for single blocks. */
export function paintsFor(
  tile: Prepared,
  run: Run,
  by: TimelineBy,
  theme: Theme,
  shadesUsage = false,
): Paints {
  const grouping = groupingOf(by);
  if (isChosen(run))
    for (const group of tile.groups.values()) numbersOf(run, grouping).set(nameOf(group), group.id);
  const chosen = chosenRun.value;
  const known = chosen ? numbersOf(chosen, grouping).size : 0;
  const before = made.get(tile);
  const isSame =
    before?.theme === theme && before.chosen === chosen && (isChosen(run) || before.known === known);
  if (before && isSame) return before.paints;

  const variants = by === "block" ? 2 : 1;
  let last = 0;
  for (const id of tile.groups.keys()) last = Math.max(last, id);
  const colors = new Uint32Array(variants * (last + 1));
  for (const group of tile.groups.values()) {
    const color = groupColor(run, grouping, group, theme).packed;
    colors[group.id * variants] = color;
    if (variants === 2) colors[group.id * variants + 1] = shaded(color);
  }
  const paints: Paints = { neutrals: NEUTRALS[theme], colors, variants, shadesUsage };
  made.set(tile, { paints, theme, chosen, known });
  return paints;
}
