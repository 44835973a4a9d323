// The page begins here: it asks what there is to see, takes its state from the address, and draws.

import { effect } from "@preact/signals";
import { render } from "preact";
import { asFailed } from "./answers";
import { App } from "./app";
import { listenForKeys } from "./keys";
import { Problem } from "./parts";
import type { Overview } from "./protocol";
import { ask } from "./source";
import { followAddress, overview, readAddress, run } from "./store";
import { followTheme } from "./theme";

async function begin(): Promise<void> {
  followTheme();
  const place = document.getElementById("app")!;
  try {
    overview.value = await ask<Overview>("overview");
  } catch (error) {
    render(<Problem of={asFailed(error)} />, place);
    return;
  }
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
