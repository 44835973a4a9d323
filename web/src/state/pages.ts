// Rows of a long table, loaded a page at a time as they become visible.

import { useEffect, useRef, useState } from "preact/hooks";
import { path, type Table, type TableQuery } from "../protocol";
import type { AnswerError } from "../protocol/source";
import { answerable, answerTo, asAnswerError } from "../protocol/use-answer";

/** Rows of a page; an exported page has its answers in pages of this size (`PAGE_ROWS` of `export.rs`). */
const PAGE_ROWS = 200;
/** Browsers cannot scroll over more pixels than these rows have. */
export const MAX_ROWS = 400_000;

export type Row = Table["rows"][number];

export interface Rows {
  /** Columns and totals; those of the previous question while a new one is loading. */
  table: Table | null;
  /** The moment that was asked about; an exported page does not have all. */
  at: number | null;
  problem: AnswerError | null;
  loading: boolean;
  /** Null while it is loading. */
  row: (number: number) => Row | null;
  /** Loads the rows that are visible. */
  need: (first: number, last: number) => void;
}

interface Known {
  key: string;
  table: Table | null;
  pages: Map<number, Row[]>;
  problem: AnswerError | null;
}

export function useRows(wish: TableQuery): Rows {
  // An exported page is asked for the first page of rows to find out what it has.
  const query = answerable("table", { ...wish, offset: 0, limit: PAGE_ROWS });
  const key = path("table", query);
  const [known, setKnown] = useState<Known>({ key: "", table: null, pages: new Map(), problem: null });
  const newest = useRef(key);
  newest.current = key;

  const load = (page: number) => {
    answerTo("table", { ...query, offset: page * PAGE_ROWS, limit: PAGE_ROWS }).then(
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
          if (before.key !== key || !before.table)
            return { key, table: before.table, pages: new Map(), problem: asAnswerError(error) };
          // Loaded rows stay; those that an exported page lacks are empty.
          return { ...before, pages: new Map(before.pages).set(page, []) };
        });
      },
    );
  };
  useEffect(() => load(0), [key]);

  const current = known.key === key;
  return {
    table: known.table,
    at: query.at ?? null,
    problem: current ? known.problem : null,
    loading: !current,
    row: (number) => known.pages.get(Math.floor(number / PAGE_ROWS))?.[number % PAGE_ROWS] ?? null,
    need: (first, last) => {
      if (!current) return;
      for (let page = Math.floor(first / PAGE_ROWS); page <= Math.floor(last / PAGE_ROWS); page++)
        if (!known.pages.has(page)) load(page);
    },
  };
}
