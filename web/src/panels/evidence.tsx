// The evidence of a finding, whatever its shape in `oomph report --json`.

import type { ComponentChildren } from "preact";
import type { StackFrame } from "../protocol";
import { bytes, count, counted, duration, site } from "../state/format";
import { Facts } from "./parts";
import { Sparkline } from "./sparkline";
import { Stack } from "./stack";

type Site = { file: string; line: number; function: string };
type Dictionary = Record<string, unknown>;

const isDictionary = (value: unknown): value is Dictionary =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const isSite = (value: unknown): value is Site =>
  isDictionary(value) && typeof value.file === "string" && "line" in value;

/** Keys whose numbers are counts, however large. */
const COUNTS =
  /^(event|count|line|cuda_\w+|freed_\w+|retries|pieces|deferred_frees)$|_events?$|_count$|_steps?$|^steps/;

function figure(key: string, value: number): string {
  if (key.endsWith("_us")) return duration(value);
  if (/bytes/.test(key)) return bytes(value);
  if (!Number.isInteger(value)) return String(Number(value.toPrecision(3)));
  const isSize = value >= 4096 && (!COUNTS.test(key) || key === "usual_step");
  return isSize ? bytes(value) : count(value);
}

const named = (key: string) => key.replaceAll("_", " ");

export function Evidence({ of }: { of: Dictionary }) {
  return (
    <Facts
      of={Object.entries(of).map(
        ([key, value]) => [named(key), <Value key={key} name={key} of={value} />] as const,
      )}
    />
  );
}

function Value({ name, of }: { name: string; of: unknown }): ComponentChildren {
  if (typeof of === "number") return figure(name, of);
  if (Array.isArray(of)) return <List name={name} of={of} />;
  if (isSite(of)) return <SiteCode of={of} />;
  if (isDictionary(of))
    return <Evidence of={Object.fromEntries(Object.entries(of).filter(([, value]) => value !== 0))} />;
  return of === true ? "yes" : of === false ? "no" : String(of ?? "none");
}

function List({ name, of }: { name: string; of: unknown[] }) {
  if (!of.length) return <>none</>;
  if (of.every((each) => typeof each === "number")) return <StepBytes name={name} of={of as number[]} />;
  if (of.every(isSite)) return <Stack frames={(of as unknown as Site[]).map(asFrame)} />;
  return (
    <ol class="plain">
      {of.map((each, number) => (
        <li key={number}>{isDictionary(each) ? <Row of={each} /> : <Value name={name} of={each} />}</li>
      ))}
    </ol>
  );
}

/** Bytes over steps: a sparkline with the first and the last value. */
function StepBytes({ name, of }: { name: string; of: number[] }) {
  if (of.length < 4 || !/bytes/.test(name)) return <>{of.map((each) => figure(name, each)).join(", ")}</>;
  return (
    <>
      <Sparkline values={of} highest={Math.max(...of)} label={`${named(name)} over ${of.length} steps`} />{" "}
      {figure(name, of[0]!)} → {figure(name, of.at(-1)!)}
    </>
  );
}

/** A dictionary on one line, its site first. */
function Row({ of }: { of: Dictionary }) {
  const { site, ...rest } = of;
  const words = Object.entries(rest)
    .filter(([, value]) => value !== false && value !== null && typeof value !== "object")
    .map(([key, value]) => fact(key, value));
  return (
    <>
      {isSite(site) && <SiteCode of={site} />} <span class="dim">{words.join(", ")}</span>
    </>
  );
}

function fact(key: string, value: unknown): string {
  if (typeof value !== "number") return key === "category" ? String(value) : `${named(key)} ${String(value)}`;
  if (key === "bytes") return bytes(value);
  return key === "count" ? counted(value, "block") : `${named(key)} ${figure(key, value)}`;
}

function SiteCode({ of }: { of: Site }) {
  return (
    <code title={of.file}>
      {site(of)} {of.function}
    </code>
  );
}

function asFrame(site: Site): StackFrame {
  return { ...site, user: !/site-packages|dist-packages|\/lib\/python\d|^<frozen/.test(site.file) };
}
