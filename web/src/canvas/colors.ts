// Colours of groups. The hues are those of Okabe and Ito, which people with any kind of colour vision can
// tell apart, in three lightnesses. Groups are numbered by their highest bytes, so the largest ones get the
// plain hues.

import { computed } from "@preact/signals";
import type { TimelineBy } from "../protocol";
import { isDark } from "../state/theme";

export type Theme = "light" | "dark";

export interface Color {
  css: string;
  /** As a pixel of an ImageData. */
  packed: number;
}

type Rgb = readonly [number, number, number];

export const shownTheme = computed<Theme>(() => (isDark() ? "dark" : "light"));

const WHITE: Rgb = [255, 255, 255];
const BLACK: Rgb = [0, 0, 0];

/** Neighbours differ in lightness as well as in hue. */
const HUES = {
  blue: rgb("#0072b2"),
  orange: rgb("#e69f00"),
  green: rgb("#009e73"),
  sky: rgb("#56b4e9"),
  vermilion: rgb("#d55e00"),
  yellow: rgb("#f0e442"),
  pink: rgb("#cc79a7"),
  indigo: rgb("#4b3f9e"),
};

const PALETTE: Rgb[] = [
  ...Object.values(HUES),
  ...Object.values(HUES).map((hue) => mixed(hue, BLACK, 0.4)),
  ...Object.values(HUES).map((hue) => mixed(hue, WHITE, 0.6)),
];

const CATEGORIES: Record<string, Rgb> = {
  parameter: HUES.blue,
  buffer: mixed(HUES.blue, BLACK, 0.4),
  gradient: HUES.orange,
  optimizer: HUES.green,
  activation: HUES.vermilion,
  input: HUES.yellow,
  temporary: HUES.pink,
  workspace: HUES.sky,
  unknown: HUES.indigo,
};

interface Tones {
  panel: Rgb;
  /** Several that are merged: hatched in these two. */
  merged: Rgb;
  stripe: Rgb;
  free: Rgb;
}

const TONES: Record<Theme, Tones> = {
  light: { panel: WHITE, merged: rgb("#c3c7ce"), stripe: rgb("#a9afb9"), free: rgb("#e6ebf0") },
  dark: { panel: rgb("#16191d"), merged: rgb("#565c66"), stripe: rgb("#454a53"), free: rgb("#2d343e") },
};

function rgb(hex: string): Rgb {
  const value = Number.parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 0xff, value & 0xff];
}

function mixed(from: Rgb, to: Rgb, share: number): Rgb {
  const part = (place: 0 | 1 | 2) => Math.round(from[place] + (to[place] - from[place]) * share);
  return [part(0), part(1), part(2)];
}

function color([red, green, blue]: Rgb): Color {
  return {
    css: `rgb(${red} ${green} ${blue})`,
    packed: (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0,
  };
}

/** Hues are muted on a dark page, where large areas would glare. */
function fitted(hue: Rgb, theme: Theme): Color {
  return color(theme === "dark" ? mixed(hue, TONES.dark.panel, 0.14) : hue);
}

const FITTED: Record<Theme, Color[]> = {
  light: PALETTE.map((hue) => fitted(hue, "light")),
  dark: PALETTE.map((hue) => fitted(hue, "dark")),
};

/** The colour of a group. Categories keep theirs whatever their sizes are. */
export function colorOf(by: TimelineBy, id: number, label: string, theme: Theme): Color {
  const fixed = by === "category" ? CATEGORIES[label] : undefined;
  return fixed ? fitted(fixed, theme) : FITTED[theme][id % PALETTE.length]!;
}

/** Colours that do not belong to a group. */
export interface Neutrals {
  panel: number;
  merged: number;
  stripe: number;
  free: number;
  /** Merged cells of the memory map, from all free to all in use. */
  usage: Uint32Array;
}

const USAGE_STEPS = 16;

function neutralsOf({ panel, merged, stripe, free }: Tones): Neutrals {
  const usage = Uint32Array.from(
    { length: USAGE_STEPS + 1 },
    (_, step) => color(mixed(free, stripe, step / USAGE_STEPS)).packed,
  );
  const packed = (tone: Rgb) => color(tone).packed;
  return { panel: packed(panel), merged: packed(merged), stripe: packed(stripe), free: packed(free), usage };
}

export const NEUTRALS: Record<Theme, Neutrals> = {
  light: neutralsOf(TONES.light),
  dark: neutralsOf(TONES.dark),
};

/** Styles for legends and small canvases. */
export function mergedCss(theme: Theme): string {
  const { merged, stripe } = TONES[theme];
  return `repeating-linear-gradient(135deg, ${color(merged).css} 0 3px, ${color(stripe).css} 3px 6px)`;
}

export function usageCss(theme: Theme): string {
  const { free, stripe } = TONES[theme];
  return `linear-gradient(90deg, ${color(free).css}, ${color(stripe).css})`;
}

export function freeCss(theme: Theme): string {
  return color(TONES[theme].free).css;
}
