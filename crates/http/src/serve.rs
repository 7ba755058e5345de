//! How does a connection live and end?

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nerite_api::Api;
use nerite_listen::{ACCEPT_PAUSE, Listener, Stream, Wary};
use nerite_request::Peer;
use nerite_watchdog::{FrontEnd, watched};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};

use crate::dispatch::dispatch;
use crate::reply::Outgoing;

/// The HTTP service while it runs.
#[derive(Clone)]
pub struct Handle(Arc<House>);

/// Whoever answers requests: the API, or what a test puts in its place.
pub(crate) trait Answers: Send + Sync + 'static {
    /// Whoever answers the requests of one connection, whose client is `peer`.
    fn for_peer(self: &Arc<Self>, peer: Peer) -> Arc<Self>;

    /// Answers one request. The future is dropped when the client goes away.
    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Response<Outgoing>> + Send;
}

impl Answers for Api {
    fn for_peer(self: &Arc<Self>, peer: Peer) -> Arc<Self> {
        Arc::new(Api::for_peer(self, peer))
    }

    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Response<Outgoing>> + Send {
        dispatch(self, request)
    }
}

/// What all connections share.
#[derive(Default)]
struct House {
    /// The same news twice: one to be asked on every wake-up for the price of a load, one to be woken by.
    stopping: AtomicBool,
    stop: watch::Sender<bool>,
    /// Connections and listeners that are open.
    open: AtomicUsize,
    connections: AtomicUsize,
    /// Told when `open` falls to 0.
    empty: Notify,
}

/// Serves what comes in at `listeners`. To be called inside an async runtime with I/O and time.
pub fn serve(api: Api, listeners: Vec<Listener>) -> Handle {
    serve_by(&Arc::new(api), listeners)
}

pub(crate) fn serve_by(answers: &Arc<impl Answers>, listeners: Vec<Listener>) -> Handle {
    let house = Arc::new(House::default());
    for listener in listeners {
        tokio::spawn(watched(FrontEnd::Http, accept(listener, Arc::clone(answers), Open::new(&house, 0))));
    }
    Handle(house)
}

/// Serves one connection over any stream until it ends.
pub(crate) async fn serve_stream(api: Api, stream: impl AsyncRead + AsyncWrite + Unpin) {
    converse(stream, Arc::new(api), Open::new(&Arc::default(), 1)).await;
}

impl Handle {
    /// Connections that are open.
    pub fn connections(&self) -> usize {
        self.0.connections.load(Ordering::Relaxed)
    }

    /// Stops listening and closes idle connections now, busy ones after their answer. The future is done when all are
    /// closed.
    pub fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        let house = Arc::clone(&self.0);
        house.stopping.store(true, Ordering::Release);
        house.stop.send_replace(true);
        async move {
            loop {
                // Registered before the count is read, so that no news is missed in between.
                let mut empty = pin!(house.empty.notified());
                empty.as_mut().enable();
                if house.open.load(Ordering::Acquire) == 0 {
                    return;
                }
                empty.await;
            }
        }
    }
}

/// A share in the house, counted while it lives.
struct Open {
    house: Arc<House>,
    /// 1 for a connection, 0 for a listener.
    connections: usize,
}

impl Open {
    fn new(house: &Arc<House>, connections: usize) -> Open {
        house.open.fetch_add(1, Ordering::AcqRel);
        house.connections.fetch_add(connections, Ordering::Relaxed);
        Open { house: Arc::clone(house), connections }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.house.connections.fetch_sub(self.connections, Ordering::Relaxed);
        if self.house.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.house.empty.notify_waiters();
        }
    }
}

async fn accept(listener: Listener, answers: Arc<impl Answers>, open: Open) {
    let mut stop = open.house.stop.subscribe();
    loop {
        let connection = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            connection = listener.accept() => connection,
        };
        match connection {
            Ok(connection) => {
                let (answers, share) = (answers.for_peer(connection.peer), Open::new(&open.house, 1));
                match connection.stream {
                    Stream::Tcp(stream) => {
                        drop(tokio::spawn(watched(FrontEnd::Http, converse(stream, answers, share))));
                    }
                    Stream::Unix(stream) => {
                        drop(tokio::spawn(watched(FrontEnd::Http, converse(stream, answers, share))));
                    }
                }
            }
            Err(error) => {
                log::warn!("cannot accept an HTTP connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, answers: Arc<impl Answers>, open: Open) {
    let answers = &*answers;
    // Whether anything was ever asked. Its own task alone looks, but a task may move between threads.
    let asked = AtomicBool::new(false);
    let service = service_fn(|request| {
        asked.store(true, Ordering::Relaxed);
        async move { Ok::<_, Infallible>(answers.answer(request).await) }
    });
    let connection =
        http1::Builder::new().auto_date_header(false).serve_connection(TokioIo::new(Wary::new(stream)), service);
    let mut connection = pin!(connection);
    let house = &*open.house;
    let mut stop = house.stop.subscribe();
    let mut stopped = pin!(stop.wait_for(|stop| *stop));
    let mut listening = false;
    // A connection is woken many times a request. The news of the stop is asked for once: a task's waker stays the same.
    let ended = poll_fn(|cx| {
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        if !listening || house.stopping.load(Ordering::Acquire) {
            listening = true;
            return stopped.as_mut().poll(cx).map(|_| false);
        }
        Poll::Pending
    })
    .await;
    // Who has not asked yet, or only half, is owed nothing: such a connection would last as long as its client likes.
    if !ended && asked.load(Ordering::Relaxed) {
        connection.as_mut().graceful_shutdown();
        // How a connection broke is the client's affair.
        let _ = connection.await;
    }
}

#[cfg(test)]
mod tests;
