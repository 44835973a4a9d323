// The frames as nested rectangles, whose areas can be compared.

import { useRef } from "preact/hooks";
import { type Cell, treemap } from "../canvas/frames";
import { boxClass, boxListeners, type ShapeProps } from "./boxes";
import { amountOf, frameName, nameOf, paint } from "./framelook";
import { useSize } from "./size";

export function TreeMap(props: ShapeProps) {
  const element = useRef<HTMLDivElement>(null);
  const { width, height } = useSize(element);
  const cells = width && height ? treemap(props.root, props.trail, width, height) : [];
  return (
    <div ref={element} class="treemap" {...boxListeners(props, cells)}>
      {cells.map((cell, number) => (
        <button
          key={number}
          type="button"
          data-box={number}
          aria-label={`${nameOf(cell)} ${amountOf(cell, props.compared)}`}
          tabIndex={number === 0 ? 0 : -1}
          class={`${boxClass(cell, cell.label, props.search)} ${cell.leaf ? "leaf" : ""}`}
          style={{
            left: `${cell.x}px`,
            top: `${cell.y}px`,
            width: `${cell.width}px`,
            height: `${cell.height}px`,
            background: cell.rest ? undefined : paint({ ...cell, node: cell.label }, props.compared),
          }}
        >
          <CellText cell={cell} compared={props.compared} />
        </button>
      ))}
    </div>
  );
}

function CellText({ cell, compared }: { cell: Cell; compared: boolean }) {
  if (cell.width < 34 || cell.height < 15) return null;
  const name = cell.rest ? nameOf(cell) : frameName(cell.label);
  const amount = amountOf(cell, compared);
  const tall = cell.leaf && cell.height > 34;
  return (
    <>
      <span>{name}</span>
      {(tall || cell.width > 200) && <small>{tall ? amount : ` ${amount}`}</small>}
    </>
  );
}
