// Keys and mouse.

import { useEffect, useRef } from "preact/hooks";
import { helpIsOpen } from "./keys";
import { panels } from "./tabs";

type HelpSection = { title: string; rows: [string, string][] };

const helpSections = (): HelpSection[] => [
  {
    title: "Mouse on the timeline and the map",
    rows: [
      ["wheel", "zoom at the pointer"],
      ["ctrl + wheel", "zoom the bytes"],
      ["drag", "pan"],
      ["shift + drag", "brush an interval for the flame graph and the table"],
      ["alt + drag", "ruler"],
      ["click", "select a band or block, and go to that moment"],
      ["double click", "zoom to it"],
    ],
  },
  {
    title: "Keys on the timeline",
    rows: [
      ["← →", "pan"],
      ["+ -, ↑ ↓", "zoom in and out"],
      [", .", "one event back or forward"],
      ["Home", "show the whole run"],
      ["p", "go to the peak"],
      ["o", "go to the next failed allocation"],
      ["n", "go to the next step"],
      ["r", "ruler on or off"],
      ["Esc", "clear the interval, then the selection"],
    ],
  },
  {
    title: "Keys everywhere",
    rows: [
      [`1 - ${panels().length}`, "views below the timeline"],
      ["/", "search"],
      ["t", "light or dark"],
      ["?", "this page"],
    ],
  },
  {
    title: "In tables and flame graphs",
    rows: [
      ["↑ ↓", "previous and next row or frame"],
      ["Enter, double click", "table: zoom the timeline to the lifetime of a block"],
      ["Enter, click", "flame graph: zoom into a frame"],
      ["Backspace", "flame graph: zoom out"],
    ],
  },
];

export function Help() {
  const dialog = useRef<HTMLDialogElement>(null);
  const open = helpIsOpen.value;
  useEffect(() => {
    if (open) dialog.current?.showModal();
    else dialog.current?.close();
  }, [open]);
  return (
    <dialog
      ref={dialog}
      class="help"
      aria-label="Keys and mouse"
      onClose={() => (helpIsOpen.value = false)}
      onClick={(event) => {
        if (event.target === dialog.current) helpIsOpen.value = false;
      }}
    >
      <div class="help-body">
        {helpSections().map((part) => (
          <section key={part.title}>
            <h2>{part.title}</h2>
            <dl>
              {part.rows.map(([key, words]) => (
                <div key={key}>
                  <dt>
                    <kbd>{key}</kbd>
                  </dt>
                  <dd>{words}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
        <p class="dim">The address of the page describes the current view: copy it to share the view.</p>
        <button type="button" class="primary" onClick={() => (helpIsOpen.value = false)}>
          Close
        </button>
      </div>
    </dialog>
  );
}
