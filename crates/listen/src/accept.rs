//! Which thread accepts connections?
//!
//! Each listener has a thread of its own. It only accepts, identifies and admits connections. The threads of the runtime serve them.
//! The kernel keeps the connections of all clients in one queue per listener, in the order of their arrival. So this queue must stay short. A thread that
//! also serves connections would empty the queue late, and a client that opens many connections would then delay all others.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Weak};
use std::thread;

use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::limits::{ACCEPT_PAUSE, CLOSING_PAUSE};
use crate::stop_signal::{Stage, StopSignal};
use crate::{Connection, Listener, Peers};

/// Does what [`crate::Service::accept`] says, until `stop`.
pub(crate) fn spawn_acceptor(
    service: &'static str,
    listener: Arc<Listener>,
    peers: Option<Arc<Peers>>,
    stop: StopSignal,
    begin: impl Fn(Connection) + Send + 'static,
) -> io::Result<()> {
    let (closed, runtime) = (ClosedOnDrop(Arc::downgrade(&listener)), Handle::current());
    let (running, ended) = oneshot::channel();
    start_thread(move || {
        let _context = runtime.enter();
        run(service, &listener, peers.as_deref(), &begin);
        // The listener is dropped first, so that the file of a Unix socket is removed before the front end counts as stopped.
        drop(listener);
        drop((begin, running));
    })
    .map_err(|error| {
        let text = format!("no thread to accept {service} connections: {error}; raise the limit on threads");
        io::Error::new(error.kind(), text)
    })?;
    tokio::spawn(close_when_stopped(closed, stop, ended));
    Ok(())
}

fn start_thread(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    #[cfg(test)]
    tests::check_threads()?;
    thread::Builder::new().name("nerite-accept".to_owned()).spawn(work).map(drop)
}

