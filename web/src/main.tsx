// Entry point: loads the overview, reads the state from the address, and renders the page.

import { effect } from "@preact/signals";
import { render } from "preact";
import { App } from "./app";
import { listenForKeys } from "./panels/keys";
import { Problem } from "./panels/parts";
import { ask } from "./protocol/source";
import { asAnswerError } from "./protocol/use-answer";
import { openAddressed } from "./state/inputs";
import { followAddress, overview, readAddress, run } from "./state/store";
import { followTheme } from "./state/theme";

async function begin(): Promise<void> {
  followTheme();
  const place = document.getElementById("app")!;
  try {
    overview.value = await ask("overview", {});
  } catch (error) {
    render(<Problem of={asAnswerError(error)} />, place);
    return;
  }
  await openAddressed();
  readAddress();
  followAddress();
  listenForKeys();
  effect(() => {
    document.title = run.value ? `${run.value.name} · oomph` : "oomph";
  });
  place.replaceChildren();
  render(<App />, place);
}

void begin();
