// The selection: one block, or a group of blocks at the chosen moment.

import { colorOf, shownTheme } from "../canvas/colors";
import type { BlockDetails, GroupDetails, Run } from "../protocol";
import { useAnswer } from "../protocol/use-answer";
import { atEvent } from "../state/axis";
import { showLifetime, showMoment } from "../state/focus";
import { bytes, count, counted, duration, percent } from "../state/format";
import { by, moment, selection } from "../state/store";
import { Answered, Facts } from "./parts";
import { CategoryShares } from "./shares";
import { Stack } from "./stack";

export function Details({ run }: { run: Run }) {
  const chosen = selection.value;
  return (
    <section class={chosen ? "details" : "details unselected"} aria-label="Details">
      <div class="title">
        <h2>Details</h2>
        {chosen && (
          <button type="button" class="quiet" onClick={() => (selection.value = null)}>
            Clear
          </button>
        )}
      </div>
      {!chosen && <p class="dim">Click a band, a block or a finding to see its details.</p>}
      {chosen?.kind === "block" && <SelectedBlock key="block" run={run} row={chosen.row} />}
      {chosen?.kind === "group" && <SelectedGroup key="group" run={run} by={chosen.by} id={chosen.id} />}
    </section>
  );
}

function SelectedBlock({ run, row }: { run: Run; row: number }) {
  const answer = useAnswer("block", { run: run.id, row });
  return <Answered answer={answer}>{(block) => <OneBlock block={block} run={run} />}</Answered>;
}

function OneBlock({ block, run }: { block: BlockDetails; run: Run }) {
  const { segment } = block;
  const waste = block.size - block.requested;
  return (
    <>
      <p class="headline">
        <b>{bytes(block.size)}</b> {block.category} block
        {block.tensor && (
          <>
            {" "}
            <code>{block.tensor}</code>
          </>
        )}
      </p>
      <p class="actions">
        <button type="button" onClick={() => void showLifetime(run, block.row)}>
          Show its lifetime
        </button>
        <button
          type="button"
          onClick={() => {
            by.value = "site";
            selection.value = { kind: "group", by: "site", id: block.group };
          }}
        >
          All from this site
        </button>
      </p>
      <Facts
        of={[
          [
            "requested",
            waste > 0 ? `${bytes(block.requested)}, ${bytes(waste)} of rounding` : bytes(block.requested),
          ],
          [
            "allocated",
            <End
              key="allocated"
              run={run}
              event={block.allocEvent}
              us={block.allocUs}
              step={block.allocStep}
              never="before the history"
              after={1}
            />,
          ],
          [
            "freed",
            <End
              key="freed"
              run={run}
              event={block.freeEvent}
              us={block.freeUs}
              step={block.freeStep}
              never="never"
              after={0}
            />,
          ],
          isPending(block) && [
            "reusable",
            `from event ${count(block.freeCompletedEvent!)}: another stream used it until then`,
          ],
          ["lifetime", block.lifetime],
          block.module !== null && ["module", <code key="module">{block.module}</code>],
          ["site", <code key="site">{block.site}</code>],
          ["address", <code key="address">{block.addr}</code>],
          segment && ["segment", segmentWords(segment)],
        ]}
      />
      <h3>Stack, innermost first</h3>
      <Stack frames={block.stack} />
    </>
  );
}

/** Whether the free had to wait for another stream; otherwise the event that completes it follows at once. */
function isPending({ freeEvent, freeCompletedEvent }: BlockDetails): boolean {
  return freeEvent !== null && freeCompletedEvent !== null && freeCompletedEvent > freeEvent + 1;
}

function segmentWords({
  size,
  addr,
  stream,
  pool,
  small,
  expandable,
}: NonNullable<BlockDetails["segment"]>): string {
  const kind = expandable ? "expandable" : small ? "small blocks" : "large blocks";
  return `${bytes(size)} at ${addr}, ${kind}, pool ${pool}, stream ${stream}`;
}

/** The allocation or the free of a block: event, time and step; a click goes there. */
function End(props: {
  run: Run;
  event: number | null;
  us: number | null;
  step: number | null;
  never: string;
  after: number;
}) {
  const { run, event, us, step } = props;
  if (event === null) return <>{props.never}</>;
  const words = [
    `event ${count(event)}`,
    us !== null && run.endUs > run.beginUs && duration(us),
    step !== null && `step ${count(step + 1)}`,
  ];
  return (
    <button type="button" class="link" title="Go there" onClick={() => showMoment(run, event + props.after)}>
      {words.filter(Boolean).join(", ")}
    </button>
  );
}

function SelectedGroup(props: { run: Run; by: GroupDetails["by"]; id: number }) {
  const answer = useAnswer("group", { run: props.run.id, by: props.by, id: props.id, at: moment.value });
  return (
    <Answered answer={answer}>{(group) => <OneGroup of={group} run={props.run} at={answer.at!} />}</Answered>
  );
}

function OneGroup({ of, run, at }: { of: GroupDetails; run: Run; at: number }) {
  const { group, highest } = of;
  return (
    <>
      <p class="headline">
        <i
          class="swatch"
          style={{ background: colorOf(of.by, group.id, group.label, shownTheme.value).css }}
        />
        <code>
          <b>{group.label}</b> {group.detail}
        </code>
      </p>
      <Facts
        of={[
          [at === moment.value ? "now" : atEvent(at), `${bytes(of.bytes)} in ${counted(of.count, "block")}`],
          [
            "highest",
            <button
              key="highest"
              type="button"
              class="link"
              title="Go there"
              onClick={() => showMoment(run, highest.position)}
            >
              {bytes(highest.bytes)}, {atEvent(highest.position)}
            </button>,
          ],
          ["total", `${counted(of.made, "block")} in the whole run`],
        ]}
      />
      {of.by !== "category" && <CategoryShares of={of.categories} />}
      <Stacks of={of} />
    </>
  );
}

function Stacks({ of }: { of: GroupDetails }) {
  if (!of.stacks.length) return <p class="dim">None of its blocks is allocated at this moment.</p>;
  return (
    <>
      <h3>Largest stacks at this moment</h3>
      {of.stacks.map((stack, number) => (
        <details key={number} class="one-stack" open={number === 0}>
          <summary>
            {bytes(stack.bytes)} <span class="dim">({percent(stack.bytes, of.bytes)})</span> in{" "}
            {counted(stack.count, "block")}
          </summary>
          <Stack frames={stack.frames} />
        </details>
      ))}
    </>
  );
}
