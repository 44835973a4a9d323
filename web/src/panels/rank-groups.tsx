// Ranks that are alike, one line per group.

import { signal } from "@preact/signals";
import type { Ranks } from "../protocol";
import { bytes, count, counted } from "../state/format";
import { openRun } from "../state/inputs";
import { SeverityIcon } from "./severity";
import { Sparkline } from "./sparkline";

const MAX_GROUPS = 24;

/** The group under the pointer, whose cells stand out. */
export const pointedGroup = signal<number | null>(null);

export function RankGroups({ groups }: { groups: Ranks["groups"] }) {
  const scale = groups[0]?.highest ?? 0;
  const rest = groups.slice(MAX_GROUPS).reduce((sum, group) => sum + group.count, 0);
  return (
    <>
      <h3>Ranks that are alike</h3>
      <table class="comparison rank-groups" onPointerLeave={() => (pointedGroup.value = null)}>
        <thead>
          <tr>
            <th scope="col">ranks</th>
            <th scope="col">which</th>
            <th scope="col">peak</th>
            <th scope="col">over the run</th>
            <th scope="col">findings</th>
          </tr>
        </thead>
        <tbody>
          {groups.slice(0, MAX_GROUPS).map((group, number) => (
            <tr key={group.representative} onPointerEnter={() => (pointedGroup.value = number)}>
              <td>{count(group.count)}</td>
              <td>
                <button
                  type="button"
                  class="quiet"
                  title="Show the rank with the median peak"
                  onClick={() => openRun(group.representative)}
                >
                  {group.members}
                </button>
              </td>
              <td>{peaks(group.lowest, group.highest)}</td>
              <td>
                <Sparkline
                  values={group.timeline}
                  highest={scale}
                  label={`allocated memory of ${group.members}`}
                />
              </td>
              <td>
                {group.findings.map((finding, place) => (
                  <span key={place} class="rank-finding" title={finding.summary}>
                    <SeverityIcon of={finding.severity} /> {finding.kind}
                  </span>
                ))}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {rest > 0 && <p class="dim more">{counted(rest, "more rank")} in smaller groups</p>}
    </>
  );
}

/** `45.0 MiB`, or `45.0 MiB – 45.3 MiB`. */
function peaks(lowest: number, highest: number): string {
  const [low, high] = [bytes(lowest), bytes(highest)];
  return low === high ? low : `${low} – ${high}`;
}
