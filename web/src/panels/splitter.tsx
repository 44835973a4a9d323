// A border between two panes, moved by pointer or arrow keys.

import type { Signal } from "@preact/signals";
import { useRef } from "preact/hooks";

export function Splitter(props: {
  label: string;
  /** The border moves along this axis. */
  axis: "x" | "y";
  value: Signal<number>;
  lowest: number;
  highest: number;
  /** The value for a position of the pointer, given the pane around the splitter. */
  at: (place: { x: number; y: number }, around: DOMRect) => number;
  keyStep: number;
}) {
  const element = useRef<HTMLDivElement>(null);
  const { value, lowest, highest } = props;
  const set = (to: number) => (value.value = Math.min(highest, Math.max(lowest, to)));
  const back = props.axis === "x" ? "ArrowLeft" : "ArrowUp";
  const forth = props.axis === "x" ? "ArrowRight" : "ArrowDown";
  return (
    <div
      ref={element}
      class={`splitter ${props.axis}`}
      role="separator"
      tabIndex={0}
      aria-label={props.label}
      aria-orientation={props.axis === "x" ? "vertical" : "horizontal"}
      aria-valuenow={Math.round(value.value * 100) / 100}
      aria-valuemin={lowest}
      aria-valuemax={highest}
      onPointerDown={(event) => {
        event.preventDefault();
        event.currentTarget.setPointerCapture(event.pointerId);
      }}
      onPointerMove={(event) => {
        if (!event.currentTarget.hasPointerCapture(event.pointerId)) return;
        const around = event.currentTarget.parentElement!.getBoundingClientRect();
        set(props.at({ x: event.clientX, y: event.clientY }, around));
      }}
      onKeyDown={(event) => {
        const sign = event.key === back ? -1 : event.key === forth ? 1 : 0;
        if (!sign) return;
        event.preventDefault();
        event.stopPropagation();
        set(value.value + sign * props.keyStep);
      }}
    />
  );
}
