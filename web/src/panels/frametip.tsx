// The tip of a frame, and the path from the root to the zoomed frame.

import { restOf, type Trail } from "../canvas/frames";
import type { FlameNode } from "../protocol";
import { bytes, change, count, counted, percent } from "../state/format";
import type { HoveredBox } from "./boxes";
import { frameName } from "./framelook";
import { nextToPointer } from "./parts";

export function FrameTip({ at, root, compared }: { at: HoveredBox; root: FlameNode; compared: boolean }) {
  const { node, rest } = at.box;
  const sides = rest ? restOf(node) : node;
  const style = nextToPointer(at);
  return (
    <div class="tip" style={style}>
      <b>{rest ? `in ${frameName(node)}` : node.name}</b>
      {rest && (
        <p>{node.leftOut > 0 ? `${count(node.leftOut)} smaller` : "allocated here, not in a call below"}</p>
      )}
      {!rest && node.file && (
        <p class="dim">
          {node.file}
          {node.line ? `:${node.line}` : ""}
        </p>
      )}
      <p>
        {bytes(sides.bytes)} · {percent(sides.bytes, root.bytes)} of the total
        {rest ? "" : ` · ${counted(node.count, "block")}`}
      </p>
      {compared && (
        <p>
          then {bytes(sides.base)} · <b>{change(sides.bytes - sides.base)}</b>
        </p>
      )}
    </div>
  );
}

export function Crumbs({
  way,
  trail,
  onZoom,
}: {
  way: FlameNode[];
  trail: Trail;
  onZoom: (trail: Trail) => void;
}) {
  if (way.length < 2) return null;
  return (
    <nav class="crumbs" aria-label="Zoomed into">
      {way.map((node, depth) => (
        <button
          key={depth}
          type="button"
          class="link"
          disabled={depth === way.length - 1}
          onClick={() => onZoom(trail.slice(0, depth))}
        >
          {depth === 0 ? "All" : node.name}
        </button>
      ))}
    </nav>
  );
}
