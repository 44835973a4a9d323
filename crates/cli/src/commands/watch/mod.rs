//! `oomph watch`: what running programs hold now, and whether it grows.

mod text;

use crate::ExitCode;
use crate::args::{Target, WatchArgs};
use crate::commands::document;
use crate::terminal::{Failure, Terminal};
use documents::WatchDocument;
use live::Watcher;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use watch::screen;
use watch::state::WatchState;

/// Time limit of the first answer from a named program.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) fn run(args: &WatchArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let source = args.source().map_err(|error| {
        Failure::new("the token cannot be read", Some(error.to_string()), Some("check --token-file"))
    })?;
    let is_screen = !args.json && !args.once && std::io::stdout().is_terminal();
    let watcher = Watcher::start(source, args.interval, true)?;
    wait_for_first(&watcher, args.target.is_some());
    if let (Some(target), true) = (&args.target, watcher.recorders().is_empty()) {
        return Err(nothing_to_watch(target, &watcher).into());
    }
    if is_screen {
        screen::run(&watcher, terminal.shows_color())?;
    } else if args.json && !args.once {
        stream(&watcher, args, terminal)?;
    } else {
        settle(&watcher, args.interval);
        let look = WatchState::new(&watcher);
        if args.json {
            document::print_line(&WatchDocument::new(&look), terminal)?;
        } else {
            text::print(&look, terminal)?;
        }
    }
    Ok(0)
}

/// Waits until every recorder has answered once; a named program may still be starting.
fn wait_for_first(watcher: &Watcher, is_named: bool) {
    let begun = Instant::now();
    let is_there = || {
        watcher.has_polled_recorders()
            && watcher.has_polled_driver()
            && !(is_named && watcher.recorders().is_empty())
    };
    while !is_there() && begun.elapsed() < FIRST_ANSWER_TIMEOUT {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for the largest lines, which may come with a later answer than the first.
fn settle(watcher: &Watcher, interval: Duration) {
    let begun = Instant::now();
    let lacks_sites = || watcher.recorders().iter().any(|(_, recorder)| recorder.sites_step().is_none());
    while lacks_sites() && begun.elapsed() < 3 * interval {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// One line of JSON per update, until all watched programs have exited.
fn stream(watcher: &Watcher, args: &WatchArgs, terminal: &mut Terminal) -> anyhow::Result<()> {
    loop {
        let look = WatchState::new(watcher);
        document::print_line(&WatchDocument::new(&look), terminal)?;
        terminal.out().flush()?;
        if args.target.is_some() && look.all_have_exited() {
            return Ok(());
        }
        std::thread::sleep(args.interval);
    }
}

fn nothing_to_watch(target: &Target, watcher: &Watcher) -> Failure {
    let hint = "start the program with `oomph run`, or call `oomph.record()` in it; \
                `oomph watch` alone shows all GPUs";
    match target {
        Target::Process(pid) => {
            let is_there = std::path::Path::new(&format!("/proc/{pid}")).exists();
            let cause = if is_there {
                "it is running, but without a recorder of yours"
            } else {
                "there is no such process"
            };
            Failure::new(format!("process {pid} cannot be watched"), Some(cause.to_owned()), Some(hint))
        }
        Target::Folder(folder) => Failure::new(
            format!("nothing is recording to `{}` now", crate::terminal::shown_path(folder)),
            None,
            Some("`oomph report` reads what is in it; a program has to use CUDA before it can be watched"),
        ),
        Target::Remote(host) => Failure::new(
            format!("nothing to watch on {host}"),
            watcher.gpus().err(),
            Some(
                "is `oomph exporter --listen 0.0.0.0:16674` running there, and a program under `oomph run`?",
            ),
        ),
    }
}
