// Inputs that are read when someone looks at them: the ranks of a job.

import { signal } from "@preact/signals";
import { type AnswerError, ask } from "../protocol/source";
import { asAnswerError } from "../protocol/use-answer";
import { chooseRun, opened, otherId, overview, runs } from "./store";

/** The input that is being read, or why it could not be. */
export const reading = signal<{ name: string; problem: AnswerError | null } | null>(null);

/** Reads the input of a run, unless that is done; returns whether the run is there. */
async function open(id: number): Promise<boolean> {
  const inputs = overview.value?.inputs ?? [];
  const isOpen = () => runs.value.some((each) => each.id === id);
  if (isOpen() || !inputs.length) return isOpen();
  const input = id % inputs.length;
  reading.value = { name: inputs[input]!, problem: null };
  try {
    const found = await ask("input", { input });
    const isNew = !runs.value.some((each) => each.input === input);
    if (isNew) opened.value = [...opened.value, ...found].sort((a, b) => a.id - b.id);
    reading.value = null;
  } catch (error) {
    reading.value = { name: inputs[input]!, problem: asAnswerError(error) };
  }
  return isOpen();
}

/** The run that was asked for last: one that takes long to read must not replace a later one. */
let wanted = 0;

/** Shows a run, which may have to be read first. */
export async function openRun(id: number): Promise<void> {
  wanted = id;
  if ((await open(id)) && wanted === id) {
    if (otherId.value === id) otherId.value = null;
    chooseRun(id);
  }
}

/** Shows a run next to the first one. */
export async function openOther(id: number | null): Promise<void> {
  if (id === null || (await open(id))) otherId.value = id;
}

/** Reads the runs that the address names. */
export async function openAddressed(): Promise<void> {
  const query = new URLSearchParams(location.hash.slice(1));
  for (const key of ["run", "other", "base"]) {
    const id = /^\d+/.exec(query.get(key) ?? "")?.[0];
    if (id) await open(Number(id));
  }
}
