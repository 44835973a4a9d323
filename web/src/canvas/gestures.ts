// Pointer and wheel events as gestures: hover, zoom, pan, click, drag.

export interface Point {
  x: number;
  y: number;
}

/** What a drag does as the pointer moves. */
export interface Drag {
  move(to: Point, from: Point): void;
  end?(to: Point, from: Point): void;
}

export interface GestureHandlers {
  /** null: the pointer has left, or is dragging. */
  hover(at: Point | null): void;
  /** Makes the visible interval `factor` times as long. */
  zoom(at: Point, factor: number, axis: "x" | "y"): void;
  /** Moves the visible interval by pixels. */
  pan(pixels: number): void;
  grab(at: Point, event: PointerEvent): Drag;
  click(at: Point): void;
  doubleClick(at: Point): void;
}

/** A pointer that moved less than this clicks. */
const CLICK_PIXELS = 4;
const WHEEL_LINE_PIXELS = 16;
const WHEEL_ZOOM_PER_PIXEL = 0.002;

export function attach(element: HTMLElement, hands: GestureHandlers): () => void {
  let begin: Point | null = null;
  let last: Point = { x: 0, y: 0 };
  let drag: Drag | null = null;

  const at = (event: MouseEvent): Point => {
    const box = element.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };

  const listeners: Partial<{
    [Name in keyof HTMLElementEventMap]: (event: HTMLElementEventMap[Name]) => void;
  }> = {
    pointerdown(event) {
      if (event.button !== 0) return;
      element.setPointerCapture(event.pointerId);
      begin = last = at(event);
    },
    pointermove(event) {
      const now = at(event);
      if (!begin) {
        hands.hover(now);
        return;
      }
      if (!drag && Math.hypot(now.x - begin.x, now.y - begin.y) >= CLICK_PIXELS) {
        drag = hands.grab(begin, event);
        hands.hover(null);
      }
      drag?.move(now, last);
      if (drag) last = now;
    },
    pointerup(event) {
      if (!begin) return;
      if (drag) drag.end?.(at(event), begin);
      else hands.click(at(event));
      begin = drag = null;
    },
    pointercancel() {
      begin = drag = null;
    },
    pointerleave() {
      if (!begin) hands.hover(null);
    },
    dblclick(event) {
      hands.doubleClick(at(event));
    },
    wheel(event) {
      event.preventDefault();
      const scale = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? WHEEL_LINE_PIXELS : 1;
      const [across, along] = [event.deltaX * scale, event.deltaY * scale];
      if (event.ctrlKey) hands.zoom(at(event), Math.exp(along * WHEEL_ZOOM_PER_PIXEL), "y");
      else if (event.shiftKey || Math.abs(across) > Math.abs(along)) hands.pan(across || along);
      else hands.zoom(at(event), Math.exp(along * WHEEL_ZOOM_PER_PIXEL), "x");
    },
  };
  const entries = Object.entries(listeners) as [string, EventListener][];
  for (const [name, listener] of entries) element.addEventListener(name, listener, { passive: false });
  return () => {
    for (const [name, listener] of entries) element.removeEventListener(name, listener);
  };
}
