// What the page and the program say to each other: questions and answers (generated from `crates/viewer`),
// tiles, addresses.

export * from "./address";
export * from "./answers";
export * from "./tile";
