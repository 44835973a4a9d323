// Holders of tensors: the dominator tree of the recorded objects, and reference cycles.

import { useState } from "preact/hooks";
import type { HolderBranch, HolderTree, Run } from "../protocol";
import { useAnswer } from "../protocol/use-answer";
import { bytes, count, counted } from "../state/format";
import { Answered, Bar, Words } from "./parts";

type Retained = HolderBranch["retained"];

const total = (retained: Retained) => retained.reduce((sum, each) => sum + each.bytes, 0);
const byDevice = (retained: Retained) =>
  retained.map((each) => `${bytes(each.bytes)} on ${each.device}`).join(", ");

export function HoldersPanel({ run }: { run: Run }) {
  if (!run.hasHolders) return <HowToRecord />;
  return <Recorded run={run} />;
}

function HowToRecord() {
  return (
    <div class="empty">
      <p>This input does not record which Python objects hold its tensors.</p>
      <p>
        Record the program with <code>oomph run train.py</code>, or around a part of it with{" "}
        <code>with oomph.record():</code>. The object graph is written at the end and at an out-of-memory
        error, and shown here as a tree of variables with their retained sizes.
      </p>
    </div>
  );
}

function Recorded({ run }: { run: Run }) {
  const answer = useAnswer("holders", { input: run.input });
  return (
    <Answered answer={answer}>
      {(holders) => (
        <div class="holders">
          <p class="dim">
            Memory that each object retains{holders.dumped && `, at ${holders.dumped}`}. Open a row to see the
            reference path to the memory.
          </p>
          {holders.caveats.map((caveat) => (
            <p key={caveat} class="caveat">
              ⚠ <Words text={caveat} />
            </p>
          ))}
          <table class="tree" role="treegrid" aria-label="Dominator tree">
            <thead>
              <tr>
                <th scope="col" class="object">
                  object
                </th>
                <th scope="col" class="type">
                  type
                </th>
                <th scope="col" class="figure">
                  retains
                </th>
                <td class="wide" />
              </tr>
            </thead>
            <tbody>
              <Branches of={holders.tree} depth={0} whole={total(holders.tree.retained)} />
            </tbody>
          </table>
          <Cycles of={holders.cycles} />
        </div>
      )}
    </Answered>
  );
}

/** The branches of an object, and the number of those not listed. */
function Branches({ of, depth, whole }: { of: HolderBranch; depth: number; whole: number }) {
  return (
    <>
      {of.branches.map((branch, number) => (
        <Line key={number} of={branch} depth={depth} whole={whole} open={depth === 0 && number === 0} />
      ))}
      {of.left_out > 0 && (
        <tr class="dim">
          <td colSpan={4} style={indented(depth)}>
            {count(of.left_out)} smaller
          </td>
        </tr>
      )}
    </>
  );
}

const indented = (depth: number) => ({ paddingLeft: `${10 + depth * 18}px` });

function Line({
  of,
  depth,
  whole,
  open: first,
}: {
  of: HolderBranch;
  depth: number;
  whole: number;
  open: boolean;
}) {
  const [open, setOpen] = useState(first);
  const inner = of.branches.length > 0 || of.left_out > 0;
  const held = total(of.retained);
  return (
    <>
      <tr aria-level={depth + 1} aria-expanded={inner ? open : undefined}>
        <th scope="row" style={indented(depth)} title={of.name}>
          <button type="button" class="quiet" disabled={!inner} onClick={() => setOpen(!open)}>
            <span class="twist">{inner ? (open ? "▾" : "▸") : ""}</span>
            <code>{of.name}</code>
          </button>
          {of.count > 1 && <span class="dim"> × {count(of.count)}</span>}
        </th>
        <td class="dim" title={of.what}>
          <code>{of.what}</code>
        </td>
        <td class="figure" title={byDevice(of.retained)}>
          {bytes(held)}
        </td>
        <td class="wide">
          <Bar share={whole > 0 ? held / whole : 0} />
        </td>
      </tr>
      {open && <Branches of={of} depth={depth + 1} whole={whole} />}
    </>
  );
}

function Cycles({ of }: { of: HolderTree["cycles"] }) {
  if (!of.length) return <p class="dim">No reference cycle holds memory.</p>;
  return (
    <>
      <h3>Reference cycles that hold memory</h3>
      <table class="cycles">
        <tbody>
          {of.map((cycle, number) => (
            <tr key={number}>
              <td class="figure" title={byDevice(cycle.retained)}>
                {bytes(total(cycle.retained))}
              </td>
              <td>
                <code>{cycle.links}</code>
              </td>
              <td class="dim">
                {counted(cycle.count, "cycle")}
                {cycle.garbage && ", garbage until the collector runs"}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}
