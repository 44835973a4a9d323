// What a replay came to: fits or fails, in words and numbers, beside what was recorded.

import { bytes, change, count, counted, place } from "./format";
import { Copy, Words } from "./parts";
import type { Run, WhatIf } from "./protocol";
import { otherId } from "./store";

/** In a few words, for a list. */
export function verdict({ answer }: WhatIf): string {
  return answer.oom ? `fails at event ${count(answer.oom.event)}` : `fits, ${bytes(answer.peak_reserved)} reserved`;
}

export function Outcome({ recorded, whatIf, gpu }: { recorded: Run; whatIf: WhatIf; gpu: number | null }) {
  const { answer, notes, run } = whatIf;
  const beside = otherId.value === run.id;
  return (
    <section class="outcome">
      {answer.oom ? <Fails of={answer} oom={answer.oom} gpu={gpu} /> : <Fits of={answer} gpu={gpu} />}
      <Comparison recorded={recorded} answer={answer} />
      <p class="actions">
        <button type="button" class="primary" aria-pressed={beside} onClick={() => (otherId.value = beside ? null : run.id)}>
          {beside ? "Hide from the timeline" : "Show beside the recorded run"}
        </button>
        {answer.export && <Copy text={answer.export} label="Copy the command that sets it" />}
      </p>
      {notes.map((note) => (
        <p key={note} class="caveat">
          ⚠ <Words text={note} />
        </p>
      ))}
    </section>
  );
}

type Answer = WhatIf["answer"];

function Fits({ of, gpu }: { of: Answer; gpu: number | null }) {
  const spare = of.limit === null ? null : of.limit - of.peak_reserved;
  return (
    <p class="verdict good">
      ✓ <b>It fits</b>
      {gpu !== null && ` on a card of ${bytes(gpu)}`}: at most {bytes(of.peak_reserved)} reserved
      {spare !== null && of.limit !== null && `, ${bytes(spare)} of ${bytes(of.limit)} to spare`}.
      {of.retries > 0 && ` The cache had to be emptied ${counted(of.retries, "time")} to make room.`}
    </p>
  );
}

const CAUSES: Record<string, string> = {
  capacity: "more is needed than there is",
  fragmentation: "enough is free, but in pieces that are too small",
};

function Fails({ of, oom, gpu }: { of: Answer; oom: NonNullable<Answer["oom"]>; gpu: number | null }) {
  return (
    <p class="verdict bad">
      ✗ <b>It does not fit</b>
      {gpu !== null && ` on a card of ${bytes(gpu)}`}: {bytes(oom.requested)} fail at event {count(oom.event)}
      {oom.step != null && ` in step ${count(oom.step)}`}
      {oom.site && (
        <>
          {" "}
          at <code title={oom.site.file}>{place(oom.site)}</code>
        </>
      )}
      , with {bytes(oom.allocated)} allocated and {bytes(oom.reserved)} reserved
      {of.limit !== null && ` of ${bytes(of.limit)}`}; the largest free piece is {bytes(oom.largest_free)}:{" "}
      {CAUSES[oom.cause] ?? oom.cause}.{of.smallest_gpu != null && ` A card of ${bytes(of.smallest_gpu)} would do.`}
    </p>
  );
}

function Comparison({ recorded, answer }: { recorded: Run; answer: Answer }) {
  const rows: [string, number | undefined, number, (value: number) => string, (value: number) => string][] = [
    ["peak allocated", recorded.peak.bytes, answer.peak_allocated, bytes, change],
    ["peak reserved", recorded.reservedPeak.bytes, answer.peak_reserved, bytes, change],
    ["reserved at the end", recorded.end.reserved, answer.end_reserved, bytes, change],
    ["cudaMalloc calls", answer.recorded?.segments.allocs, answer.segments.allocs, count, signed],
  ];
  return (
    <table class="comparison">
      <thead>
        <tr>
          <td />
          <th scope="col">recorded</th>
          <th scope="col">replayed</th>
          <th scope="col">difference</th>
        </tr>
      </thead>
      <tbody>
        {rows.map(([name, before, after, figure, difference]) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td>{before === undefined ? "unknown" : figure(before)}</td>
            <td>{figure(after)}</td>
            <td>{before === undefined ? "" : before === after ? "same" : difference(after - before)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function signed(value: number): string {
  return value > 0 ? `+${count(value)}` : `−${count(-value)}`;
}
