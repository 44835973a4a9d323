//! `oomph view`: the page in the browser, from this machine's own server or as one file.

use crate::ExitCode;
use crate::args::{DEFAULT_NON_PYTORCH, ViewArgs};
use crate::commands::{holders, simulate};
use crate::terminal::{Failure, Progress, TALK, Terminal, shown_path};
use analysis::words::printable;
use analysis::{Device, Finding, RunModel, not_found};
use anyhow::Context;
use documents::ReportedFinding;
use inputs::{Input, ProgressReporter};
use serde_json::json;
use serve::Token;
use source::linted::LintCache;
use std::cell::RefCell;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use viewer::documents::{FindingDocument, HolderTree, TypedJson};
use viewer::{Commands, Problem, Relation, Replayed, RunInput, Server, Viewer, WhatIf};
use whatif::WhatIfOptions;

pub(crate) fn run(args: &ViewArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    // A taken port is reported before minutes of reading.
    let server = args.html.is_none().then(|| listen(args.port)).transpose()?;
    let files = inputs::expand(&args.inputs)?;
    let viewer = match relation(&files) {
        Relation::Ranks if files.len() > 1 => ranks(files)?,
        relation => {
            let inputs = files.iter().map(|file| read(file, &TALK)).collect::<Result<_, _>>()?;
            Viewer::new(inputs, relation, &PageCommands)
        }
    };
    match (&args.html, server) {
        (Some(path), _) => write(&viewer, path, args.max_size, terminal)?,
        (None, Some(server)) => {
            announce(&server, args, terminal)?;
            viewer.serve(&server);
        }
        (None, None) => {}
    }
    Ok(0)
}

fn read(file: &Path, progress: &ProgressReporter) -> anyhow::Result<RunInput> {
    let Input { name, snapshot, recording, .. } = inputs::load(file, progress)?;
    Ok(RunInput { name, snapshot, recording })
}

/// The page of many ranks: only the first is read before it opens. Those that cannot be read are shown as
/// such; if none can be, that is an error.
fn ranks(files: Vec<PathBuf>) -> anyhow::Result<Viewer<'static>> {
    let mut failure = None;
    for (number, file) in files.iter().enumerate() {
        match read(file, &TALK) {
            Ok(input) => {
                let names = files.iter().map(|file| file.to_string_lossy().into_owned()).collect();
                let reader =
                    move |number: usize| read(&files[number], &ProgressReporter::SILENT).map_err(problem);
                return Ok(Viewer::of_ranks(names, (number, input), Box::new(reader), &PageCommands));
            }
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(failure.unwrap_or_else(|| anyhow::anyhow!("there are no inputs")))
}

/// An error of another command, for the page.
fn problem(error: anyhow::Error) -> Problem {
    let failure = Failure::from(error);
    let cause = failure.cause().map(|cause| format!(": {cause}")).unwrap_or_default();
    Problem { what: format!("{failure}{cause}"), hint: failure.hint().map(str::to_owned) }
}

/// Files whose names differ in numbers only are ranks.
fn relation(files: &[PathBuf]) -> Relation {
    let plain = |path: &PathBuf| -> String {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        name.chars().filter(|letter| !letter.is_ascii_digit()).collect()
    };
    // In folders of their own, files that are called alike are one rank of several jobs.
    let is_one_folder = files.windows(2).all(|pair| pair[0].parent() == pair[1].parent());
    let is_alike = files.windows(2).all(|pair| plain(&pair[0]) == plain(&pair[1]));
    if is_one_folder && is_alike { Relation::Ranks } else { Relation::Compared }
}

fn listen(port: u16) -> anyhow::Result<Server> {
    let token = Token::random().context("could not create a secret for the address")?;
    Server::bind(port, token).map_err(|error| {
        Failure::new(
            format!("cannot listen on port {port}"),
            Some(error.to_string()),
            Some("choose another with `--port`, or omit it"),
        )
        .refused(error.kind())
        .into()
    })
}

/// Prints the address, and opens a browser if there is one.
fn announce(server: &Server, args: &ViewArgs, terminal: &mut Terminal) -> anyhow::Result<()> {
    let url = server.url();
    writeln!(terminal.out(), "{url}")?;
    terminal.flush()?;
    let is_remote = ["SSH_CONNECTION", "SSH_TTY"].iter().any(|name| std::env::var_os(name).is_some());
    if is_remote {
        let (port, host) = (server.port(), host().unwrap_or_else(|| "THIS-MACHINE".to_owned()));
        terminal.say("this is a remote session: on your own machine, run");
        terminal.say(&format!("  ssh -N -L {port}:127.0.0.1:{port} {host}"));
        terminal.say("and open the address there");
    } else if args.no_open || !open(server) {
        terminal.say("open this address in a browser on this machine");
    }
    terminal.say("press Ctrl-C to stop");
    Ok(())
}

/// What the user would type behind `ssh`: their name and the address that they came to.
fn host() -> Option<String> {
    // Client address and port, then our own.
    let connection = std::env::var("SSH_CONNECTION").ok()?;
    let address = connection.split_whitespace().nth(2)?.to_owned();
    Some(match std::env::var("USER") {
        Ok(user) => format!("{user}@{address}"),
        Err(_) => address,
    })
}

/// Opens a browser, if this machine seems to have a screen; says whether it could.
fn open(server: &Server) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let is_wsl = is_set("WSL_DISTRO_NAME");
    let is_desktop = cfg!(any(windows, target_os = "macos")) || is_wsl;
    // A Windows browser has no user ID in WSL.
    let user = serve::own_user().filter(|_| !is_wsl);
    let has_screen = is_desktop || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY");
    if !has_screen || (user.is_none() && !is_desktop) {
        return false;
    }
    server.invite(user).is_ok_and(|address| start_browser(&address).is_ok())
}

