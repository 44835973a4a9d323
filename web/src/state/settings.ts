// Settings of the allocator as one line, `PYTORCH_CUDA_ALLOC_CONF`, and as the fields of a form. The line is
// the truth: a field reads its part of it and writes it back, what no field knows stays.

/** The value of a setting in a line; "" if it is not in it. Values in brackets may have commas. */
export function settingIn(line: string, name: string): string {
  const part = partsOf(line).find((each) => nameOf(each) === name);
  return part ? part.slice(part.indexOf(":") + 1).trim() : "";
}

/** The line with a setting changed, added, or taken out for "". */
export function withSetting(line: string, name: string, value: string): string {
  const parts = partsOf(line);
  const at = parts.findIndex((each) => nameOf(each) === name);
  const part = value ? [`${name}:${value}`] : [];
  parts.splice(at < 0 ? parts.length : at, at < 0 ? 0 : 1, ...part);
  return parts.join(",");
}

const nameOf = (part: string) => part.split(":", 1)[0]!.trim();

function partsOf(line: string): string[] {
  return line
    .split(/,(?![^[]*\])/)
    .map((part) => part.trim())
    .filter(Boolean);
}

const POWERS = ["k", "m", "g", "t"];

/**
 * Bytes of `20GiB` or `20g`, of `80GB` (decimal, as on the command line), or of `24`, which are GiB; null of
 * what is none.
 */
export function sizeIn(text: string): number | null {
  const parts = /^\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(ib?|b)?)?\s*$/i.exec(text);
  if (!parts || Number(parts[1]) === 0) return null;
  const power = parts[2] ? POWERS.indexOf(parts[2].toLowerCase()) + 1 : 3;
  const isDecimal = parts[3]?.toLowerCase() === "b";
  return Math.round(Number(parts[1]) * (isDecimal ? 1000 : 1024) ** power);
}
