//! `oomph watch`: what running programs hold now, and whether it grows.

mod json;
mod text;

use crate::Status;
use crate::args::{Target, WatchArgs};
use crate::terminal::{Failure, Terminal};
use live::Watcher;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use watch::screen;
use watch::state::WatchState;

/// How long to wait for a first answer from what was named.
const FIRST: Duration = Duration::from_secs(3);

pub(crate) fn run(args: &WatchArgs, terminal: &mut Terminal) -> anyhow::Result<Status> {
    let source = args.source().map_err(|error| {
        Failure::new("the token cannot be read", Some(error.to_string()), Some("check --token-file"))
    })?;
    let is_screen = !args.json && !args.once && std::io::stdout().is_terminal();
    let followers = Watcher::start(source, args.interval, true);
    wait_for_first(&followers, args.target.is_some());
    if let (Some(target), true) = (&args.target, followers.recorders().is_empty()) {
        return Err(nobody(target, &followers).into());
    }
    if is_screen {
        screen::run(&followers, terminal.shows_color())?;
    } else if args.json && !args.once {
        stream(&followers, args, terminal)?;
    } else {
        settle(&followers, args.interval);
        let look = WatchState::new(&followers);
        if args.json { json::print(&look, terminal)? } else { text::print(&look, terminal)? }
    }
    Ok(0)
}

/// Waits until whatever is there has been asked. Who is asked for by name may take longer to answer: a program that starts.
fn wait_for_first(followers: &Watcher, is_named: bool) {
    let begun = Instant::now();
    let is_there = || {
        followers.has_polled_recorders()
            && followers.has_polled_driver()
            && !(is_named && followers.recorders().is_empty())
    };
    while !is_there() && begun.elapsed() < FIRST {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The lines that hold most come with an answer to a question that asks for them: perhaps not with the first.
fn settle(followers: &Watcher, interval: Duration) {
    let begun = Instant::now();
    let lacks_sites = || followers.recorders().iter().any(|(_, recorder)| recorder.sites_step().is_none());
    while lacks_sites() && begun.elapsed() < 3 * interval {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A line of JSON for each look, until everything that was watched has ended.
fn stream(followers: &Watcher, args: &WatchArgs, terminal: &mut Terminal) -> anyhow::Result<()> {
    loop {
        let look = WatchState::new(followers);
        json::print(&look, terminal)?;
        terminal.out().flush()?;
        if args.target.is_some() && look.all_have_exited() {
            return Ok(());
        }
        std::thread::sleep(args.interval);
    }
}

fn nobody(target: &Target, followers: &Watcher) -> Failure {
    let hint = "start the program with `oomph run`, or with `oomph.record()` in it; `oomph watch` alone shows all GPUs";
    match target {
        Target::Process(pid) => {
            let is_there = std::path::Path::new(&format!("/proc/{pid}")).exists();
            let cause = if is_there {
                "it runs, but no recorder of yours is in it"
            } else {
                "there is no such process"
            };
            Failure::new(format!("process {pid} cannot be watched"), Some(cause.to_owned()), Some(hint))
        }
        Target::Folder(folder) => Failure::new(
            format!("nobody records to `{}` now", crate::terminal::shown_path(folder)),
            None,
            Some("`oomph report` reads what is in it; a program has to use CUDA before it can be watched"),
        ),
        Target::Remote(host) => Failure::new(
            format!("nothing to watch on {host}"),
            followers.gpus().err(),
            Some(
                "is `oomph exporter --listen 0.0.0.0:16674` running there, and a program under `oomph run`?",
            ),
        ),
    }
}
