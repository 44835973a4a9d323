// Where answers come from: the server, or the page itself if it was exported.

import { path, type Query } from "./address";
import type { Questions } from "./answers";

/** The body of a refused request (`serve::Response::problem`). */
interface ErrorBody {
  error: string;
  hint: string | null;
}

/** Why there is no answer, in words. */
export class AnswerError extends Error {
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

/** The answers of an exported page: deflated, in base64, by path. */
class Embedded implements Source {
  private readonly answers: Map<string, string>;

  constructor(elements: Iterable<Element>) {
    this.answers = new Map(
      [...elements].map((element) => [element.getAttribute("data-path") ?? "", element.textContent ?? ""]),
    );
  }

  async bytes(path: string): Promise<ArrayBuffer> {
    const text = this.answers.get(path);
    if (text === undefined) {
      throw new AnswerError(
        "This is not in the exported page.",
        "Open the recording with `oomph view` to see it.",
      );
    }
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return await new Response(stream).arrayBuffer();
  }

  has(path: string): boolean {
    return this.answers.has(path);
  }

  /** Queries that have an answer, by the name of their question. */
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
      throw new AnswerError(
        "The server of this page does not answer.",
        "Is `oomph view` still running? Start it again and reload.",
      );
    }
    const body = await response.arrayBuffer();
    if (!response.ok) {
      const problem = parsed<ErrorBody>(body);
      throw new AnswerError(problem?.error ?? `The answer was ${response.status}.`, problem?.hint ?? "");
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

/** Whether there is an answer: always, if a server answers. */
export function isAvailable(name: string, query: Query): boolean {
  return !(source instanceof Embedded) || source.has(path(name, query));
}

const questions = source instanceof Embedded ? source.questions() : new Map<string, Query[]>();

/** Queries of a question that an exported page can answer. */
export function stored(name: string): Query[] {
  return questions.get(name) ?? [];
}

/** Asks a question whose answer is JSON. */
export async function ask<Name extends keyof Questions>(
  name: Name,
  query: Questions[Name]["query"],
): Promise<Questions[Name]["answer"]> {
  return JSON.parse(
    new TextDecoder().decode(await source.bytes(path(name, query))),
  ) as Questions[Name]["answer"];
}

/** Asks for a tile. */
export async function askBytes(name: "timeline" | "map", query: Query): Promise<ArrayBuffer> {
  return source.bytes(path(name, query));
}