/// Starts a browser. Every user of a Linux or macOS machine can read command lines, so an invitation is bound
/// to a user on the one, and sent through a pipe on the other. On Windows only administrators can.
fn start_browser(address: &str) -> io::Result<()> {
    let (program, argument, script) = if cfg!(target_os = "macos") {
        ("osascript", "-", format!("open location \"{address}\""))
    } else if cfg!(windows) {
        ("explorer", address, String::new())
    } else {
        ("xdg-open", address, String::new())
    };
    let mut browser = Command::new(program)
        .arg(argument)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    browser.stdin.take().map_or(Ok(()), |mut input| input.write_all(script.as_bytes()))
}

fn write(viewer: &Viewer<'_>, path: &Path, most: u64, terminal: &mut Terminal) -> anyhow::Result<()> {
    let fail = |error: io::Error| {
        Failure::new(
            format!("`{}` cannot be written", shown_path(path)),
            Some(error.to_string()),
            Some("choose another path with `--html`"),
        )
        .refused(error.kind())
    };
    let progress = Progress::new("drawing", 1);
    let exported = viewer.export(most);
    drop(progress);
    std::fs::write(path, &exported.page).map_err(fail)?;
    let size = snapshot::Bytes(exported.page.len() as u64);
    terminal.say(&format!("`{}`: {size}, opens in any browser without a server", shown_path(path)));
    for note in &exported.notes {
        terminal.say(&format!("note: {note}"));
    }
    Ok(())
}

/// Other commands, as the page uses them.
struct PageCommands;

impl Commands for PageCommands {
    fn findings(
        &self,
        model: &RunModel<'_>,
        findings: &[Finding],
    ) -> (Vec<TypedJson<FindingDocument>>, String) {
        let mut linted = LintCache::default();
        let reports = findings
            .iter()
            .map(|finding| TypedJson::new(json!(ReportedFinding::new(model.device, finding, &mut linted))));
        (reports.collect(), not_found(model, findings).unwrap_or_default())
    }

    fn what_if(&self, device: &Device<'_>, question: &WhatIf) -> Result<Replayed, Problem> {
        let WhatIf { conf, gpu, fraction } = question.clone();
        let question = WhatIfOptions {
            conf,
            gpu,
            fraction,
            non_pytorch: DEFAULT_NON_PYTORCH,
            ..WhatIfOptions::default()
        };
        let notes = RefCell::new(Vec::new());
        let say = |line: &str| notes.borrow_mut().push(printable(line).into_owned());
        let replayed = simulate::replayed("this run", device, &question, &say);
        let (report, snapshot) = replayed.map_err(problem)?;
        Ok(Replayed { report: TypedJson::new(report), notes: notes.into_inner(), snapshot })
    }

    fn holders(&self, input: &RunInput, devices: &[Device<'_>]) -> Option<TypedJson<HolderTree>> {
        holders::for_page(&input.name, &input.recording, devices).map(TypedJson::new)
    }
}
