// Where answers come from: the program that serves the page, or the page itself where it was exported.

import { path, type Problem, type Query } from "./protocol";

/** An answer that is not there, in words for people. */
export class Failed extends Error {
  constructor(
    message: string,
    readonly hint = "",
  ) {
    super(message);
  }
}

interface Source {
  bytes(path: string): Promise<ArrayBuffer>;
}

/** The answers inside an exported page: deflated and in base64, by their path. */
class Embedded implements Source {
  private readonly answers: Map<string, string>;

  constructor(elements: Iterable<Element>) {
    this.answers = new Map([...elements].map((element) => [element.getAttribute("data-path") ?? "", element.textContent ?? ""]));
  }

  async bytes(path: string): Promise<ArrayBuffer> {
    const text = this.answers.get(path);
    if (text === undefined) {
      throw new Failed("This is not in the exported page.", "Open the recording with `oomph view` to see it.");
    }
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return await new Response(stream).arrayBuffer();
  }

  has(path: string): boolean {
    return this.answers.has(path);
  }

  /** The questions that have an answer, by name. */
  questions(): Map<string, Query[]> {
    const all = new Map<string, Query[]>();
    for (const path of this.answers.keys()) {
      const [name = "", query] = path.replace(/^api\//, "").split("?");
      all.set(name, [...(all.get(name) ?? []), Object.fromEntries(new URLSearchParams(query))]);
    }
    return all;
  }
}

class Served implements Source {
  async bytes(path: string): Promise<ArrayBuffer> {
    let response: Response;
    try {
      response = await fetch(path);
    } catch {
      throw new Failed("The program behind this page does not answer.", "Is `oomph view` still running? Start it again and reload.");
    }
    const body = await response.arrayBuffer();
    if (!response.ok) {
      const problem = parsed<Problem>(body);
      throw new Failed(problem?.error ?? `The answer was ${response.status}.`, problem?.hint);
    }
    return body;
  }
}

function parsed<T>(body: ArrayBuffer): T | null {
  try {
    return JSON.parse(new TextDecoder().decode(body)) as T;
  } catch {
    return null;
  }
}

const embedded = document.querySelectorAll("script[data-path]");
export const isExported = embedded.length > 0;
const source: Source = isExported ? new Embedded(embedded) : new Served();

/** Whether an answer can be had without waiting for somebody to compute it: always, of a server. */
export function isAvailable(name: string, query: Query): boolean {
  return !(source instanceof Embedded) || source.has(path(name, query));
}

const questions = source instanceof Embedded ? source.questions() : new Map<string, Query[]>();

/** What an exported page can be asked under this name. */
export function stored(name: string): Query[] {
  return questions.get(name) ?? [];
}

export async function ask<T>(name: string, query: Query = {}): Promise<T> {
  return JSON.parse(new TextDecoder().decode(await source.bytes(path(name, query)))) as T;
}

export async function askBytes(name: string, query: Query): Promise<ArrayBuffer> {
  return source.bytes(path(name, query));
}
