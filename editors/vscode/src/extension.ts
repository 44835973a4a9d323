// Starts `oomph server`, and starts it again on request or when another program is found.

import { PythonExtension } from "@vscode/python-extension";
import * as vscode from "vscode";
import { LanguageClient } from "vscode-languageclient/node";
import { findProgram } from "./program";

const log = vscode.window.createOutputChannel("oomph", { log: true });
let client: LanguageClient | undefined;
let running: string | undefined;
let starting = Promise.resolve();

/** The interpreter that is selected for the workspace: its environment is the workspace's, so only if that is trusted. */
const selectedInterpreter = async (python: PythonExtension | undefined): Promise<string | undefined> => {
  if (!python || !vscode.workspace.isTrusted) {
    return undefined;
  }
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
  const selected = python.environments.getActiveEnvironmentPath(folder);
  const environment = await python.environments.resolveEnvironment(selected).catch(() => undefined);
  return environment?.executable.uri?.fsPath;
};

const stop = async (): Promise<void> => {
  const stopped = client;
  client = undefined;
  running = undefined;
  // A server that could not be started cannot be stopped either.
  await stopped?.dispose().catch((error) => log.warn(String(error)));
};

const show = (missing: string): void => {
  log.error(missing);
  const openSettings = "Open Settings";
  void vscode.window.showErrorMessage(`oomph: ${missing}`, openSettings).then((chosen) => {
    if (chosen) {
      // In a remote window, `oomph.path` is a setting of the remote machine.
      const which = vscode.env.remoteName ? "openRemoteSettings" : "openSettings";
      void vscode.commands.executeCommand(`workbench.action.${which}`, { query: "oomph.path" });
    }
  });
};

const start = async (python: PythonExtension | undefined, isRequested: boolean): Promise<void> => {
  const setting = vscode.workspace.getConfiguration("oomph").get("path", "");
  const program = findProgram(setting, await selectedInterpreter(python));
  if (!isRequested && "path" in program && program.path === running) {
    return;
  }
  await stop();
  if ("missing" in program) {
    show(program.missing);
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
  running = program.path;
};

/** One after the other: two servers would show every finding twice. */
const next = (work: () => Promise<void>): Promise<void> => {
  starting = starting.then(work).catch((error) => log.error(String(error)));
  return starting;
};

export const activate = async (context: vscode.ExtensionContext): Promise<void> => {
  // Without the Python extension there is no selected interpreter.
  const python = await PythonExtension.api().catch(() => undefined);
  const again = () => next(() => start(python, false));
  context.subscriptions.push(
    log,
    vscode.commands.registerCommand("oomph.restart", () => next(() => start(python, true))),
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

export const deactivate = (): Promise<void> => next(stop);
