//! How do connections begin and end?

mod connection;
mod cork;
mod local;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nerite_api::Api;
use nerite_listen::{ACCEPT_PAUSE, Listener, Stream};
use nerite_request::Peer;
use nerite_watchdog::{FrontEnd, watched};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use local::Local;

use crate::options::Options;

/// What the calls of one connection need. All but the API is the same for all connections.
#[derive(Clone)]
pub(crate) struct Front {
    pub(crate) api: Api,
    pub(crate) options: Options,
    calls: Arc<AtomicUsize>,
    stop: watch::Receiver<bool>,
}

impl Front {
    /// The same for a connection whose client is `peer`.
    fn for_peer(&self, peer: Peer) -> Arc<Front> {
        Arc::new(Front { api: self.api.for_peer(peer), ..self.clone() })
    }

    /// Ready when the server is asked to stop.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stop = self.stop.clone();
        async move {
            // An error means that the handle is gone, and with it everybody who could ask.
            if stop.wait_for(|stop| *stop).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    pub(crate) fn begin_call(&self) -> CallGuard {
        self.calls.fetch_add(1, Ordering::Relaxed);
        CallGuard(Arc::clone(&self.calls))
    }
}

/// One call in progress.
pub(crate) struct CallGuard(Arc<AtomicUsize>);

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A gRPC port at work. Dropping it leaves the port as it is.
pub struct Handle {
    stop: watch::Sender<bool>,
    open: watch::Sender<()>,
    calls: Arc<AtomicUsize>,
}

impl Handle {
    /// Calls in progress: begun, and their answer not yet sent.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Connections that are open, and listeners.
    pub fn connections(&self) -> usize {
        self.open.receiver_count()
    }

    /// Stops: listeners close, idle connections end at once, calls in progress are finished, new ones refused. Ready when
    /// the last connection has ended; dropping it changes nothing.
    pub fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        self.stop.send_replace(true);
        let open = self.open.clone();
        async move { open.closed().await }
    }
}

/// Serves `api` on these listeners until [`Handle::stop`]. Needs the runtime's context.
pub fn serve(api: Api, options: Options, listeners: Vec<Listener>) -> Handle {
    let (stop, stopped) = watch::channel(false);
    let (open, opened) = watch::channel(());
    let calls = Arc::new(AtomicUsize::new(0));
    let front = Arc::new(Front { api, options, calls: Arc::clone(&calls), stop: stopped });
    for listener in listeners {
        tokio::spawn(watched(FrontEnd::Grpc, accept(listener, Arc::clone(&front), opened.clone())));
    }
    Handle { stop, open, calls }
}

/// Serves one connection over any stream until it ends.
pub(crate) async fn serve_stream(api: Api, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let (_stop, stopped) = watch::channel(false);
    let front = Front { api, options: Options::default(), calls: Arc::default(), stop: stopped };
    connection::serve(stream, Arc::new(front), watch::channel(()).1).await;
}

async fn accept(listener: Listener, front: Arc<Front>, open: watch::Receiver<()>) {
    let mut stop = pin!(front.stopped());
    loop {
        let connection = tokio::select! {
            biased;
            () = &mut stop => return,
            connection = listener.accept() => connection,
        };
        match connection {
            Ok(connection) => begin(connection.stream, front.for_peer(connection.peer), open.clone()),
            Err(fault) => {
                log::warn!("failed to accept a gRPC connection: {fault}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn begin(stream: Stream, front: Arc<Front>, open: watch::Receiver<()>) {
    match (stream, front.options.tls.clone()) {
        (Stream::Tcp(stream), None) => {
            tokio::spawn(watched(FrontEnd::Grpc, connection::serve(stream, front, open)));
        }
        (Stream::Tcp(stream), Some(tls)) => {
            tokio::spawn(watched(FrontEnd::Grpc, connection::serve_secured(stream, tls, front, open)));
        }
        (Stream::Unix(stream), _) => {
            tokio::spawn(watched(FrontEnd::Grpc, connection::serve(Local::new(stream), front, open)));
        }
    }
}
