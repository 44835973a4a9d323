// Keys and mouse, on one page.

import { useEffect, useRef } from "preact/hooks";
import { helpIsOpen } from "./keys";

const HELP: { title: string; rows: [string, string][] }[] = [
  {
    title: "Mouse on the timeline and the map",
    rows: [
      ["wheel", "zoom in and out where the pointer is"],
      ["ctrl + wheel", "zoom the bytes"],
      ["drag", "move along"],
      ["shift + drag", "brush a stretch: flame graph and table are then about it"],
      ["alt + drag", "ruler"],
      ["click", "select a band or block, and go to that moment"],
      ["double click", "zoom to it"],
    ],
  },
  {
    title: "Keys on the timeline",
    rows: [
      ["← →", "move along"],
      ["+ −, ↑ ↓", "zoom in and out"],
      [", .", "one event back, one on"],
      ["Home", "show all of it"],
      ["p", "go to the peak"],
      ["o", "go to the next failed allocation"],
      ["n", "go to the next step"],
      ["r", "ruler on or off"],
      ["Esc", "let go of the brush, then of the selection"],
    ],
  },
  {
    title: "Keys everywhere",
    rows: [
      ["1 – 6", "the views below the timeline"],
      ["/", "search"],
      ["t", "light or dark"],
      ["?", "this page"],
    ],
  },
  {
    title: "In tables and flame graphs",
    rows: [
      ["↑ ↓", "the row or frame before and after"],
      ["Enter, double click", "table: zoom the timeline to the life of a block"],
      ["Enter, click", "flame graph: zoom into a frame"],
      ["Backspace", "flame graph: zoom out again"],
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
        {HELP.map((part) => (
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
        <p class="dim">The address of the page holds what you look at: copy it to show somebody the same.</p>
        <button type="button" class="primary" onClick={() => (helpIsOpen.value = false)}>
          Close
        </button>
      </div>
    </dialog>
  );
}
