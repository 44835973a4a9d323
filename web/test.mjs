// Runs the unit tests of the page's pure files: bundled by esbuild, run by node's own test runner.

import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { build } from "esbuild";

const tests = new URL("tests/", import.meta.url).pathname;
const names = readdirSync(tests).filter((name) => name.endsWith(".test.ts"));
const outdir = mkdtempSync(join(tmpdir(), "oomph-page-"));
await build({
  entryPoints: names.map((name) => join(tests, name)),
  bundle: true,
  platform: "node",
  format: "esm",
  outExtension: { ".js": ".mjs" },
  outdir,
});
const built = names.map((name) => join(outdir, name.replace(/\.ts$/, ".mjs")));
const { status } = spawnSync(process.execPath, ["--test", ...built], { stdio: "inherit" });
rmSync(outdir, { recursive: true });
process.exit(status ?? 1);
