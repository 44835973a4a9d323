// A stack, innermost call first: the user's own frames stand out, runs of library frames fold away.

import { useState } from "preact/hooks";
import type { StackFrame } from "../protocol";
import { counted, site } from "../state/format";
import { Copy } from "./parts";

/** The stack as a traceback, for the clipboard. */
function asText(frames: StackFrame[]): string {
  return frames.map((frame) => `${frame.file}:${frame.line} ${frame.function}`).join("\n");
}

/** Runs of frames that are all the user's or all of libraries. */
function runsOf(frames: StackFrame[]): StackFrame[][] {
  const found: StackFrame[][] = [];
  for (const frame of frames) {
    const last = found.at(-1);
    if (last && !frame.user && !last[0]!.user) last.push(frame);
    else found.push([frame]);
  }
  return found;
}

export function Stack({ frames }: { frames: StackFrame[] }) {
  if (!frames.length) return <p class="dim">No stack was recorded for it.</p>;
  return (
    <div class="stack">
      <ol>
        {runsOf(frames).map((run, number) =>
          run.length > 2 ? (
            <Folded key={number} frames={run} />
          ) : (
            run.map((frame, place) => <Line key={`${number}.${place}`} frame={frame} />)
          ),
        )}
      </ol>
      <Copy text={asText(frames)} label="Copy stack" />
    </div>
  );
}

function Folded({ frames }: { frames: StackFrame[] }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <li class="fold">
        <button type="button" class="quiet" aria-expanded={open} onClick={() => setOpen(!open)}>
          {open ? "▾" : "▸"} {counted(frames.length, "library frame")}: {frames[0]!.function}
        </button>
      </li>
      {open && frames.map((frame, place) => <Line key={place} frame={frame} />)}
    </>
  );
}

function Line({ frame }: { frame: StackFrame }) {
  return (
    <li class={frame.user ? "own" : "library"} title={`${frame.file}:${frame.line}`}>
      <code>
        <b>{site(frame)}</b> {frame.file ? frame.function : ""}
      </code>
    </li>
  );
}
