// The findings of the report, as cards; a click shows the evidence in every view.

import type { FindingCard, Run } from "../protocol";
import { useAnswer } from "../protocol/use-answer";
import { isShown, showFinding } from "../state/focus";
import { bytes, counted, site } from "../state/format";
import { Evidence } from "./evidence";
import { Answered, Words } from "./parts";
import { SeverityIcon } from "./severity";
import { CategoryShares } from "./shares";

export function Findings({ run }: { run: Run }) {
  const answer = useAnswer("findings", { run: run.id });
  return (
    <section class="findings" aria-label="Findings">
      <Answered answer={answer}>
        {({ findings, clear, categories, categoriesReason }) => (
          <>
            <h2>{findings.length ? counted(findings.length, "finding") : "Findings"}</h2>
            {findings.map((finding, number) => (
              <Card key={number} finding={finding} />
            ))}
            {!findings.length && <p class="all-well">✓ {clear}</p>}
            {!findings.length && <Categories of={categories} reason={categoriesReason} />}
          </>
        )}
      </Answered>
    </section>
  );
}

function Card({ finding }: { finding: FindingCard }) {
  const amounts = [
    bytes(finding.bytes),
    finding.bytes_per_step ? `${bytes(finding.bytes_per_step)} per step` : "",
    finding.count > 1 ? counted(finding.count, finding.count_noun) : "",
  ].filter(Boolean);
  return (
    <article class={`card ${finding.severity}`} aria-current={isShown(finding)}>
      <p class="kind">
        <SeverityIcon of={finding.severity} />
        <b>{finding.title}</b>
        <span>{finding.severity}</span>
      </p>
      <button
        type="button"
        class="summary"
        title="Show the evidence in every view"
        onClick={() => showFinding(finding)}
      >
        <Words text={finding.summary} />
      </button>
      {finding.site && (
        <p class="site" title={finding.site.file}>
          <code>
            <b>{site(finding.site)}</b> {finding.site.function}
          </code>
        </p>
      )}
      <p class="amounts">{amounts.join(" · ")}</p>
      {finding.held_by && (
        <p class="held-by">
          held by <code>{finding.held_by}</code>
        </p>
      )}
      <p class="fix">
        <b>Fix</b> <Words text={finding.fix} />
      </p>
      <More finding={finding} />
    </article>
  );
}

function More({ finding }: { finding: FindingCard }) {
  return (
    <details class="more">
      <summary>Evidence and caveats</summary>
      {finding.details.length > 0 && (
        <ul>
          {finding.details.map((line) => (
            <li key={line}>
              <Words text={line} />
            </li>
          ))}
        </ul>
      )}
      <p>
        <span class="dim">Why {finding.severity}: </span>
        <Words text={finding.severity_reason} />
      </p>
      {finding.caveats.map((caveat) => (
        <p key={caveat} class="caveat">
          ⚠ <Words text={caveat} />
        </p>
      ))}
      <Evidence of={finding.evidence} units={finding.units} />
    </details>
  );
}

/** Memory at the peak, by category. */
function Categories({ of, reason }: { of: [string, number][]; reason: string }) {
  return (
    <>
      <h3>Memory at the peak, by category</h3>
      <CategoryShares of={of} />
      {reason && (
        <p class="dim note">
          <Words text={reason} />
        </p>
      )}
    </>
  );
}
