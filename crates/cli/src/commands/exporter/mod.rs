//! `oomph exporter`: metrics of this machine's recorders, for Prometheus and a remote `oomph watch`.

use crate::ExitCode;
use crate::args::ExporterArgs;
use crate::terminal::{Failure, Terminal, say, shown_path};
use anyhow::Context;
use exporter::access::Access;
use exporter::exposition::{self, ExpositionFormat};
use exporter::{metrics, routes};
use live::{WatchSource, Watcher};
use serve::Token;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Interval between polls of the recorders: shorter than a scrape interval.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit of the first poll: an idle driver has to wake its devices.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which exited recorders are dropped if nobody scrapes.
const FORGET_INTERVAL: Duration = Duration::from_secs(30);

pub(crate) fn run(args: &ExporterArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    if args.once {
        let watcher = begin()?;
        watcher.notes().iter().for_each(|note| terminal.say(&format!("note: {note}")));
        let text = exposition::text(&metrics::families(&watcher), ExpositionFormat::Prometheus);
        terminal.out().write_all(text.as_bytes())?;
        return Ok(0);
    }
    let token = args.token_file.as_deref().map(|file| token(file, terminal)).transpose()?;
    let listener = listen(args.listen)?;
    let address = listener.local_addr()?;
    serve::exit_on_signals().context("cannot listen for signals")?;
    let access = Access { token, is_local: address.ip().is_loopback() };
    let watcher = begin()?;
    announce(address, &access, &watcher, terminal);
    thread::scope(|scope| {
        let forget = || {
            let mut said = Vec::new();
            loop {
                let notes = watcher.notes();
                if notes != said {
                    notes.iter().for_each(|note| say(&format!("note: {note}")));
                    said = notes;
                }
                thread::sleep(FORGET_INTERVAL);
                watcher.forget_exited();
            }
        };
        // Without this thread, exited recorders are dropped at the next scrape.
        let _ = thread::Builder::new().spawn_scoped(scope, forget);
        serve::serve(&listener, |asked| routes::respond(asked, &access, &watcher));
    });
    Ok(0)
}

/// Starts watching every recorder, and waits for the first answers.
fn begin() -> anyhow::Result<Watcher> {
    let watcher = Watcher::start(WatchSource::All, POLL_INTERVAL, false)?;
    let begun = Instant::now();
    while !(watcher.has_polled_recorders() && watcher.has_polled_driver())
        && begun.elapsed() < FIRST_ANSWER_TIMEOUT
    {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(watcher)
}

fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "is an exporter already running? `ss -ltnp` shows it; choose another port with `--listen`"
            }
            _ => "choose an address of this machine with `--listen ADDR:PORT`",
        };
        Failure::new(format!("cannot listen on {address}"), Some(error.to_string()), Some(hint))
            .refused(error.kind())
            .into()
    })
}

/// The secret in a file.
fn token(file: &Path, terminal: &Terminal) -> anyhow::Result<Token> {
    let fail = |cause: String, hint: &str| {
        Failure::new(format!("there is no token in `{}`", shown_path(file)), Some(cause), Some(hint))
    };
    let text = std::fs::read_to_string(file).map_err(|error| {
        fail(error.to_string(), "create one: `(umask 077; openssl rand -hex 32 > FILE)`")
            .refused(error.kind())
    })?;
    let text = text.trim();
    // A token that a header cannot carry would never match.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let cause = "expected one word of visible ASCII characters".to_owned();
        return Err(fail(cause, "create one: `(umask 077; openssl rand -hex 32 > FILE)`").into());
    }
    if serve::others_can_read(file) {
        let name = shown_path(file);
        terminal.say(&format!("warning: other users can read the token in `{name}`; `chmod 600 {name}`"));
    }
    Ok(Token::new(text))
}

/// Prints the address, and who may read what.
fn announce(address: SocketAddr, access: &Access, watcher: &Watcher, terminal: &Terminal) {
    let count = watcher.recorders().len();
    let recorders = if count == 1 { "recorder" } else { "recorders" };
    terminal.say(&format!("http://{address}/metrics · {count} {recorders} now · press Ctrl-C to stop"));
    if !access.is_local && access.token.is_none() {
        terminal.say(
            "note: anyone who reaches this address can read how much memory jobs use, and the names of their \
             scripts, folders and hosts; /live, which has whole command lines, is refused. `--token-file \
             FILE` limits both to those who know a secret; it is sent without encryption",
        );
    }
}
