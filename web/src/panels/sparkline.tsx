// A sparkline.

export function Sparkline(props: {
  values: number[];
  highest: number;
  label: string;
  width?: number;
  height?: number;
}) {
  const { values, highest, width = 90, height = 18 } = props;
  const step = width / Math.max(1, values.length - 1);
  const y = (value: number) => height - (highest > 0 ? (value / highest) * (height - 1) : 0);
  const line = values.map((value, place) => `${(place * step).toFixed(1)} ${y(value).toFixed(1)}`).join("L");
  return (
    <svg
      class="sparkline"
      viewBox={`0 0 ${width} ${height}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={props.label}
    >
      <path class="area" d={`M0 ${height}L${line}L${width} ${height}z`} />
      <path class="line" d={`M${line}`} />
    </svg>
  );
}
