// One loop draws all canvases. A picture is described from signals and drawn in the next frame; however often
// its description changes before that, it is drawn once.

import { effect } from "@preact/signals";

const MAX_FRAME_TIMES = 600;

/** How long the last frames took to draw, in milliseconds. */
export const frameTimes: number[] = [];

const stale = new Set<() => void>();
let isScheduled = false;

function drawAll(): void {
  isScheduled = false;
  const begin = performance.now();
  const now = [...stale];
  stale.clear();
  for (const draw of now) draw();
  frameTimes.push(performance.now() - begin);
  if (frameTimes.length > MAX_FRAME_TIMES) frameTimes.shift();
}

/**
 * Draws what `describe` returns, again whenever a signal that it reads changes; returns a function that stops
 * it.
 */
export function follow<Scene>(describe: () => Scene, paint: (scene: Scene) => void): () => void {
  let scene: Scene;
  const draw = () => paint(scene);
  const stop = effect(() => {
    scene = describe();
    stale.add(draw);
    if (!isScheduled) requestAnimationFrame(drawAll);
    isScheduled = true;
  });
  return () => {
    stop();
    stale.delete(draw);
  };
}

export function allDrawn(): boolean {
  return !isScheduled;
}
