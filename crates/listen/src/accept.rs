//! Which thread accepts connections?
//!
//! Each listener has a thread of its own. It only accepts, identifies and admits connections. The threads of the runtime serve them.
//!
//! The kernel keeps the connections of all clients in one queue per listener, in the order in which they came. So this queue must stay short. A
//! thread that also serves connections would come to it late, and a client that opens many connections would then delay all others.

use std::io;
use std::sync::Arc;
use std::thread;

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::limits::{ACCEPT_PAUSE, CLOSING_PAUSE};
use crate::{Connection, Listener, Peers};

/// Calls `begin` for each connection of `listener`, until `stop` is true or the runtime is shut down. The listener is closed then. Must be called
/// inside an async runtime. `begin` runs on the accepting thread. It may spawn tasks on that runtime and must not block. An error means that there is
/// no thread; the listener is closed then.
///
/// `service` names the connections in the log, for example `HTTP`.
pub fn spawn_acceptor(
    service: &'static str,
    listener: Listener,
    peers: Arc<Peers>,
    stop: watch::Receiver<bool>,
    begin: impl Fn(Connection) + Send + 'static,
) -> io::Result<()> {
    let (listener, runtime) = (Arc::new(listener), Handle::current());
    let closed = ClosedOnDrop(Arc::clone(&listener));
    start_thread(move || {
        let _context = runtime.enter();
        run(service, &listener, &peers, &begin);
    })
    .map_err(|error| {
        let text = format!("no thread to accept {service} connections: {error}; raise the limit on threads");
        io::Error::new(error.kind(), text)
    })?;
    tokio::spawn(close_when_stopped(closed, stop));
    Ok(())
}

fn start_thread(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    #[cfg(test)]
    tests::check_threads()?;
    thread::Builder::new().name("nerite-accept".to_owned()).spawn(work).map(drop)
}

#[expect(clippy::disallowed_methods, reason = "this thread serves no connections")]
fn run(service: &str, listener: &Listener, peers: &Peers, begin: &impl Fn(Connection)) {
    loop {
        // Each evicted connection has a descriptor until its task has closed it, which the task does as soon as it runs.
        while peers.has_many_closing() && !listener.is_closed() {
            thread::sleep(CLOSING_PAUSE);
        }
        let accepted = listener.accept();
        if listener.is_closed() {
            return;
        }
        match accepted {
            Ok(connection) => begin(connection),
            // The client closed the connection before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                log::warn!("cannot accept a connection of the {service} service: {error}");
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

/// Closes the listener when the service stops, or when the runtime drops the task that waits for that.
struct ClosedOnDrop(Arc<Listener>);

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

async fn close_when_stopped(listener: ClosedOnDrop, mut stop: watch::Receiver<bool>) {
    // An error means that the sender was dropped. Then only the end of the runtime stops the service.
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
    drop(listener);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;
    use std::net::TcpStream;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::{ConnectionLimits, Endpoint, bind};

    const SOON: Duration = Duration::from_secs(30);

    thread_local! {
        /// Whether the system refuses the threads that this thread starts.
        static REFUSES_THREADS: Cell<bool> = const { Cell::new(false) };
    }

    /// What the system says to a thread that is to be started.
    pub(super) fn check_threads() -> io::Result<()> {
        if REFUSES_THREADS.get() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }

    struct Service {
        address: std::net::SocketAddr,
        stop: watch::Sender<bool>,
        /// Disconnected when the acceptor has ended.
        begun: mpsc::Receiver<nerite_request::Peer>,
    }

    fn service() -> Service {
        let listener = bind(&Endpoint::Tcp { address: "127.0.0.1".into(), port: 0, reuse_port: false }).unwrap();
        let (address, stop, (send, begun)) = (listener.address().unwrap(), watch::Sender::new(false), mpsc::channel());
        let peers = Peers::new(ConnectionLimits::for_descriptors(64));
        let begin = move |connection: Connection| {
            send.send(connection.peer.clone()).unwrap();
            drop(connection.into_stream().unwrap());
        };
        spawn_acceptor("test", listener, peers, stop.subscribe(), begin).unwrap();
        Service { address, stop, begun }
    }

    #[track_caller]
    fn is_closed(service: &Service) {
        assert_eq!(service.begun.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected));
        assert_eq!(TcpStream::connect(service.address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn connections_are_accepted_while_the_runtime_is_busy_and_until_the_service_stops() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let service = service();
            // This thread is the only one of the runtime, and it does not run the runtime's tasks meanwhile.
            for _ in 0..3 {
                let _client = TcpStream::connect(service.address).unwrap();
                assert_eq!(service.begun.recv_timeout(SOON), Ok(nerite_request::Peer::own()));
            }
            service.stop.send_replace(true);
            tokio::task::yield_now().await;
            is_closed(&service);
        });
    }

    #[test]
    fn without_a_thread_nothing_listens_and_the_caller_is_told() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = bind(&Endpoint::Tcp { address: "127.0.0.1".into(), port: 0, reuse_port: false }).unwrap();
        let (address, stop) = (listener.address().unwrap(), watch::Sender::new(false));
        let peers = Peers::new(ConnectionLimits::for_descriptors(64));
        REFUSES_THREADS.set(true);
        let error = runtime.block_on(async { spawn_acceptor("test", listener, peers, stop.subscribe(), drop) });
        REFUSES_THREADS.set(false);
        assert!(error.unwrap_err().to_string().starts_with("no thread to accept test connections: "));
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_listener_is_closed_with_its_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let service = runtime.block_on(async { service() });
        drop(runtime);
        is_closed(&service);
    }
}
