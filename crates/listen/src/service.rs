//! How does a front end stop, and when have its connections ended?

use std::io;
use std::sync::Arc;

use tokio::sync::watch;

use crate::accept::spawn_acceptor;
use crate::behind_proxy::HeaderReader;
use crate::stop_signal::{Stage, StopSignal};
use crate::{Connection, Listener, Peers};

/// The listeners and connections of one front end, which stop together. A clone is the same service. Dropping it does not stop it.
#[derive(Clone, Debug)]
pub struct Service(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    stage: watch::Sender<Stage>,
    /// The signal as it was at the beginning. A clone notices a stage even if it began before the clone was made.
    signal: StopSignal,
    /// Each listener has a receiver.
    listeners: watch::Sender<()>,
    /// Each connection has a receiver.
    connections: watch::Sender<()>,
}

/// An open connection. [`Service::stop`] waits until it is dropped.
#[derive(Debug)]
pub struct Open {
    _connection: watch::Receiver<()>,
}

/// A service, which counts one more listener until this value is dropped.
struct Listening {
    service: Service,
    _listener: watch::Receiver<()>,
}

impl Default for Service {
    fn default() -> Service {
        let (stage, signal) = watch::channel(Stage::Serving);
        let (listeners, connections) = (watch::Sender::new(()), watch::Sender::new(()));
        Service(Arc::new(Shared { stage, signal: StopSignal(signal), listeners, connections }))
    }
}

impl Service {
    /// Calls `begin` for each connection of `listener`, until the service stops, the listener is closed or the runtime is shut down. The listener is
    /// closed then. Must be called inside an async runtime. `begin` runs on a thread that only accepts, or in a task for a connection through a proxy. It may
    /// spawn tasks on that runtime and must not block. An error means that there is no thread; the listener is closed then.
    ///
    /// `name` stands for the service in the log, for example `HTTP`. Nothing is accepted while `peers` has many connections that are being closed.
    pub fn accept(
        &self,
        name: &'static str,
        listener: Arc<Listener>,
        peers: Option<Arc<Peers>>,
        begin: impl Fn(Connection, Open) + Send + Sync + 'static,
    ) -> io::Result<()> {
        let listening = Listening { service: self.clone(), _listener: self.0.listeners.subscribe() };
        let begin = Arc::new(move |connection| begin(connection, listening.open()));
        let (header_max, stop) = (listener.header_max(), self.stop_signal());
        let headers = peers.clone().map(|peers| HeaderReader { peers, header_max, stop });
        let begin = move |connection: Connection| match (connection.proxy, &headers) {
            (Some(proxy), Some(headers)) => headers.begin_after_header(connection, proxy, &begin),
            _ => begin(connection),
        };
        spawn_acceptor(name, listener, peers, self.stop_signal(), begin)
    }

    /// Counts one more connection until the result is dropped.
    pub fn open(&self) -> Open {
        Open { _connection: self.0.connections.subscribe() }
    }

    /// The signal of the service's stop.
    pub fn stop_signal(&self) -> StopSignal {
        self.0.signal.clone()
    }

    /// The number of open connections.
    pub fn connections(&self) -> usize {
        self.0.connections.receiver_count()
    }

    /// Begins to end connections without losing a request: everything is served, and each connection ends after a request. New connections are accepted.
    pub fn drain(&self) {
        self.advance(Stage::Draining);
    }

    /// Drains, and closes the listeners once they have accepted the connections that wait. The future resolves when the listeners are closed and all
    /// connections have ended. Dropping it changes nothing.
    pub fn close_listeners(&self) -> impl Future<Output = ()> + Send + use<> {
        self.advance(Stage::ListenersClosed);
        self.ended()
    }

    /// Closes the listeners, and signals the stop to the connections. The future resolves when all have ended. Dropping it changes nothing.
    pub fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        self.advance(Stage::Stopping);
        self.ended()
    }

    fn advance(&self, next: Stage) {
        self.0.stage.send_if_modified(|stage| {
            let advances = *stage < next;
            *stage = next.max(*stage);
            advances
        });
    }

    fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let shared = Arc::clone(&self.0);
        async move {
            shared.listeners.closed().await;
            // No connection can be opened from here on.
            shared.connections.closed().await;
        }
    }
}

impl Listening {
    fn open(&self) -> Open {
        self.service.open()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::TcpStream;
    use std::time::Duration;

    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;
    use crate::{Endpoint, bind};

    async fn is_pending(future: impl Future) -> bool {
        timeout(Duration::from_millis(20), future).await.is_err()
    }

    #[tokio::test]
    async fn a_stop_waits_for_listeners_and_connections() {
        let service = Service::default();
        let listener = bind(&Endpoint::Tcp { address: "127.0.0.1".into(), port: 0, reuse_port: false }).unwrap();
        let address = listener.address().unwrap();
        let (send, mut begun) = mpsc::channel(1);
        let begin = move |connection, open| send.try_send((connection, open)).unwrap();
        service.accept("test", Arc::new(listener), None, begin).unwrap();
        let _client = TcpStream::connect(address).unwrap();
        let connection = begun.recv().await.unwrap();
        assert_eq!(service.connections(), 1);
        let stopped = tokio::spawn(service.stop());
        assert!(begun.recv().await.is_none(), "the acceptor ends");
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert!(!stopped.is_finished());
        drop(connection);
        stopped.await.unwrap();
        assert_eq!(service.connections(), 0);
    }

    #[tokio::test]
    async fn a_signal_that_is_taken_after_the_stop_tells_of_it() {
        let service = Service::default();
        assert_eq!(service.stop_signal().advanced(), None);
        service.drain();
        assert_eq!(service.stop_signal().advanced(), Some(Stage::Draining));
        assert!(is_pending(service.stop_signal().wait()).await);
        service.stop().await;
        service.drain();
        let mut signal = service.stop_signal();
        assert_eq!((signal.advanced(), signal.advanced()), (Some(Stage::Stopping), None));
        signal.wait().await;
    }

    #[tokio::test]
    async fn a_service_that_was_dropped_never_stops() {
        let mut signal = Service::default().stop_signal();
        assert!(is_pending(signal.wait()).await);
    }
}
