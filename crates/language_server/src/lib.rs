//! The linter in editors: a server of the Language Server Protocol on two streams.
//!
//! One thread reads messages (`transport`), one handles them in order (`server`), and the caller's writes
//! what is sent. A text is checked when the typing pauses, so that only its newest version is; the files of a
//! folder are indexed by threads of their own.
//!
//! ```
//! let shutdown = r#"{"jsonrpc":"2.0","id":1,"method":"shutdown"}"#;
//! let exit = r#"{"jsonrpc":"2.0","method":"exit"}"#;
//! let frame = |text: &str| format!("Content-Length: {}\r\n\r\n{text}", text.len());
//! let input = std::io::Cursor::new([shutdown, exit].map(frame).concat());
//! let mut output = Vec::new();
//! let code = language_server::serve(input, &mut output).expect("a thread");
//! // Nothing but `initialize` may be the first request.
//! assert!(String::from_utf8_lossy(&output).contains("-32002"));
//! assert_eq!(code, 1, "an exit without a shutdown");
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod actions;
mod buffers;
mod checking;
mod client;
mod diagnostics;
mod hover;
mod positions;
mod server;
mod source_map;
mod transport;

use server::{LanguageServer, ServerEvent};
use std::io::{self, BufReader, Read, Write};
use std::sync::mpsc;
use std::thread;

/// Stack size of the thread that checks, for deeply nested expressions.
const STACK_BYTES: usize = 16 << 20;

/// Serves a client until it sends `exit` or closes the input, and returns the exit code of the process: 0 if
/// the client asked for a shutdown first.
pub fn serve(input: impl Read + Send + 'static, output: &mut dyn Write) -> io::Result<u8> {
    let (events, received) = mpsc::channel();
    let (outgoing, to_send) = mpsc::channel();
    let of_reader = events.clone();
    // It ends with the process: nothing can interrupt a blocking read.
    thread::Builder::new().spawn(move || {
        let mut input = BufReader::new(input);
        loop {
            let event = match transport::read(&mut input) {
                Ok(Some(message)) => ServerEvent::Message(message),
                Ok(None) => ServerEvent::End(None),
                Err(error) => ServerEvent::End(Some(error)),
            };
            let is_end = matches!(event, ServerEvent::End(_));
            if of_reader.send(event).is_err() || is_end {
                return;
            }
        }
    })?;
    let run = move || LanguageServer::new(outgoing, events, received).run();
    let main = thread::Builder::new().stack_size(STACK_BYTES).spawn(run)?;
    // A client that reads no more has gone, which ends the input as well.
    let _ = to_send.iter().try_for_each(|message| transport::write(output, &message));
    drop(to_send);
    main.join().or_else(|panic| std::panic::resume_unwind(panic))
}
