//! Signals while the screen is shown.

use std::io;

/// Exits on signals, from a thread of its own: when the terminal disappears, as with a broken connection,
/// waiting for keys does not end.
#[cfg(unix)]
pub(crate) fn exit_on_signals() -> io::Result<()> {
    use ratatui::crossterm::{cursor, execute, terminal};
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGHUP, SIGINT])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let _ = terminal::disable_raw_mode();
            // Not through standard output, which the drawing thread has locked.
            if let Ok(mut screen) = std::fs::File::options().write(true).open("/dev/tty") {
                let _ = execute!(screen, terminal::LeaveAlternateScreen, cursor::Show);
            }
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// Does nothing: Windows has no such signals, and Ctrl-C is a key.
#[cfg(not(unix))]
pub(crate) fn exit_on_signals() -> io::Result<()> {
    Ok(())
}
