// Builds the page: one HTML file with its styles and code inside, committed so that neither cargo nor pip ever needs node.

import { readFile, writeFile } from "node:fs/promises";
import { build } from "esbuild";

const target = process.argv[2] ?? new URL("../crates/viewer/assets/page.html", import.meta.url).pathname;

const bundle = async (entry) => {
  const result = await build({
    entryPoints: [new URL(entry, import.meta.url).pathname],
    bundle: true,
    minify: true,
    write: false,
    format: "iife",
    target: "es2022",
    jsx: "automatic",
    jsxImportSource: "preact",
    legalComments: "none",
    charset: "utf8",
  });
  return result.outputFiles[0].text.trim();
};

const [script, style, page] = await Promise.all([
  bundle("src/main.tsx"),
  bundle("src/styles/style.css"),
  readFile(new URL("src/page.html", import.meta.url), "utf8"),
]);
// A `</script>` inside the code would end it.
const safe = script.replaceAll("</script", "<\\/script");
// Functions, since `$&` in a replacement text has a meaning.
const html = page.replace("/* style */", () => style).replace("/* script */", () => safe);
await writeFile(target, html);
console.log(`${target}: ${(html.length / 1024).toFixed(0)} KiB`);
