// Numbers as the terminal writes them. Pure.

const UNITS: [string, number][] = [
  ["TiB", 2 ** 40],
  ["GiB", 2 ** 30],
  ["MiB", 2 ** 20],
  ["KiB", 2 ** 10],
];

/** Three significant digits: `2.59 GiB`, `45.0 MiB`, `512 B`. The unit is chosen by the rounded number. */
export function bytes(value: number): string {
  const [unit, scale] = UNITS.find(([, scale]) => Math.abs(value) / scale >= 0.9995) ?? ["B", 1];
  const figure = Math.abs(value) / scale;
  const digits = scale === 1 || figure >= 99.95 ? 0 : figure >= 9.995 ? 1 : 2;
  return `${value < 0 ? "-" : ""}${fixed(figure, digits)} ${unit}`;
}

/** Rounds halves to the even digit, as the terminal does; `toFixed` rounds them up. */
function fixed(figure: number, digits: number): string {
  const scaled = figure * 10 ** digits;
  const isMiddle = scaled - Math.floor(scaled) === 0.5;
  return isMiddle ? ((2 * Math.round(scaled / 2)) / 10 ** digits).toFixed(digits) : figure.toFixed(digits);
}

/** A change with its sign: `+45.0 MiB`. */
export function change(value: number): string {
  return value > 0 ? `+${bytes(value)}` : bytes(value);
}

/** `8,407,800` */
export function count(value: number): string {
  return Math.round(value).toLocaleString("en-US");
}

/** `1 block`, `12 blocks`, `2 processes` */
export function counted(value: number, what: string): string {
  return `${count(value)} ${what}${value === 1 ? "" : what.endsWith("s") ? "es" : "s"}`;
}

/** `12.4%` */
export function percent(part: number, whole: number): string {
  const share = whole > 0 ? (100 * part) / whole : 0;
  if (share > 0 && share < 0.05) return "<0.1%";
  return `${share >= 10 || share === 0 ? share.toFixed(0) : share.toFixed(1)}%`;
}

/** `1.24 s`, `12.0 ms` */
export function duration(us: number): string {
  const [unit, scale] =
    us >= 60e6 ? ["min", 60e6] : us >= 0.9995e6 ? ["s", 1e6] : us >= 999.5 ? ["ms", 1e3] : ["µs", 1];
  const figure = us / (scale as number);
  return `${scale === 1 ? figure.toFixed(0) : figure.toPrecision(3)} ${unit}`;
}

/** The last part of a path. */
export function fileName(path: string): string {
  return path.slice(Math.max(path.lastIndexOf("/"), path.lastIndexOf("\\")) + 1);
}

/** `train.py:9`; the function alone where there is no file. */
export function site(frame: { file: string; line: number; function?: string }): string {
  return frame.file ? `${fileName(frame.file)}${frame.line ? `:${frame.line}` : ""}` : (frame.function ?? "");
}
