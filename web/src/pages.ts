// Rows of a table that is too long to hold: pages of it, asked for as they come into sight.

import { useEffect, useRef, useState } from "preact/hooks";
import { answerable, answerTo, asFailed } from "./answers";
import { path, type Query, type Table } from "./protocol";
import type { Failed } from "./source";

const PAGE = 200;
/** Browsers cannot scroll over more pixels than these rows have. */
export const MOST_ROWS = 400_000;

export type Row = Table["rows"][number];

export interface Rows {
  /** Columns and sums; of the question before while a new one is on its way. */
  table: Table | null;
  /** The moment that was asked about; an exported page does not have all. */
  at: number | null;
  problem: Failed | null;
  loading: boolean;
  /** Null while it is on its way. */
  row: (number: number) => Row | null;
  /** Asks for what is in sight. */
  need: (first: number, last: number) => void;
}

interface Known {
  key: string;
  table: Table | null;
  pages: Map<number, Row[]>;
  problem: Failed | null;
}

export function useRows(wish: Query): Rows {
  // What an exported page has is known by its first page.
  const query = answerable("table", { ...wish, offset: 0, limit: PAGE });
  const key = path("table", query);
  const [known, setKnown] = useState<Known>({ key: "", table: null, pages: new Map(), problem: null });
  const newest = useRef(key);
  newest.current = key;

  const load = (page: number) => {
    answerTo<Table>("table", { ...query, offset: page * PAGE, limit: PAGE }).then(
      (table) => {
        if (newest.current !== key) return;
        setKnown((before) => {
          const pages = new Map(before.key === key ? before.pages : []).set(page, table.rows);
          return { key, table, pages, problem: null };
        });
      },
      (error) => {
        if (newest.current !== key) return;
        setKnown((before) => {
          if (before.key !== key || !before.table) return { key, table: before.table, pages: new Map(), problem: asFailed(error) };
          // The rows that came stay; those that an exported page lacks are empty.
          return { ...before, pages: new Map(before.pages).set(page, []) };
        });
      },
    );
  };
  useEffect(() => load(0), [key]);

  const current = known.key === key;
  return {
    table: known.table,
    at: query.at === undefined ? null : Number(query.at),
    problem: current ? known.problem : null,
    loading: !current,
    row: (number) => known.pages.get(Math.floor(number / PAGE))?.[number % PAGE] ?? null,
    need: (first, last) => {
      if (!current) return;
      for (let page = Math.floor(first / PAGE); page <= Math.floor(last / PAGE); page++) if (!known.pages.has(page)) load(page);
    },
  };
}
