// Which `oomph` program is started.

import { accessSync, constants, statSync } from "node:fs";
import { homedir } from "node:os";
import { delimiter, dirname, isAbsolute, join } from "node:path";

const NAME = process.platform === "win32" ? "oomph.exe" : "oomph";

export type Program = { path: string } | { missing: string };

const isProgram = (path: string): boolean => {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
};

/**
 * The program of the setting; otherwise that of the environment whose interpreter is given; otherwise the first on PATH.
 * Relative folders on PATH are left out: they would be those of the workspace.
 */
export const findProgram = (setting: string, interpreter: string | undefined): Program => {
  if (setting) {
    const path = setting.startsWith("~/") ? join(homedir(), setting.slice(2)) : setting;
    return isProgram(path)
      ? { path }
      : { missing: `\`oomph.path\` is set to ${path}, which is not a program.` };
  }
  const folders = (process.env.PATH ?? "").split(delimiter).filter(isAbsolute);
  if (interpreter) {
    folders.unshift(dirname(interpreter));
  }
  const path = folders.map((folder) => join(folder, NAME)).find(isProgram);
  if (path) {
    return { path };
  }
  const searched = interpreter ? `in the environment of ${interpreter} or on PATH` : "on PATH";
  return {
    missing: `There is no \`oomph\` ${searched}. Install it with \`pip install oomph\`, or set \`oomph.path\`.`,
  };
};
