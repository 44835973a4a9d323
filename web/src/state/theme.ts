// Light or dark: the reader's choice, otherwise the system's. The page is always told which (`data-theme`),
// so that styles and canvases have one place to look at.

import { effect, signal } from "@preact/signals";
import { persisted } from "./persisted";
import { theme } from "./store";

const system = window.matchMedia("(prefers-color-scheme: dark)");
const systemIsDark = signal(system.matches);

export function isDark(): boolean {
  return theme.value === "auto" ? systemIsDark.value : theme.value === "dark";
}

/** Toggles the theme; back to the system's if that is the same. */
export function toggleTheme(): void {
  const wanted = !isDark();
  theme.value = wanted === systemIsDark.value ? "auto" : wanted ? "dark" : "light";
}

export function followTheme(): void {
  persisted("theme", "auto", theme);
  system.addEventListener("change", (event) => (systemIsDark.value = event.matches));
  effect(() => {
    document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  });
}
