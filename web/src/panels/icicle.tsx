// A flame graph that grows downwards from its root, in the direction in which panels scroll.

import { useRef } from "preact/hooks";
import { icicle, ROW_PIXELS } from "../canvas/frames";
import { boxClass, boxListeners, type ShapeProps } from "./boxes";
import { amountOf, nameOf, paint } from "./framelook";
import { useSize } from "./size";

export function Icicle(props: ShapeProps) {
  const element = useRef<HTMLDivElement>(null);
  const { width } = useSize(element);
  const boxes = width ? icicle(props.root, props.trail, width) : [];
  const rows = boxes.reduce((most, box) => Math.max(most, box.depth + 1), 1);
  return (
    <div ref={element} class="icicle" {...boxListeners(props, boxes)}>
      <div style={{ height: `${rows * ROW_PIXELS}px` }}>
        {boxes.map((box, number) => (
          <button
            key={number}
            type="button"
            data-box={number}
            aria-label={`${nameOf(box)} ${amountOf(box, props.compared)}`}
            tabIndex={number === 0 ? 0 : -1}
            class={boxClass(box, box.node, props.search)}
            style={{
              left: `${box.x}px`,
              top: `${box.y}px`,
              width: `${box.width}px`,
              background: box.rest ? undefined : paint(box, props.compared),
            }}
          >
            {box.width > 30 && nameOf(box)}{" "}
            {box.width > 160 && <small>{amountOf(box, props.compared)}</small>}
          </button>
        ))}
      </div>
    </div>
  );
}
