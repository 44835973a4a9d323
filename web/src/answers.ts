// Answers for components: from memory where they were asked for before, one question at a time, the newest next. Dragging the
// moment asks hundreds of questions a second; those that were overtaken are never sent.

import { useEffect, useRef, useState } from "preact/hooks";
import { path, type Query } from "./protocol";
import { ask, Failed, isAvailable, isExported, stored } from "./source";

const KEPT = 96;
const kept = new Map<string, Promise<unknown>>();

/** An answer, from memory if it is one of the last that were asked for. */
export function answerTo<T>(name: string, query: Query): Promise<T> {
  const key = path(name, query);
  const before = kept.get(key) as Promise<T> | undefined;
  const answer = before ?? ask<T>(name, query);
  kept.delete(key);
  kept.set(key, answer);
  if (!before) {
    // A failure may pass: it is not kept.
    answer.catch(() => kept.get(key) === answer && kept.delete(key));
    if (kept.size > KEPT) kept.delete(kept.keys().next().value!);
  }
  return answer;
}

/** The question itself; of an exported page, the same about the nearest moment that it has. */
export function answerable(name: string, query: Query): Query {
  if (!isExported || query.at === undefined || isAvailable(name, query)) return query;
  const timeless = (of: Query) => path(name, { ...of, at: null });
  const distance = (of: Query) => Math.abs(Number(of.at) - Number(query.at));
  const same = stored(name).filter((each) => timeless(each) === timeless(query));
  return same.reduce((best, each) => (distance(each) < distance(best) ? each : best), same[0] ?? query);
}

export interface Answer<T> {
  /** The last answer there was, perhaps to an earlier question. */
  value: T | null;
  /** The moment that was asked about, where the question has one. */
  at: number | null;
  problem: Failed | null;
  loading: boolean;
}

interface Known<T> {
  key: string;
  value: T | null;
  problem: Failed | null;
}

/** The answer to a question that changes; a query of null asks nothing. */
export function useAnswer<T>(name: string, wish: Query | null): Answer<T> {
  const query = wish && answerable(name, wish);
  const key = query ? path(name, query) : null;
  const [known, setKnown] = useState<Known<T> | null>(null);
  const wanted = useRef<{ key: string; query: Query } | null>(null);
  const busy = useRef(false);

  useEffect(() => {
    wanted.current = key !== null && query ? { key, query } : null;
    if (!busy.current) void answerWanted();
  }, [key]);
  useEffect(() => () => void (wanted.current = null), []);

  async function answerWanted(): Promise<void> {
    busy.current = true;
    for (let last = ""; wanted.current && wanted.current.key !== last;) {
      const now = wanted.current;
      last = now.key;
      try {
        const value = await answerTo<T>(name, now.query);
        if (wanted.current) setKnown({ key: now.key, value, problem: null });
      } catch (error) {
        const problem = asFailed(error);
        if (wanted.current) setKnown((before) => ({ key: now.key, value: before?.value ?? null, problem }));
      }
    }
    busy.current = false;
  }

  if (!query) return { value: null, at: null, problem: null, loading: false };
  const current = known?.key === key;
  const at = query.at === undefined ? null : Number(query.at);
  return { value: known?.value ?? null, at, problem: current ? known.problem : null, loading: !current };
}

export function asFailed(error: unknown): Failed {
  return error instanceof Failed ? error : new Failed("This answer cannot be read.", String(error));
}
