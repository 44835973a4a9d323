//! How a server is stopped.

use std::io;

/// Ends this process with exit code 0 on SIGINT and SIGTERM. Where there are no such signals, does nothing.
pub fn exit_on_signals() -> io::Result<()> {
    #[cfg(unix)]
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let always = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
        signal_hook::flag::register_conditional_shutdown(signal, 0, always)?;
    }
    Ok(())
}