#[expect(clippy::disallowed_methods, reason = "this thread serves no connections")]
fn run(service: &str, listener: &Listener, peers: Option<&Peers>, begin: &impl Fn(Connection)) {
    loop {
        // Each evicted connection has a descriptor until its task closes it. The task does that as soon as it runs.
        while (peers.is_some_and(Peers::has_many_closing) || listener.has_many_closing()) && !listener.is_closed() {
            thread::sleep(CLOSING_PAUSE);
        }
        let accepted = listener.accept();
        if listener.is_closed() {
            return;
        }
        match accepted {
            Ok(connection) => begin(connection),
            // No connection waits any more. After any other error the waiting connections stay in the queue and are accepted later.
            Err(error) if listener.is_draining() && means_end(&error) => return,
            // The client closed the connection before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                log::warn!("cannot accept a connection of the {service} service: {error}");
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

/// Whether this error of an accept means that the socket no longer listens and that no connection waits at it.
fn means_end(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

/// Closes the listener when the service stops, or when the runtime drops the task that waits for that.
struct ClosedOnDrop(Weak<Listener>);

impl ClosedOnDrop {
    /// Refuses new connections. Those that wait are accepted before.
    fn drain(&self) {
        if let Some(listener) = self.0.upgrade() {
            listener.drain();
        }
    }
}

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        if let Some(listener) = self.0.upgrade() {
            listener.close();
        }
    }
}

async fn close_when_stopped(listener: ClosedOnDrop, mut stop: StopSignal, mut ended: oneshot::Receiver<Infallible>) {
    tokio::select! {
        () = stop.wait_for(Stage::ListenersClosed) => {
            listener.drain();
            tokio::select! {
                () = stop.wait() => {}
                _ = ended => {}
            }
        }
        // The acceptor has ended by itself.
        _ = &mut ended => {}
    }
    drop(listener);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;
    use std::net::TcpStream;
    use std::os::fd::OwnedFd;
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

    use super::*;
    use crate::{ConnectionLimits, Endpoint, OWNER_ONLY, Service, bind};

    const SOON: Duration = Duration::from_secs(30);

    thread_local! {
        /// Whether the system refuses the threads that this thread starts.
        static REFUSES_THREADS: Cell<bool> = const { Cell::new(false) };
    }

    /// The system's answer when a thread is to be started.
    pub(super) fn check_threads() -> io::Result<()> {
        if REFUSES_THREADS.get() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }

    struct TestService {
        address: std::net::SocketAddr,
        service: Service,
        /// Disconnected when the acceptor has ended.
        begun: mpsc::Receiver<nerite_request::Peer>,
    }

    fn service() -> TestService {
        let listener = bind(&Endpoint::Tcp { address: "127.0.0.1".into(), port: 0, reuse_port: false }).unwrap();
        let (address, service, (send, begun)) = (listener.address().unwrap(), Service::default(), mpsc::channel());
        let peers = Peers::new(ConnectionLimits::for_descriptors(64));
        let begin = move |connection: Connection, _| {
            send.send(connection.peer.clone()).unwrap();
            drop(connection);
        };
        service.accept("test", Arc::new(listener), Some(peers), begin).unwrap();
        TestService { address, service, begun }
    }

    #[track_caller]
    fn is_closed(service: &TestService) {
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
            drop(service.service.stop());
            tokio::task::yield_now().await;
            is_closed(&service);
        });
    }

    #[test]
    fn an_acceptor_that_has_ended_is_waited_for_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (ends, ended) = oneshot::channel();
        drop(ends);
        runtime.block_on(close_when_stopped(ClosedOnDrop(Weak::new()), Service::default().stop_signal(), ended));
    }

    #[test]
    fn without_a_thread_nothing_listens_and_the_caller_gets_an_error() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = bind(&Endpoint::Tcp { address: "127.0.0.1".into(), port: 0, reuse_port: false }).unwrap();
        let (address, service) = (listener.address().unwrap(), Service::default());
        REFUSES_THREADS.set(true);
        let error = runtime.block_on(async { service.accept("test", Arc::new(listener), None, |_, _| {}) });
        REFUSES_THREADS.set(false);
        assert!(error.unwrap_err().to_string().starts_with("no thread to accept test connections: "));
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn connections_that_wait_are_accepted_before_a_socket_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for packets in [false, true] {
            let listener = Arc::new(bind(&Endpoint::Unix { path: path.clone(), mode: OWNER_ONLY, packets }).unwrap());
            let waiting: Vec<_> = (0..3).map(|_| connect_to(&path, packets).unwrap()).collect();
            listener.drain();
            assert_eq!(connect_to(&path, packets).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
            let (send, begun) = mpsc::channel();
            let begin = move |connection: Connection, _| send.send(connection.peer).unwrap();
            runtime.block_on(async { Service::default().accept("test", Arc::clone(&listener), None, begin) }).unwrap();
            for _ in &waiting {
                assert_eq!(begun.recv_timeout(SOON), Ok(nerite_request::Peer::own()));
            }
            assert_eq!(begun.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected));
            assert!(path.exists(), "its owner keeps the file");
            drop(listener);
            assert!(!path.exists());
        }
    }

    #[test]
    fn only_a_listener_that_is_shut_down_and_empty_has_ended() {
        for passing in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::CONNABORTED, Errno::AGAIN] {
            assert!(!means_end(&passing.into()), "{passing}");
        }
        let folder = tempfile::tempdir().unwrap();
        let tcp = Endpoint::Tcp { address: "127.0.0.1".into(), port: 0, reuse_port: false };
        for endpoint in [tcp, Endpoint::unix(&folder.path().join("socket"))] {
            let listener = bind(&endpoint).unwrap();
            listener.drain();
            assert!(means_end(&listener.accept().unwrap_err()));
        }
    }

    fn connect_to(path: &std::path::Path, packets: bool) -> io::Result<OwnedFd> {
        let kind = if packets { SocketType::SEQPACKET } else { SocketType::STREAM };
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    }

    #[test]
    fn a_listener_is_closed_with_its_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let service = runtime.block_on(async { service() });
        drop(runtime);
        is_closed(&service);
    }
}
