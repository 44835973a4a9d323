// Gestures in pictures over the shared x axis.

import { batch } from "@preact/signals";
import { GAP } from "../protocol";
import { showLifetime } from "../state/focus";
import { pan, ruler, rulerIsOn, showAround, zoom } from "../state/navigate";
import { interval, moment, selection, shown } from "../state/store";
import type { Drag, GestureHandlers, Point } from "./gestures";
import { chosenNumber, groupingOf } from "./paints";
import type { Picture } from "./picture";
import { columnsWith, type Hit } from "./raster";

/** Zoom factor of a double click on nothing in particular. */
const DOUBLE_CLICK_ZOOM_FACTOR = 0.25;

export function scrub(picture: Picture): Drag {
  return {
    move(to) {
      const position = picture.positionAt(to.x);
      if (position !== null) moment.value = position;
    },
  };
}

function brush(picture: Picture, begin: Point): Drag {
  const from = picture.positionAt(begin.x) ?? 0;
  return {
    move(to) {
      const position = picture.positionAt(to.x) ?? from;
      if (position !== from)
        interval.value = { from: Math.min(from, position), to: Math.max(from, position) };
    },
  };
}

function measure(picture: Picture, begin: Point): Drag {
  const from = picture.xAt(begin.x);
  return { move: (to) => void (ruler.value = { run: picture.run.id, from, to: picture.xAt(to.x) }) };
}

export function moveAlong(picture: Picture): Drag {
  return { move: (to, from) => pan(picture.xAt(from.x) - picture.xAt(to.x)) };
}

/** The drag that begins here, unless it moves the picture. */
export function specialDrag(picture: Picture, begin: Point, event: PointerEvent): Drag | null {
  if (event.altKey || rulerIsOn.value) return measure(picture, begin);
  if (event.shiftKey) return brush(picture, begin);
  return picture.isOnMoment(begin) ? scrub(picture) : null;
}

/** Selects a slice, and goes to its moment. */
export function choose(picture: Picture, hit: Hit): void {
  batch(() => {
    moment.value = Math.min(hit.position, picture.run.events);
    ruler.value = null;
    if (hit.id >= GAP) return;
    const by = picture.by();
    const group = picture.seen.value.tile?.groups.get(hit.group);
    const id = group && chosenNumber(picture.run, groupingOf(by), group);
    if (by === "block") selection.value = { kind: "block", row: hit.id };
    else if (id !== undefined && id !== null) selection.value = { kind: "group", by, id };
  });
}

/** Shows the lifetime of a block, or the interval in which a group has memory. */
export function fill(picture: Picture, at: Point, hit: Hit): void {
  const { tile } = picture.seen.value;
  if (!tile || hit.id >= GAP) {
    zoom(DOUBLE_CLICK_ZOOM_FACTOR, picture.xAt(at.x));
    return;
  }
  if (picture.by() === "block") {
    void showLifetime(picture.run, hit.id);
    return;
  }
  const { first, last } = columnsWith(tile, hit.column, hit.id);
  const unit = 2 ** tile.level;
  const stretch = { from: (tile.first + first) * unit, to: (tile.first + last + 1) * unit };
  const { from, to } = shown.value;
  if (stretch.to - stretch.from > 0.8 * (to - from)) zoom(DOUBLE_CLICK_ZOOM_FACTOR, picture.xAt(at.x));
  else showAround(stretch);
}

/** The gestures of a picture whose y axis has `zoomY`, and whose plain drag is `drag`. */
export function gestureHandlers(
  picture: Picture,
  zoomY: (at: Point, factor: number) => void,
  drag: () => Drag,
): GestureHandlers {
  return {
    hover: (at) => void (picture.pointer.value = at),
    zoom: (at, factor, axis) => (axis === "x" ? zoom(factor, picture.xAt(at.x)) : zoomY(at, factor)),
    pan: (pixels) => pan(picture.xAt(pixels) - picture.xAt(0)),
    grab: (at, event) => specialDrag(picture, at, event) ?? drag(),
    click(at) {
      const hit = picture.hitAt(at);
      if (hit) choose(picture, hit);
    },
    doubleClick(at) {
      const hit = picture.hitAt(at);
      if (hit) fill(picture, at, hit);
    },
  };
}
