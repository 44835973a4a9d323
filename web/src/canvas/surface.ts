// Two canvases on top of each other: pixels of tiles in the plot, and marks with text over it and its
// margins.

import { signal } from "@preact/signals";

/** Room around the plot, in CSS pixels: axes, names of marks. All pictures with the same x axis share it. */
export const MARGIN = { left: 76, right: 8, top: 20, bottom: 22 };

export interface Size {
  width: number;
  height: number;
}

/** Upper limit of device pixels per CSS pixel: more cost time and show nothing. */
const MAX_PIXEL_RATIO = 2;

/** The colours of the page, for canvases. */
export interface Ink {
  text: string;
  dim: string;
  line: string;
  panel: string;
  accent: string;
  bad: string;
  warn: string;
  font: string;
}

function inkOf(element: HTMLElement): Ink {
  const style = getComputedStyle(element);
  const read = (name: string) => style.getPropertyValue(`--${name}`).trim() || style.color;
  return {
    text: read("text"),
    dim: read("dim"),
    line: read("line"),
    panel: read("panel"),
    accent: read("accent"),
    bad: read("bad"),
    warn: read("warn"),
    font: `${(Number.parseFloat(style.fontSize) * 0.92).toFixed(1)}px ${style.fontFamily}`,
  };
}

export class Surface {
  /** Of the plot, without its margins. */
  readonly size = signal<Size>({ width: 0, height: 0 });
  private image: ImageData | null = null;
  private ink: { theme: string; of: Ink } | null = null;

  constructor(
    private readonly bands: HTMLCanvasElement,
    private readonly marks: HTMLCanvasElement,
    private readonly margin = MARGIN,
  ) {}

  /** Follows the size of the element around both canvases; returns a function that stops it. */
  follow(frame: HTMLElement): () => void {
    const observer = new ResizeObserver(() => {
      const width = Math.max(0, frame.clientWidth - this.margin.left - this.margin.right);
      const height = Math.max(0, frame.clientHeight - this.margin.top - this.margin.bottom);
      const now = this.size.peek();
      if (now.width !== width || now.height !== height) this.size.value = { width, height };
    });
    observer.observe(frame);
    return () => observer.disconnect();
  }

  /** Converts a point of the plot to a point of the page. */
  onPage(at: { x: number; y: number }): { x: number; y: number } {
    const { left, top } = this.bands.getBoundingClientRect();
    return { x: left + at.x, y: top + at.y };
  }

  /** Device pixels per CSS pixel. */
  get density(): number {
    return Math.min(MAX_PIXEL_RATIO, window.devicePixelRatio || 1);
  }

  /** Lets `draw` set all pixels of the plot. */
  drawBands(draw: (pixels: Uint32Array, width: number, height: number) => void): void {
    const { width, height } = this.size.peek();
    const [across, down] = [Math.round(width * this.density), Math.round(height * this.density)];
    if (across < 1 || down < 1) return;
    if (!this.image || this.image.width !== across || this.image.height !== down) {
      this.bands.width = across;
      this.bands.height = down;
      this.image = new ImageData(across, down);
    }
    draw(new Uint32Array(this.image.data.buffer), across, down);
    this.bands.getContext("2d")!.putImageData(this.image, 0, 0);
  }

  /** Lets `draw` draw marks; 0, 0 is the upper left corner of the plot. */
  drawMarks(theme: string, draw: (context: CanvasRenderingContext2D, size: Size, ink: Ink) => void): void {
    const size = this.size.peek();
    const { left, right, top, bottom } = this.margin;
    const ratio = window.devicePixelRatio || 1;
    const across = Math.round((size.width + left + right) * ratio);
    const down = Math.round((size.height + top + bottom) * ratio);
    if (this.marks.width !== across || this.marks.height !== down) {
      this.marks.width = across;
      this.marks.height = down;
    }
    if (this.ink?.theme !== theme) this.ink = { theme, of: inkOf(this.marks) };
    const context = this.marks.getContext("2d")!;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, across, down);
    context.translate(left, top);
    context.font = this.ink.of.font;
    context.textBaseline = "middle";
    draw(context, size, this.ink.of);
  }
}
