// Addresses of answers. The server reads them (`crates/viewer/src/query.rs`), and an exported page finds its
// answers by them.

/** Parameters of a question, whatever it is. */
export type Query = Record<string, string | number | boolean | null | undefined>;

/**
 * Returns the address of an answer: parameters in the order of their names, without those that have no value.
 */
export function path(name: string, query: Query = {}): string {
  const parts = Object.keys(query)
    .filter((key) => query[key] !== undefined && query[key] !== null && query[key] !== "")
    .sort()
    .map((key) => `${key}=${encodeURIComponent(String(query[key]))}`);
  return parts.length ? `api/${name}?${parts.join("&")}` : `api/${name}`;
}
