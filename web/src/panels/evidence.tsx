// The evidence of a finding, whatever its shape in `oomph report --json`.

import type { ComponentChildren } from "preact";
import type { EvidenceUnit, StackFrame } from "../protocol";
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

/** Units of the numbers, by the names that lead to them: `lines.bytes`. */
type Units = Partial<Record<string, EvidenceUnit>>;

function figure(unit: EvidenceUnit | undefined, value: number): string {
  switch (unit) {
    case "bytes":
      return bytes(value);
    case "us":
      return duration(value);
    case "count":
      return count(value);
    case "ratio":
      return String(Number(value.toPrecision(3)));
    default:
      return String(value);
  }
}

const named = (key: string) => key.replaceAll("_", " ");

export function Evidence({ of, units, path = "" }: { of: Dictionary; units: Units; path?: string }) {
  return (
    <Facts
      of={Object.entries(of).map(
        ([key, value]) =>
          [named(key), <Value key={key} name={key} of={value} units={units} path={path + key} />] as const,
      )}
    />
  );
}

type Named<T> = { name: string; of: T; units: Units; path: string };

function Value({ name, of, units, path }: Named<unknown>): ComponentChildren {
  if (typeof of === "number") return figure(units[path], of);
  if (Array.isArray(of)) return <List name={name} of={of} units={units} path={path} />;
  if (isSite(of)) return <SiteCode of={of} />;
  if (isDictionary(of)) {
    const present = Object.fromEntries(Object.entries(of).filter(([, value]) => value !== 0));
    return <Evidence of={present} units={units} path={`${path}.`} />;
  }
  return of === true ? "yes" : of === false ? "no" : String(of ?? "none");
}

function List({ name, of, units, path }: Named<unknown[]>) {
  if (!of.length) return <>none</>;
  if (of.every((each) => typeof each === "number"))
    return <StepValues name={name} of={of as number[]} unit={units[path]} />;
  if (of.every(isSite)) return <Stack frames={(of as unknown as Site[]).map(asFrame)} />;
  return (
    <ol class="plain">
      {of.map((each, number) => (
        <li key={number}>
          {isDictionary(each) ? (
            <Row of={each} units={units} path={`${path}.`} />
          ) : (
            <Value name={name} of={each} units={units} path={path} />
          )}
        </li>
      ))}
    </ol>
  );
}

/** Numbers of steps; bytes as a sparkline with the first and the last value. */
function StepValues({ name, of, unit }: { name: string; of: number[]; unit: EvidenceUnit | undefined }) {
  if (of.length < 4 || unit !== "bytes") return <>{of.map((each) => figure(unit, each)).join(", ")}</>;
  return (
    <>
      <Sparkline values={of} highest={Math.max(...of)} label={`${named(name)} over ${of.length} steps`} />{" "}
      {figure(unit, of[0]!)} → {figure(unit, of.at(-1)!)}
    </>
  );
}

/** A dictionary on one line, its site first. */
function Row({ of, units, path }: { of: Dictionary; units: Units; path: string }) {
  const { site, ...rest } = of;
  const words = Object.entries(rest)
    .filter(([, value]) => value !== false && value !== null && typeof value !== "object")
    .map(([key, value]) => fact(key, value, units[path + key]));
  return (
    <>
      {isSite(site) && <SiteCode of={site} />} <span class="dim">{words.join(", ")}</span>
    </>
  );
}

function fact(key: string, value: unknown, unit: EvidenceUnit | undefined): string {
  if (typeof value !== "number") return key === "category" ? String(value) : `${named(key)} ${String(value)}`;
  if (key === "bytes") return bytes(value);
  return key === "count" ? counted(value, "block") : `${named(key)} ${figure(unit, value)}`;
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
