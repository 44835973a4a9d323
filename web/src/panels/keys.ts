// Keys that work everywhere except in fields. The keys of the timeline are in `timeline-keys.ts`.

import { signal } from "@preact/signals";
import { tab } from "../state/store";
import { toggleTheme } from "../state/theme";
import { panels } from "./tabs";

export const helpIsOpen = signal(false);

function focusSearch(): void {
  if (tab.value !== "table" && tab.value !== "flame") tab.value = "table";
  // The panel may have to be drawn first.
  requestAnimationFrame(() => document.querySelector<HTMLInputElement>("[data-search]")?.focus());
}

/** Whether the focused element takes text. */
export function isField(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || target.matches("input:not([type=radio]), select, textarea"))
  );
}

export function listenForKeys(): void {
  window.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isField(event.target)) return;
    if (helpIsOpen.value && event.key !== "?") return;
    const numbered = panels()[Number(event.key) - 1];
    if (numbered) tab.value = numbered.tab;
    else if (event.key === "/") focusSearch();
    else if (event.key === "t") toggleTheme();
    else if (event.key === "?") helpIsOpen.value = !helpIsOpen.value;
    else return;
    event.preventDefault();
  });
}
