// Choices that are kept in the browser: sizes of panes and the theme. They belong to the
// reader, not about what is shown, so they are not in the address.

import { effect, type Signal, signal } from "@preact/signals";

export function persisted<T>(name: string, initial: T, into: Signal<T> = signal(initial)): Signal<T> {
  const key = `oomph.${name}`;
  // A page that was opened from a file may have no storage.
  try {
    const text = localStorage.getItem(key);
    if (text !== null) into.value = JSON.parse(text) as T;
  } catch {
    return into;
  }
  effect(() => {
    try {
      localStorage.setItem(key, JSON.stringify(into.value));
    } catch {
      // The choice lasts as long as the page.
    }
  });
  return into;
}
