// Starts `oomph server` and starts it again when another program is to be used.

import { PythonExtension } from "@vscode/python-extension";
import * as vscode from "vscode";
import { LanguageClient } from "vscode-languageclient/node";
import { findProgram } from "./program";

let client: LanguageClient | undefined;
let starting = Promise.resolve();

/** The interpreter that is selected for the workspace: its environment is the workspace's, so only if that is trusted. */
const selectedInterpreter = async (python: PythonExtension | undefined): Promise<string | undefined> => {
  if (!python || !vscode.workspace.isTrusted) {
    return undefined;
  }
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
  const selected = python.environments.getActiveEnvironmentPath(folder);
  const environment = await python.environments.resolveEnvironment(selected);
  return environment?.executable.uri?.fsPath;
};

const stop = async (): Promise<void> => {
  const stopped = client;
  client = undefined;
  await stopped?.dispose();
};

const start = async (python: PythonExtension | undefined, log: vscode.LogOutputChannel): Promise<void> => {
  await stop();
  const setting = vscode.workspace.getConfiguration("oomph").get("path", "");
  const program = findProgram(setting, await selectedInterpreter(python));
  if ("missing" in program) {
    log.error(program.missing);
    const openSettings = "Open Settings";
    void vscode.window.showErrorMessage(`oomph: ${program.missing}`, openSettings).then((chosen) => {
      if (chosen) {
        // The setting is that of the machine on which VS Code works.
        const which = vscode.env.remoteName ? "openRemoteSettings" : "openSettings";
        void vscode.commands.executeCommand(`workbench.action.${which}`, { query: "oomph.path" });
      }
    });
    return;
  }
  log.info(`starting ${program.path} server`);
  client = new LanguageClient(
    "oomph",
    { command: program.path, args: ["server"] },
    {
      documentSelector: ["file", "untitled", "vscode-notebook-cell"].map((scheme) => ({
        language: "python",
        scheme,
      })),
      outputChannel: log,
    },
  );
  await client.start();
};

/** One after the other: two servers would show every finding twice. */
const restart = (python: PythonExtension | undefined, log: vscode.LogOutputChannel): Promise<void> => {
  starting = starting.then(() => start(python, log)).catch((error) => log.error(String(error)));
  return starting;
};

export const activate = async (context: vscode.ExtensionContext): Promise<void> => {
  const log = vscode.window.createOutputChannel("oomph", { log: true });
  // Without the Python extension there is no selected interpreter.
  const python = await PythonExtension.api().catch(() => undefined);
  const again = () => restart(python, log);
  context.subscriptions.push(
    log,
    vscode.commands.registerCommand("oomph.restart", again),
    vscode.commands.registerCommand("oomph.showLog", () => log.show()),
    vscode.workspace.onDidGrantWorkspaceTrust(again),
    vscode.workspace.onDidChangeConfiguration(
      (change) => change.affectsConfiguration("oomph.path") && again(),
    ),
  );
  if (python) {
    context.subscriptions.push(python.environments.onDidChangeActiveEnvironmentPath(again));
  }
  await again();
};

export const deactivate = stop;
