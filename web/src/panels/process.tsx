// The memory of the process by owner, and the phases of the program.

import type { PhaseCard, ProcessLedger, Run } from "../protocol";
import { useAnswer } from "../protocol/use-answer";
import { showMoment } from "../state/focus";
import { bytes, count, duration, percent } from "../state/format";
import { Answered, Bar } from "./parts";

export function ProcessPanel({ run }: { run: Run }) {
  const answer = useAnswer("process", { run: run.id });
  return (
    <Answered answer={answer}>
      {({ ledger, phases }) => (
        <div class="process">
          {ledger && <Ledger of={ledger} />}
          {phases.length > 0 && <Phases of={phases} run={run} />}
        </div>
      )}
    </Answered>
  );
}

function Ledger({ of }: { of: ProcessLedger }) {
  const rest = Math.abs(of.unattributed);
  const name = of.unattributed < 0 ? "counted twice" : "unattributed";
  const owners = rest > of.process / 1000 ? [...of.owners, { name, bytes: rest, parts: "" }] : of.owners;
  const largest = Math.max(...owners.map((owner) => owner.bytes));
  return (
    <section aria-label="Memory of the process">
      <h3>
        {bytes(of.process)} on the device, as nvidia-smi counts it <span class="dim">{of.when}</span>
      </h3>
      <table class="owners">
        <tbody>
          {[...owners, ...of.others].map((owner, place) => (
            <tr key={owner.name} class={place < owners.length ? "" : "dim"}>
              <th scope="row">{owner.name}</th>
              <td class="figure" title={`${count(owner.bytes)} bytes`}>
                {bytes(owner.bytes)}
              </td>
              <td class="figure dim">{place < owners.length && percent(owner.bytes, of.process)}</td>
              <td class="share">{place < owners.length && <Bar share={owner.bytes / largest} />}</td>
              <td class="dim">{place < owners.length ? owner.parts : "another process"}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {!of.traced && (
        <p class="dim note">
          <code>oomph run --trace-driver</code> splits non-PyTorch memory by library.
        </p>
      )}
    </section>
  );
}

function Phases({ of, run }: { of: PhaseCard[]; run: Run }) {
  const amount = (value?: number) => (value === undefined ? "–" : bytes(value));
  const hasProcess = of.some((phase) => phase.process !== undefined);
  return (
    <section aria-label="Phases">
      <h3>Phases</h3>
      <table class="phases">
        <thead>
          <tr>
            <th scope="col">phase</th>
            <th scope="col">times</th>
            <th scope="col">time</th>
            <th scope="col">peak</th>
            <th scope="col">reserved</th>
            <th scope="col" title="Allocated when the last one ended">
              after
            </th>
            {hasProcess && (
              <th scope="col" title="The process on the device when the last one ended">
                process
              </th>
            )}
            <th scope="col" title="What the last one left">
              stayed
            </th>
            <td class="wide" />
          </tr>
        </thead>
        <tbody>
          {of.map((phase) => (
            <tr key={phase.name}>
              <th scope="row">
                <button type="button" title="Go to its peak" onClick={() => showMoment(run, phase.position)}>
                  {phase.name}
                </button>
              </th>
              <td>{count(phase.times)}</td>
              <td>{duration(phase.durationUs)}</td>
              <td>{bytes(phase.peak)}</td>
              <td>{bytes(phase.reserved)}</td>
              <td>{amount(phase.after)}</td>
              {hasProcess && <td>{amount(phase.process)}</td>}
              <td>{amount(phase.stayed)}</td>
              <td class="wide dim">{phase.lines}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
