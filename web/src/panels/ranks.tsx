// The ranks of a job on one scale, and what sets the highest apart.

import type { Ranks } from "../protocol";
import { useAnswer } from "../protocol/use-answer";
import { bytes, change } from "../state/format";
import { shortName } from "../state/names";
import { persisted } from "../state/persisted";
import { chooseRun, run } from "../state/store";
import { Answered, Choice, Words } from "./parts";
import { SeverityIcon } from "./severity";
import { Sparkline } from "./sparkline";

type Rank = Ranks["ranks"][number];

const order = persisted<"rank" | "peak">("ranks", "rank");

export function RanksPanel() {
  const answer = useAnswer("ranks", {});
  return (
    <Answered answer={answer}>
      {({ ranks, skew }) => (
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
            <p class="said">{skew ? <Words text={skew.words} /> : "No rank stands out."}</p>
            {skew?.doubt && <p class="caveat">⚠ {skew.doubt}</p>}
          </div>
          <Multiples ranks={ranks} />
          {skew && <Skew of={skew} ranks={ranks} />}
        </div>
      )}
    </Answered>
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
          <button type="button" aria-pressed={run.value?.id === rank.run} onClick={() => chooseRun(rank.run)}>
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
