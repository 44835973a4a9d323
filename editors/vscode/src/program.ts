// Which `oomph` program is started.

import { accessSync, constants, statSync } from "node:fs";
import { homedir } from "node:os";
import { delimiter, dirname, isAbsolute, join } from "node:path";

const IS_WINDOWS = process.platform === "win32";
const NAME = IS_WINDOWS ? "oomph.exe" : "oomph";

export type Program = { path: string } | { missing: string };

const isProgram = (path: string): boolean => {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
};

/** Without relative folders: they would be those of the workspace. */
const onPath = (name: string): string | undefined =>
  firstIn((process.env.PATH ?? "").split(delimiter).filter(isAbsolute), name);

const firstIn = (folders: string[], name: string): string | undefined =>
  folders.map((folder) => join(folder, name)).find(isProgram);

/** Where pip puts programs for an interpreter. */
const programFolders = (interpreter: string): string[] => {
  const folder = dirname(interpreter);
  return IS_WINDOWS ? [folder, join(folder, "Scripts")] : [folder];
};

const ofSetting = (setting: string): Program => {
  const named = setting.startsWith("~/") ? join(homedir(), setting.slice(2)) : setting;
  const isName = !/[\\/]/.test(named);
  if (!isName && !isAbsolute(named)) {
    return { missing: `\`oomph.path\` is set to ${setting}, which is not an absolute path.` };
  }
  const path = isName ? onPath(named) : [named].find(isProgram);
  const where = isName ? "not a program on PATH" : "not a program";
  return path ? { path } : { missing: `\`oomph.path\` is set to ${setting}, which is ${where}.` };
};

/** The program of the setting; otherwise that of the environment whose interpreter is given; otherwise the first on PATH. */
export const findProgram = (setting: string, interpreter: string | undefined): Program => {
  if (setting) {
    return ofSetting(setting);
  }
  const path = (interpreter && firstIn(programFolders(interpreter), NAME)) || onPath(NAME);
  if (path) {
    return { path };
  }
  const searched = interpreter ? `in the environment of ${interpreter} or on PATH` : "on PATH";
  return {
    missing: `There is no \`oomph\` ${searched}. Install it with \`pip install oomph\`, or set \`oomph.path\`.`,
  };
};
