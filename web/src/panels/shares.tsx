// Bytes by category, largest first, in the colours that categories have on the timeline.

import { colorOf, shownTheme } from "../canvas/colors";
import { bytes, percent } from "../state/format";
import { Bar } from "./parts";

export function CategoryShares({ of }: { of: [string, number][] }) {
  const total = of.reduce((sum, [, each]) => sum + each, 0);
  const present = of.filter(([, each]) => each > 0).sort((a, b) => b[1] - a[1]);
  return (
    <table class="shares">
      <tbody>
        {present.map(([name, each]) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td class="wide">
              <Bar share={each / present[0]![1]} color={colorOf("category", 0, name, shownTheme.value).css} />
            </td>
            <td class="figure">{bytes(each)}</td>
            <td class="figure dim">{percent(each, total)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
