// What the report found, as cards; a click takes every view to the evidence.

import { useAnswer } from "./answers";
import { Evidence } from "./evidence";
import { isShown, showFinding } from "./focus";
import { bytes, counted, place } from "./format";
import { Answered, Words } from "./parts";
import type { Finding, Findings as FindingsAnswer, Run } from "./protocol";
import { SeverityIcon } from "./severity";
import { CategoryShares } from "./shares";

export function Findings({ run }: { run: Run }) {
  const answer = useAnswer<FindingsAnswer>("findings", { run: run.id });
  return (
    <section class="findings" aria-label="Findings">
      <Answered answer={answer}>
        {({ findings, clear, categories, categoriesReason }) => (
          <>
            <h2>{findings.length ? counted(findings.length, "finding") : "Findings"}</h2>
            {findings.map((finding, number) => (
              <Card key={number} finding={finding} />
            ))}
            {!findings.length && (
              <p class="all-well">✓ {clear}</p>
            )}
            {!findings.length && <Categories of={categories} reason={categoriesReason} />}
          </>
        )}
      </Answered>
    </section>
  );
}

const KINDS: Record<string, string> = {
  oom: "out of memory",
  pending: "pending frees",
  private_pool: "private pools",
  outside: "outside PyTorch",
};

function Card({ finding }: { finding: Finding }) {
  const amounts = [
    bytes(finding.bytes),
    finding.bytes_per_step ? `${bytes(finding.bytes_per_step)} a step` : "",
    finding.count > 1 ? counted(finding.count, finding.kind === "oom" ? "failure" : "block") : "",
  ].filter(Boolean);
  return (
    <article class={`card ${finding.severity}`} aria-current={isShown(finding)}>
      <p class="kind">
        <SeverityIcon of={finding.severity} />
        <b>{KINDS[finding.kind] ?? finding.kind}</b>
        <span>{finding.severity}</span>
      </p>
      <button type="button" class="summary" title="Show the evidence in every view" onClick={() => showFinding(finding)}>
        <Words text={finding.summary} />
      </button>
      {finding.site && (
        <p class="site" title={finding.site.file}>
          <code>
            <b>{place(finding.site)}</b> {finding.site.function}
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

function More({ finding }: { finding: Finding }) {
  return (
    <details class="more">
      <summary>Evidence and limits</summary>
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
      <Evidence of={finding.evidence} />
    </details>
  );
}

/** Where the memory goes, at the peak. */
function Categories({ of, reason }: { of: [string, number][]; reason: string }) {
  return (
    <>
      <h3>Where the memory goes at the peak</h3>
      <CategoryShares of={of} />
      {reason && (
        <p class="dim note">
          <Words text={reason} />
        </p>
      )}
    </>
  );
}
