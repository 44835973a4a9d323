// The severity of a finding as a shape and a colour, next to its word.

import type { FindingCard } from "../protocol";

const SHAPES: Record<FindingCard["severity"], { outline: string; mark: string }> = {
  high: { outline: "M5 1h6l4 4v6l-4 4H5l-4-4V5z", mark: "M5.5 5.5l5 5m0-5l-5 5" },
  medium: { outline: "M8 1.2L15.4 14.5H.6z", mark: "M8 6v4.2m0 1.6v.9" },
  low: { outline: "M8 1a7 7 0 1 1 0 14A7 7 0 0 1 8 1z", mark: "M8 7v4.6m0-7.2v.9" },
};

export function SeverityIcon({ of }: { of: string }) {
  const shape = SHAPES[of as FindingCard["severity"]] ?? SHAPES.low;
  return (
    <svg
      class={`severity ${of}`}
      viewBox="0 0 16 16"
      width="15"
      height="15"
      role="img"
      aria-label={`${of} severity`}
    >
      <path class="outline" d={shape.outline} />
      <path class="mark" d={shape.mark} />
    </svg>
  );
}
