// The ranks of a job on one scale, and what sets the highest apart.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Ranks } from "../protocol";
import { type AnswerError, ask } from "../protocol/source";
import { asAnswerError } from "../protocol/use-answer";
import { bytes, change, count, counted } from "../state/format";
import { openRun, reading } from "../state/inputs";
import { shortName } from "../state/names";
import { persisted } from "../state/persisted";
import { run } from "../state/store";
import { Choice, Loading, Problem, Words } from "./parts";
import { RankCells } from "./rank-cells";
import { RankGroups } from "./rank-groups";
import { SeverityIcon } from "./severity";
import { Sparkline } from "./sparkline";

type Rank = Ranks["ranks"][number];

const order = persisted<"rank" | "peak">("ranks", "rank");
/** Ranks up to which each has a picture of its own (`MAX_SPARKLINES` of `ranks.rs`). */
const MAX_MULTIPLES = 64;
/** Files that cannot be read and that are named. */
const MAX_UNREADABLE = 6;
/** Time between two questions while ranks are being read, in milliseconds; longer for longer answers. */
const interval = (known: Ranks) => (known.ranks.length > 1000 ? 2000 : 400);

const known = signal<Ranks | null>(null);
const problem = signal<AnswerError | null>(null);

/** Asks again while ranks are being read. */
function useRanks(): void {
  useEffect(() => {
    let timer = 0;
    let isGone = false;
    const load = async () => {
      try {
        const answer = await ask("ranks", {});
        if (isGone) return;
        known.value = answer;
        if (answer.unread) timer = window.setTimeout(load, interval(answer));
      } catch (error) {
        problem.value = asAnswerError(error);
      }
    };
    if (!known.value || known.value.unread) void load();
    return () => {
      isGone = true;
      clearTimeout(timer);
    };
  }, []);
}

export function RanksPanel() {
  useRanks();
  if (problem.value) return <Problem of={problem.value} />;
  if (!known.value) return <Loading />;
  const { ranks, skew, unread, unreadable, groups } = known.value;
  const total = ranks.length + unread + unreadable.length;
  const isMany = total > MAX_MULTIPLES;
  return (
    <div class="ranks">
      <div class="toolbar">
        <Choice
          label="Order"
          value={order.value}
          options={[
            ["rank", "By rank"],
            ["peak", "By peak"],
          ]}
          onChoose={(value) => (order.value = value)}
        />
        <Said of={known.value} />
        {skew?.doubt && <p class="caveat">⚠ {skew.doubt}</p>}
      </div>
      {reading.value &&
        (reading.value.problem ? (
          <Problem of={reading.value.problem} />
        ) : (
          <Loading what={`Reading ${shortName(reading.value.name)}`} />
        ))}
      {isMany ? <RankCells of={known.value} byPeak={order.value === "peak"} /> : <Multiples ranks={ranks} />}
      {isMany && <RankGroups groups={groups} />}
      {unreadable.length > 0 && <Unreadable of={unreadable} />}
      {skew && <Skew of={skew} ranks={ranks} />}
    </div>
  );
}

/** What is known so far, in a sentence. */
function Said({ of: { ranks, skew, unread, unreadable } }: { of: Ranks }) {
  const total = ranks.length + unread + unreadable.length;
  if (unread)
    return (
      <p class="said" role="status">
        {count(total - unread)} of {counted(total, "rank")} read
      </p>
    );
  return <p class="said">{skew ? <Words text={skew.words} /> : "No rank stands out."}</p>;
}

function Unreadable({ of }: { of: Ranks["unreadable"] }) {
  return (
    <ul class="unreadable">
      {of.slice(0, MAX_UNREADABLE).map((rank) => (
        <li key={rank.input} title={rank.name}>
          ⚠ <Words text={rank.problem} />
        </li>
      ))}
      {of.length > MAX_UNREADABLE && <li>and {count(of.length - MAX_UNREADABLE)} more</li>}
    </ul>
  );
}

function Multiples({ ranks }: { ranks: Rank[] }) {
  const byPeak = [...ranks].sort((a, b) => b.peak - a.peak);
  const scale = byPeak[0]?.peak ?? 0;
  const median = byPeak[Math.floor(byPeak.length / 2)];
  return (
    <ul class="multiples">
      {(order.value === "peak" ? byPeak : ranks).map((rank) => (
        <li key={rank.run}>
          <button type="button" aria-pressed={run.value?.id === rank.run} onClick={() => openRun(rank.run)}>
            <span class="name">
              <b title={rank.name}>{shortName(rank.name)}</b>
              {rank === byPeak[0] && <mark>highest</mark>}
              {rank === median && rank !== byPeak[0] && <mark>median</mark>}
            </span>
            <Sparkline
              values={rank.timeline}
              highest={scale}
              label={`allocated memory of ${rank.name}`}
              width={200}
              height={44}
            />
            <span class="name">
              <span title={`${bytes(rank.reserved)} reserved`}>peak {bytes(rank.peak)}</span>
              <span>
                {rank.findings.map((finding, number) => (
                  <span key={number} title={`${finding.kind}: ${finding.summary}`}>
                    <SeverityIcon of={finding.severity} />
                  </span>
                ))}
              </span>
            </span>
          </button>
        </li>
      ))}
    </ul>
  );
}

function Skew({ of, ranks }: { of: NonNullable<Ranks["skew"]>; ranks: Rank[] }) {
  const named = (place: number) => shortName(ranks[place]?.name ?? "");
  const [highest, usual] = [named(of.highest), named(of.comparedWith)];
  return (
    <>
      <h3>
        Difference between {usual} and {highest}
      </h3>
      <table class="comparison">
        <thead>
          <tr>
            <td />
            <th scope="col">{usual}</th>
            <th scope="col">{highest}</th>
            <th scope="col">difference</th>
          </tr>
        </thead>
        <tbody>
          {of.sites.map((site) => (
            <tr key={site.label}>
              <th scope="row">
                <code>{site.label}</code>
              </th>
              <td>{bytes(site.before)}</td>
              <td>{bytes(site.after)}</td>
              <td>{change(site.after - site.before)}</td>
            </tr>
          ))}
          {of.categories.map(([name, difference]) => (
            <tr key={name} class="dim">
              <th scope="row">all {name}</th>
              <td />
              <td />
              <td>{change(difference)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}
