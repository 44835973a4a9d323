//! One thread that drives all requests to object stores. Readers wait for it: nothing else is asynchronous.

use std::future::Future;
use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, sync_channel};
use tokio::runtime::{Builder, Handle};

/// A request under way.
pub(super) struct PendingRequest<T>(Receiver<T>);

impl<T> PendingRequest<T> {
    /// Waits for the answer.
    pub(super) fn wait(self) -> io::Result<T> {
        self.0.recv().map_err(|_| io::Error::other("the network thread has ended"))
    }
}

/// Chooses the library for TLS; needed before a client is made. What `reqwest` would choose needs cmake.
pub(super) fn choose_tls() {
    // Another caller may have been first.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Starts a request.
pub(super) fn start<T: Send + 'static>(
    request: impl Future<Output = T> + Send + 'static,
) -> io::Result<PendingRequest<T>> {
    static RUNTIME: OnceLock<Option<Handle>> = OnceLock::new();
    let handle = RUNTIME.get_or_init(|| {
        let runtime = Builder::new_current_thread().enable_all().build().ok()?;
        let handle = runtime.handle().clone();
        let run = move || runtime.block_on(std::future::pending::<()>());
        std::thread::Builder::new().name("oomph network".to_owned()).spawn(run).ok()?;
        Some(handle)
    });
    let handle = handle.as_ref().ok_or_else(|| io::Error::other("no thread for the network"))?;
    let (send, receive) = sync_channel(1);
    handle.spawn(async move {
        // Nobody waits any more once the reader of a broken file has given up.
        let _ = send.send(request.await);
    });
    Ok(PendingRequest(receive))
}
