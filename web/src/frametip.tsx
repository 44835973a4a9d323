// What a frame is, beside the pointer; and the way from the root to the frame that fills the picture.

import type { Hovered } from "./boxes";
import { bytes, change, count, counted, percent } from "./format";
import { restOf, type Trail } from "./frames";
import { frameName } from "./framelook";
import type { Flame } from "./protocol";
import { besidePointer } from "./parts";

export function FrameTip({ at, root, compared }: { at: Hovered; root: Flame; compared: boolean }) {
  const { node, rest } = at.box;
  const sides = rest ? restOf(node) : node;
  const style = besidePointer(at);
  return (
    <div class="tip" style={style}>
      <b>{rest ? `in ${frameName(node)}` : node.name}</b>
      {rest && <p>{node.leftOut > 0 ? `${count(node.leftOut)} smaller` : "allocated here, not in a call below"}</p>}
      {!rest && node.file && (
        <p class="dim">
          {node.file}
          {node.line ? `:${node.line}` : ""}
        </p>
      )}
      <p>
        {bytes(sides.bytes)} · {percent(sides.bytes, root.bytes)} of all{rest ? "" : ` · ${counted(node.count, "block")}`}
      </p>
      {compared && (
        <p>
          then {bytes(sides.base)} · <b>{change(sides.bytes - sides.base)}</b>
        </p>
      )}
    </div>
  );
}

export function Crumbs({ way, trail, onZoom }: { way: Flame[]; trail: Trail; onZoom: (trail: Trail) => void }) {
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
