// Small parts that several panels are made of.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { AnswerError } from "../protocol/source";
import type { AnswerState } from "../protocol/use-answer";

/** Text in which `code` is between backticks. */
export function Words({ text }: { text: string }) {
  return <>{text.split("`").map((part, place) => (place % 2 ? <code key={place}>{part}</code> : part))}</>;
}

/** Distance from the pointer to a tip. */
const TIP_PIXELS = 14;

/** The position of a tip: on the side of the pointer that has room. */
export function nextToPointer({ x, y }: { x: number; y: number }) {
  return {
    ...(x > innerWidth / 2 ? { right: `${innerWidth - x + TIP_PIXELS}px` } : { left: `${x + TIP_PIXELS}px` }),
    ...(y > innerHeight / 2
      ? { bottom: `${innerHeight - y + TIP_PIXELS}px` }
      : { top: `${y + TIP_PIXELS}px` }),
  };
}

export function Problem({ of }: { of: AnswerError }) {
  return (
    <div class="problem" role="alert">
      <p>
        <Words text={of.message} />
      </p>
      {of.hint && (
        <p class="dim">
          <Words text={of.hint} />
        </p>
      )}
    </div>
  );
}

export function Loading({ what = "Loading" }: { what?: string }) {
  return (
    <p class="loading" role="status">
      {what}…
    </p>
  );
}

/** An answer; until it arrives a placeholder, and if it fails the reason. */
export function Answered<T>({
  answer,
  children,
}: {
  answer: AnswerState<T>;
  children: (value: T) => ComponentChildren;
}) {
  if (answer.problem) return <Problem of={answer.problem} />;
  if (answer.value === null) return <Loading />;
  return <div class={answer.loading ? "answered stale" : "answered"}>{children(answer.value)}</div>;
}

/** Radio buttons in a row. */
export function Choice<T extends string>(props: {
  label: string;
  value: T;
  options: readonly (readonly [T, string])[];
  onChoose: (value: T) => void;
}) {
  return (
    <div class="choice" role="radiogroup" aria-label={props.label}>
      {props.options.map(([value, words]) => (
        <label key={value} class={value === props.value ? "chosen" : ""}>
          <input
            type="radio"
            name={props.label}
            checked={value === props.value}
            onChange={() => props.onChoose(value)}
          />
          {words}
        </label>
      ))}
    </div>
  );
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [words, setWords] = useState(label);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setWords("Copied");
    } catch {
      setWords("The browser does not allow it");
    }
    setTimeout(() => setWords(label), 1500);
  };
  return (
    <button type="button" class="quiet" onClick={copy}>
      {words}
    </button>
  );
}

/** A bar that fills a share of its width. */
export function Bar({ share, color = "var(--accent)" }: { share: number; color?: string }) {
  const width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return (
    <span class="bar" aria-hidden="true">
      <span style={{ width, background: color }} />
    </span>
  );
}

/** A list of names with values. */
export function Facts({ of }: { of: (readonly [string, ComponentChildren] | false | null | undefined)[] }) {
  return (
    <dl class="facts">
      {of.map(
        (fact) =>
          fact && (
            <div key={fact[0]}>
              <dt>{fact[0]}</dt>
              <dd>{fact[1]}</dd>
            </div>
          ),
      )}
    </dl>
  );
}

/** A search field that `/` puts the cursor into. */
export function SearchField({
  value,
  onSearch,
  hint,
}: {
  value: string;
  onSearch: (text: string) => void;
  hint: string;
}) {
  return (
    <input
      type="search"
      class="search"
      data-search
      placeholder={hint}
      aria-label={hint}
      value={value}
      onInput={(event) => onSearch(event.currentTarget.value)}
      onKeyDown={(event) => {
        if (event.key === "Escape") event.currentTarget.blur();
      }}
    />
  );
}
