// The keys of the timeline. They work wherever the focus is, except in fields; arrows only where nothing else
// needs them.

import { isField } from "../panels/keys";
import type { Run } from "../protocol";
import { deselect, goTo, pan, rulerIsOn, showAll, stepMoment, zoom } from "../state/navigate";
import { moment, run, shown } from "../state/store";

const PAN_SHARE = 0.15;
const ZOOM_FACTOR = 1.4;

const ARROWS: Record<string, () => void> = {
  ArrowLeft: () => pan(-PAN_SHARE * (shown.value.to - shown.value.from)),
  ArrowRight: () => pan(PAN_SHARE * (shown.value.to - shown.value.from)),
  ArrowUp: () => zoom(1 / ZOOM_FACTOR),
  ArrowDown: () => zoom(ZOOM_FACTOR),
  Home: showAll,
};

const LETTERS: Record<string, (of: Run) => void> = {
  "+": () => zoom(1 / ZOOM_FACTOR),
  "=": () => zoom(1 / ZOOM_FACTOR),
  "-": () => zoom(ZOOM_FACTOR),
  ",": (of) => stepMoment(of, -1),
  ".": (of) => stepMoment(of, 1),
  p: (of) => goTo(of.peak.position, of.peak.timeUs),
  o: goToNextOom,
  n: goToNextStep,
  r: () => (rulerIsOn.value = !rulerIsOn.value),
  Escape: deselect,
};

/** Goes on with the first after the last. */
function goToNextOom({ ooms }: Run): void {
  const next = ooms.find((oom) => oom.position > moment.value) ?? ooms[0];
  if (next) goTo(next.position, next.timeUs);
}

function goToNextStep({ steps }: Run): void {
  const found = steps.bounds.findIndex((bound) => bound > moment.value);
  const next = Math.max(0, found);
  if (steps.bounds.length) goTo(steps.bounds[next]!, steps.bounds_us[next]!);
}

/** Lists, tabs and menus use the arrow keys themselves. */
function leavesArrows(target: EventTarget | null): boolean {
  return !(
    target instanceof HTMLElement &&
    target.closest(
      "[role=grid], [role=treegrid], [role=separator], [role=radiogroup], .icicle, .treemap, .tabs",
    )
  );
}

export function listenForTimelineKeys(): () => void {
  const listen = (event: KeyboardEvent) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isField(event.target))
      return;
    // A dialog in front takes the keys.
    if (document.querySelector("dialog[open]")) return;
    const act = LETTERS[event.key] ?? (leavesArrows(event.target) ? ARROWS[event.key] : undefined);
    if (!act || !run.value) return;
    event.preventDefault();
    act(run.value);
  };
  window.addEventListener("keydown", listen);
  return () => window.removeEventListener("keydown", listen);
}
