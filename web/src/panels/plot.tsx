// A picture on the page: its canvases, its gestures, and its label for screen readers.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { follow } from "../canvas/drawloop";
import { attach, type GestureHandlers } from "../canvas/gestures";
import type { Picture } from "../canvas/picture";
import { Surface } from "../canvas/surface";
import { Problem } from "./parts";

/** A picture that can be drawn. */
export interface Drawn extends Picture {
  describe(): unknown;
  paint(): void;
}

interface PlotProps<P extends Drawn> {
  make: (surface: Surface) => P;
  hands: (picture: P) => GestureHandlers;
  /** What the picture shows, in a sentence. */
  label: string;
  children?: (picture: P) => ComponentChildren;
}

/** Keyed by its run: another run gets another plot. */
export function Plot<P extends Drawn>({ make, hands, label, children }: PlotProps<P>) {
  const frame = useRef<HTMLDivElement>(null);
  const bands = useRef<HTMLCanvasElement>(null);
  const marks = useRef<HTMLCanvasElement>(null);
  const [picture, setPicture] = useState<P | null>(null);

  useEffect(() => {
    const surface = new Surface(bands.current!, marks.current!);
    const made = make(surface);
    const ends = [
      surface.follow(frame.current!),
      attach(bands.current!, hands(made)),
      follow(made.describe, made.paint),
    ];
    setPicture(made);
    return () => ends.forEach((end) => end());
  }, []);

  return (
    <div ref={frame} class="plot">
      <canvas ref={bands} class="bands" role="img" aria-label={label} tabIndex={0} />
      <canvas ref={marks} class="marks" aria-hidden="true" />
      {picture && <Status of={picture} />}
      {picture && children?.(picture)}
    </div>
  );
}

function Status({ of }: { of: Picture }) {
  const { tile, isLoading, isCoarse, problem } = of.seen.value;
  if (problem) {
    return (
      <div class="plot-words">
        <div class="plot-problem">
          <Problem of={problem} />
        </div>
      </div>
    );
  }
  if (!tile && isCoarse)
    return (
      <p class="plot-words">
        This picture is not in the exported page. Open the recording with `oomph view` to see it.
      </p>
    );
  if (!tile && isLoading) return <p class="plot-words">Drawing…</p>;
  if (isCoarse) return <p class="plot-note">exported page: no finer detail here</p>;
  return isLoading ? <p class="plot-note waiting">drawing finer…</p> : null;
}
