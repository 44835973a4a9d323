// The outcome of a replay: whether it fits, and its numbers next to the recorded ones.

import type { Run, WhatIfAnswer } from "../protocol";
import { bytes, change, count, counted, site } from "../state/format";
import { otherId } from "../state/store";
import { Copy, Words } from "./parts";

/** The outcome in a few words, for a list. */
export function verdict({ answer }: WhatIfAnswer): string {
  return answer.oom
    ? `fails at event ${count(answer.oom.event)}`
    : `fits, ${bytes(answer.peak_reserved)} reserved`;
}

export function Outcome({
  recorded,
  whatIf,
  gpu,
}: {
  recorded: Run;
  whatIf: WhatIfAnswer;
  gpu: number | null;
}) {
  const { answer, notes, run } = whatIf;
  const isShown = otherId.value === run.id;
  return (
    <section class="outcome">
      {answer.oom ? <Fails of={answer} oom={answer.oom} gpu={gpu} /> : <Fits of={answer} gpu={gpu} />}
      <Comparison recorded={recorded} answer={answer} />
      <p class="actions">
        <button
          type="button"
          class="primary"
          aria-pressed={isShown}
          onClick={() => (otherId.value = isShown ? null : run.id)}
        >
          {isShown ? "Hide from the timeline" : "Show next to the recorded run"}
        </button>
        {answer.export && <Copy text={answer.export} label="Copy the command" />}
      </p>
      {notes.map((note) => (
        <p key={note} class="caveat">
          ⚠ <Words text={note} />
        </p>
      ))}
    </section>
  );
}

type Replay = WhatIfAnswer["answer"];

function Fits({ of, gpu }: { of: Replay; gpu: number | null }) {
  const spare = of.limit === null ? null : of.limit - of.peak_reserved;
  return (
    <p class="verdict good">
      ✓ <b>It fits</b>
      {gpu !== null && ` on a GPU with ${bytes(gpu)}`}: at most {bytes(of.peak_reserved)} reserved
      {spare !== null && of.limit !== null && `, which leaves ${bytes(spare)} of ${bytes(of.limit)}`}.
      {of.retries > 0 && ` The cache was emptied ${counted(of.retries, "time")} to make room.`}
    </p>
  );
}

const CAUSES: Record<string, string> = {
  capacity: "the run needs more memory than there is",
  fragmentation: "enough memory is free, but in blocks that are too small",
};

function Fails({ of, oom, gpu }: { of: Replay; oom: NonNullable<Replay["oom"]>; gpu: number | null }) {
  return (
    <p class="verdict bad">
      ✗ <b>It does not fit</b>
      {gpu !== null && ` on a GPU with ${bytes(gpu)}`}: {bytes(oom.requested)} fails at event{" "}
      {count(oom.event)}
      {oom.step != null && ` in step ${count(oom.step)}`}
      {oom.site && (
        <>
          {" "}
          at <code title={oom.site.file}>{site(oom.site)}</code>
        </>
      )}
      , with {bytes(oom.allocated)} allocated and {bytes(oom.reserved)} reserved
      {of.limit !== null && ` of ${bytes(of.limit)}`}; the largest free block is {bytes(oom.largest_free)}:{" "}
      {CAUSES[oom.cause] ?? oom.cause}.
      {of.smallest_gpu != null && ` A GPU with ${bytes(of.smallest_gpu)} would do.`}
    </p>
  );
}

function Comparison({ recorded, answer }: { recorded: Run; answer: Replay }) {
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
  return value > 0 ? `+${count(value)}` : `-${count(-value)}`;
}
