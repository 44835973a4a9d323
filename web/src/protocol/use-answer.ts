// Answers for components: cached, one question at a time, the newest
// next. Dragging the moment asks hundreds of questions a second; outdated ones are never sent.

import { useEffect, useRef, useState } from "preact/hooks";
import { path, type Query } from "./address";
import type { Questions } from "./answers";
import { AnswerError, ask, isAvailable, isExported, stored } from "./source";

const MAX_CACHED_ANSWERS = 96;
const kept = new Map<string, Promise<unknown>>();

/** Answers a question, from the cache if it was asked lately. */
export function answerTo<Name extends keyof Questions>(
  name: Name,
  query: Questions[Name]["query"],
): Promise<Questions[Name]["answer"]> {
  const key = path(name, query);
  const before = kept.get(key) as Promise<Questions[Name]["answer"]> | undefined;
  const answer = before ?? ask(name, query);
  kept.delete(key);
  kept.set(key, answer);
  if (!before) {
    // A failure may be temporary, so it is not cached.
    answer.catch(() => kept.get(key) === answer && kept.delete(key));
    if (kept.size > MAX_CACHED_ANSWERS) kept.delete(kept.keys().next().value!);
  }
  return answer;
}

/** The query itself; in an exported page, the same query for the nearest exported moment. */
export function answerable<Q extends Query>(name: string, query: Q): Q {
  if (!isExported || query.at === undefined || isAvailable(name, query)) return query;
  const timeless = (of: Query) => path(name, { ...of, at: null });
  const distance = (of: Query) => Math.abs(Number(of.at) - Number(query.at));
  const same = stored(name).filter((each) => timeless(each) === timeless(query));
  const nearest = same.reduce<Query>(
    (best, each) => (distance(each) < distance(best) ? each : best),
    same[0] ?? query,
  );
  return { ...query, at: Number(nearest.at) };
}

export interface AnswerState<T> {
  /** The last answer, perhaps to an earlier question. */
  value: T | null;
  /** The moment of the question, if it has one. */
  at: number | null;
  problem: AnswerError | null;
  loading: boolean;
}

interface Known<T> {
  key: string;
  value: T | null;
  problem: AnswerError | null;
}

/** The answer to a question that may change; null asks nothing. */
export function useAnswer<Name extends keyof Questions>(
  name: Name,
  wish: Questions[Name]["query"] | null,
): AnswerState<Questions[Name]["answer"]> {
  type T = Questions[Name]["answer"];
  type Q = Questions[Name]["query"];
  const query = wish && (answerable(name, wish) as Q & { at?: number });
  const key = query ? path(name, query) : null;
  const [known, setKnown] = useState<Known<T> | null>(null);
  const wanted = useRef<{ key: string; query: Q } | null>(null);
  const busy = useRef(false);

  useEffect(() => {
    wanted.current = key !== null && query ? { key, query } : null;
    if (!busy.current) void answerWanted();
  }, [key]);
  useEffect(() => () => void (wanted.current = null), []);

  async function answerWanted(): Promise<void> {
    busy.current = true;
    for (let last = ""; wanted.current && wanted.current.key !== last; ) {
      const now = wanted.current;
      last = now.key;
      try {
        const value = await answerTo(name, now.query);
        if (wanted.current) setKnown({ key: now.key, value, problem: null });
      } catch (error) {
        const problem = asAnswerError(error);
        if (wanted.current) setKnown((before) => ({ key: now.key, value: before?.value ?? null, problem }));
      }
    }
    busy.current = false;
  }

  if (!query) return { value: null, at: null, problem: null, loading: false };
  const current = known?.key === key;
  const at = query.at ?? null;
  return { value: known?.value ?? null, at, problem: current ? known.problem : null, loading: !current };
}

export function asAnswerError(error: unknown): AnswerError {
  return error instanceof AnswerError ? error : new AnswerError("This answer cannot be read.", String(error));
}
