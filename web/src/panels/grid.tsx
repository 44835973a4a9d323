// A table that renders only its visible rows.

import { useEffect, useRef, useState } from "preact/hooks";
import type { Table } from "../protocol";
import { bytes, count } from "../state/format";
import { MAX_ROWS, type Row, type Rows } from "../state/pages";
import { useSize } from "./size";

const ROW_PIXELS = 24;

type Column = Table["columns"][number];

/** The first text column gets the most room. */
function templateOf(columns: Column[]): string {
  const main = columns.findIndex((column) => column.kind === "text");
  const width = (column: Column, place: number) =>
    column.kind !== "text"
      ? "minmax(98px, 1fr)"
      : place === main
        ? "minmax(170px, 3fr)"
        : "minmax(114px, 1.3fr)";
  return columns.map(width).join(" ");
}

export function Grid(props: {
  rows: Rows;
  order: { key: string; descending: boolean };
  isChosen: (row: Row) => boolean;
  onSort: (key: string) => void;
  onChoose: (row: Row) => void;
  onOpen: (row: Row) => void;
}) {
  const { rows } = props;
  const { columns, total } = rows.table!;
  const element = useRef<HTMLDivElement>(null);
  const { height } = useSize(element);
  const [top, setTop] = useState(0);
  const [cursor, setCursor] = useState(-1);
  const length = Math.min(total, MAX_ROWS);
  const first = Math.max(0, Math.floor(top / ROW_PIXELS) - 4);
  const last = Math.min(length - 1, Math.ceil((top + height) / ROW_PIXELS) + 4);
  useEffect(() => rows.need(first, last), [first, last, rows.loading]);

  const go = (to: number) => {
    const next = Math.max(0, Math.min(length - 1, to));
    setCursor(next);
    const row = rows.row(next);
    if (row) props.onChoose(row);
    const view = element.current!;
    const room = view.clientHeight - ROW_PIXELS;
    if (next * ROW_PIXELS < view.scrollTop) view.scrollTop = next * ROW_PIXELS;
    else if ((next + 1) * ROW_PIXELS > view.scrollTop + room) view.scrollTop = (next + 1) * ROW_PIXELS - room;
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const page = Math.max(1, Math.floor(height / ROW_PIXELS) - 2);
    const steps: Record<string, number> = {
      ArrowUp: -1,
      ArrowDown: 1,
      PageUp: -page,
      PageDown: page,
      Home: -length,
      End: length,
    };
    const step = steps[event.key];
    const row = cursor >= 0 ? rows.row(cursor) : null;
    if (step !== undefined) go(cursor + step);
    else if (event.key === "Enter" && row) props.onOpen(row);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  const numbers = Array.from({ length: Math.max(0, last - first + 1) }, (_, place) => first + place);
  return (
    <div
      ref={element}
      class={rows.loading ? "grid stale" : "grid"}
      role="grid"
      tabIndex={0}
      aria-rowcount={total + 1}
      aria-activedescendant={cursor >= 0 ? `row-${cursor}` : undefined}
      style={{ "--columns": templateOf(columns) }}
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}
      onKeyDown={onKeyDown}
    >
      <div class="row head" role="row" aria-rowindex={1}>
        {columns.map((column) => (
          <Heading key={column.key} column={column} order={props.order} onSort={props.onSort} />
        ))}
      </div>
      <div class="rows" style={{ height: `${length * ROW_PIXELS}px` }}>
        {numbers.map((number) => {
          const row = rows.row(number);
          return (
            <div
              key={number}
              id={`row-${number}`}
              class={number === cursor ? "row cursor" : "row"}
              role="row"
              aria-rowindex={number + 2}
              aria-selected={row !== null && props.isChosen(row)}
              style={{ top: `${number * ROW_PIXELS}px` }}
              onClick={() => row && go(number)}
              onDblClick={() => row && props.onOpen(row)}
            >
              {columns.map((column, place) => (
                <Value key={column.key} column={column} value={row ? row[place + 1] : undefined} />
              ))}
            </div>
          );
        })}
      </div>
      {!length && !rows.loading && <p class="empty">No row matches.</p>}
    </div>
  );
}

function Heading(props: {
  column: Column;
  order: { key: string; descending: boolean };
  onSort: (key: string) => void;
}) {
  const { column, order } = props;
  const sorted = order.key === column.key;
  return (
    <div
      class={column.kind}
      role="columnheader"
      aria-sort={sorted ? (order.descending ? "descending" : "ascending") : "none"}
    >
      <button type="button" class="quiet" onClick={() => props.onSort(column.key)}>
        {column.label}
        {sorted && <span aria-hidden="true"> {order.descending ? "↓" : "↑"}</span>}
      </button>
    </div>
  );
}

function Value({ column, value }: { column: Column; value: Row[number] | undefined }) {
  const words =
    value === undefined
      ? "…"
      : value === null
        ? "–"
        : typeof value === "number"
          ? FIGURES[column.kind](value)
          : value;
  return (
    <div class={column.kind} role="gridcell" title={column.kind === "text" ? words : undefined}>
      {words}
    </div>
  );
}

const FIGURES: Record<Column["kind"], (value: number) => string> = {
  bytes,
  count,
  event: count,
  text: String,
};
