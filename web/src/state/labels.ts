// Short labels for the groups of a legend: what all of them share is said once, and what distinguishes each
// stays. Pure.

import type { Group } from "../protocol";

/** A group's label, shortened. */
export interface ShortLabel {
  /** File name or module path; empty if the heading says it. */
  name: string;
  /** `:20`, never cut off; empty if the group is not a line of code. */
  line: string;
  /** The part of the detail that the groups with the same label do not share. */
  detail: string;
}

/** Labels by the id of their group, and what all of them share. */
export interface ShortLabels {
  /** `in train.py`; empty if nothing is shared. */
  shared: string;
  of: Map<number, ShortLabel>;
}

/** Between a function and its caller, as `crates/viewer` writes call paths. */
const CALLED_FROM = " ← ";

export function shortLabels(groups: Group[]): ShortLabels {
  const parts = groups.map((group) => ({ group, ...splitLine(group.label) }));
  const files = new Set(parts.filter(({ line }) => line).map(({ name }) => name));
  const lines = parts.filter(({ line }) => line).length;
  const file = files.size === 1 && lines > 1 ? [...files][0]! : "";
  const module = file ? "" : sharedModule(groups.map(({ label }) => label));
  const details = distinctDetails(groups);
  const shorten = (name: string, line: string) => {
    if (file && line) return "";
    return module && name.startsWith(`${module}.`) ? name.slice(module.length) : name;
  };
  const of = new Map(
    parts.map(({ group, name, line }) => [
      group.id,
      { name: shorten(name, line), line, detail: details.get(group.id) ?? "" },
    ]),
  );
  const shared = file || module;
  return { shared: shared && `in ${shared}`, of };
}

/** `train.py:20` as a file and its line. */
export function splitLine(label: string): { name: string; line: string } {
  const [, name = label, line = ""] = /^(.*)(:\d+)$/.exec(label) ?? [];
  return { name, line };
}

/** The module path that all modules share: `model.layers` of `model.layers.0` and `model.layers.1.mlp`. */
function sharedModule(labels: string[]): string {
  const paths = labels.filter((label) => /^[\w.]+\.\w+$/.test(label)).map((label) => label.split("."));
  if (paths.length < 2) return "";
  const [first = []] = paths;
  const shared = commonLength(paths);
  return first.slice(0, Math.min(shared, ...paths.map((path) => path.length - 1))).join(".");
}

/**
 * Details without what groups of the same label share: innermost functions or callers, or the
 * function's name.
 */
function distinctDetails(groups: Group[]): Map<number, string> {
  const byLabel = new Map<string, Group[]>();
  for (const group of groups) byLabel.set(group.label, [...(byLabel.get(group.label) ?? []), group]);
  const details = new Map<number, string>();
  for (const alike of byLabel.values()) {
    const glue = alike.some(({ detail }) => detail.includes(CALLED_FROM)) ? CALLED_FROM : ", ";
    const tokens = alike.map(({ detail }) => detail.split(glue));
    const before = alike.length > 1 ? commonLength(tokens) : 0;
    const rests = tokens.map((token) => token.slice(before));
    const after = alike.length > 1 ? commonLength(rests.map((rest) => [...rest].reverse())) : 0;
    alike.forEach((group, number) => {
      const rest = rests[number]!;
      const own = rest
        .slice(0, rest.length - after)
        .map(shortFunction)
        .join(glue);
      // A group whose detail is all shared keeps its first part.
      details.set(group.id, own || (tokens[number]![0] ?? ""));
    });
  }
  return details;
}

const MAX_FUNCTION = 12;

/** A long function name without its middle, so that its line stays visible: `_in_p…acked:5843`. */
function shortFunction(call: string): string {
  const { name, line } = splitLine(call);
  return line && name.length > MAX_FUNCTION ? `${name.slice(0, 5)}…${name.slice(-5)}${line}` : call;
}

/** Number of first tokens that are the same in all lists. */
function commonLength(lists: string[][]): number {
  const [first = [], ...others] = lists;
  const different = first.findIndex((token, place) => others.some((other) => other[place] !== token));
  return different < 0 ? first.length : different;
}
