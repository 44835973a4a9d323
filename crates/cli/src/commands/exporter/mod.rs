//! `oomph exporter`: what every recorder of this machine says, for Prometheus and for `oomph watch` on another machine.

use crate::Status;
use crate::args::ExporterArgs;
use crate::terminal::{Failure, Terminal, say, shown_path};
use anyhow::Context;
use exporter::access::Access;
use exporter::exposition::{self, ExpositionFormat};
use exporter::{metrics, routes};
use live::{WatchSource, Watcher};
use serve::Token;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

/// How often recorders are asked: more often than anybody scrapes.
const PACE: Duration = Duration::from_secs(1);
/// How long the first picture may take: a driver that nobody uses has to wake its devices.
const FIRST: Duration = Duration::from_secs(5);
/// How often those that have ended are forgotten, if nobody scrapes.
const FORGET: Duration = Duration::from_secs(30);

pub(crate) fn run(args: &ExporterArgs, terminal: &mut Terminal) -> anyhow::Result<Status> {
    if args.once {
        let followers = begin();
        followers.notes().iter().for_each(|note| terminal.say(&format!("note: {note}")));
        let text = exposition::text(&metrics::families(&followers), ExpositionFormat::Prometheus);
        terminal.out().write_all(text.as_bytes())?;
        return Ok(0);
    }
    let token = args.token_file.as_deref().map(|file| token(file, terminal)).transpose()?;
    let listener = listen(args.listen)?;
    let address = listener.local_addr()?;
    for signal in [SIGINT, SIGTERM] {
        let always = Arc::new(AtomicBool::new(true));
        signal_hook::flag::register_conditional_shutdown(signal, 0, always)
            .context("signals cannot be listened to")?;
    }
    let access = Access { token, is_local: address.ip().is_loopback() };
    let followers = begin();
    announce(address, &access, &followers, terminal);
    thread::scope(|scope| {
        let forget = || {
            let mut said = Vec::new();
            loop {
                let notes = followers.notes();
                if notes != said {
                    notes.iter().for_each(|note| say(&format!("note: {note}")));
                    said = notes;
                }
                thread::sleep(FORGET);
                followers.forget_exited();
            }
        };
        // Without it, those that have ended go with the next scrape.
        let _ = thread::Builder::new().spawn_scoped(scope, forget);
        serve::serve(&listener, |asked| routes::respond(asked, &access, &followers));
    });
    Ok(0)
}

/// Follows every recorder; the first answers are there.
fn begin() -> Watcher {
    let followers = Watcher::start(WatchSource::All, PACE, false);
    let begun = Instant::now();
    while !(followers.has_polled_recorders() && followers.has_polled_driver()) && begun.elapsed() < FIRST {
        thread::sleep(Duration::from_millis(5));
    }
    followers
}

fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "is an exporter running already? `ss -ltnp` says who listens; choose another port with `--listen`"
            }
            _ => "choose an address of this machine with `--listen ADDR:PORT`",
        };
        Failure::new(format!("{address} cannot be listened on"), Some(error.to_string()), Some(hint))
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
        fail(error.to_string(), "make one: `(umask 077; openssl rand -hex 32 > FILE)`").refused(error.kind())
    })?;
    let text = text.trim();
    // What a header cannot carry would never be matched.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let cause = "one word of visible ASCII letters was expected".to_owned();
        return Err(fail(cause, "make one: `(umask 077; openssl rand -hex 32 > FILE)`").into());
    }
    if std::fs::metadata(file).is_ok_and(|meta| meta.mode() & 0o077 != 0) {
        let name = shown_path(file);
        terminal.say(&format!("warning: others may read the token in `{name}`; `chmod 600 {name}`"));
    }
    Ok(Token::new(text))
}

/// Says where it listens, and who may read what there.
fn announce(address: SocketAddr, access: &Access, followers: &Watcher, terminal: &Terminal) {
    let count = followers.recorders().len();
    let recorders = if count == 1 { "recorder" } else { "recorders" };
    terminal.say(&format!("http://{address}/metrics · {count} {recorders} now · Ctrl-C ends it"));
    if !access.is_local && access.token.is_none() {
        terminal.say(
            "note: whoever reaches this address can read how much memory jobs use, and the names of their scripts, folders \
             and hosts; /live, which has whole command lines, is refused. `--token-file FILE` keeps both to those who \
             know a secret; it is sent without encryption",
        );
    }
}
