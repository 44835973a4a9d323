// Names of runs: their files, without the folders that all of them share.

import { computed } from "@preact/signals";
import type { Run } from "../protocol";
import { fileName } from "./format";
import { overview, runs } from "./store";

function sharedFolder(paths: string[]): number {
  const [first = "", ...others] = paths;
  let length = first.length - fileName(first).length;
  while (length > 0 && !others.every((path) => path.startsWith(first.slice(0, length)))) {
    length -= fileName(first.slice(0, length - 1)).length + 1;
  }
  return Math.max(0, length);
}

/** Paths of the inputs, and how many characters at their beginning are folders that all of them share. */
const inputs = computed(() => {
  const all = new Set(overview.value?.inputs);
  return { all, shared: sharedFolder([...all]) };
});

/** The name of a file among the open ones. */
export function shortName(path: string): string {
  const { all, shared } = inputs.value;
  if (all.size > 1 && all.has(path)) return path.slice(shared);
  // A recording is named by its folder.
  const [folder, file] = path.split(/[\\/]/).slice(-2);
  return file?.startsWith("rank") ? `${folder}/${file}` : fileName(path);
}

export function runName(run: Run): string {
  if (run.whatIf) return run.name;
  const devices = runs.value.filter((each) => each.input === run.input).length;
  return devices > 1 ? `${shortName(run.name)} · ${run.device}` : shortName(run.name);
}
