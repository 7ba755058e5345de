//! How does a connection through a proxy get its client?
//!
//! A proxy that the operator trusts begins each connection with a header, which names the client. A task of the runtime reads the header, so a proxy that
//! sends half of one delays nobody. Until the header is complete the connection counts for the proxy, then for the client.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::limits::PROXY_HEADER_BYTES_MAX;
use crate::peer::of_claimed;
use crate::peers::{ConnectionPermit, Peers};
use crate::proxy_header::{HeaderFault, Origin, Step, next_step};
use crate::stall::{Overdue, sleep_or_forever};
use crate::stop_signal::StopSignal;
use crate::{Connection, Stream};

/// What the header of a proxy is read with.
pub(crate) struct HeaderReader {
    pub(crate) peers: Arc<Peers>,
    pub(crate) header_max: Option<Duration>,
    pub(crate) stop: StopSignal,
}

impl HeaderReader {
    /// Reads the header of a connection from the proxy `proxy` in a task of its own, and calls `begin` there if the header names the client. Must be called
    /// inside an async runtime.
    pub(crate) fn begin_after_header(
        &self,
        connection: Connection,
        proxy: IpAddr,
        begin: &Arc<impl Fn(Connection) + Send + Sync + 'static>,
    ) {
        let own = connection.peer.clone();
        // Whether the client expects TLS is not known here, so it gets no message.
        let Ok(permit) = self.peers.admit(&own) else { return connection.reject(&[]) };
        let (peers, begin) = (Arc::clone(&self.peers), Arc::clone(begin));
        let (header_max, stop) = (self.header_max, self.stop.clone());
        tokio::spawn(async move {
            let Ok(Stream::Tcp(stream)) = connection.into_stream(&permit) else { return };
            let peer = match await_header(&stream, permit, header_max, stop).await {
                Some(Ok(Origin::Client(address))) => of_claimed(address),
                Some(Ok(Origin::Proxy)) => own,
                Some(Err(fault)) => {
                    return peers.warn(|| format!("a connection of the trusted proxy {proxy} was closed: {fault}"));
                }
                None => return,
            };
            if let Ok(stream) = stream.into_std() {
                begin(Connection::of_tcp(stream, peer));
            }
        });
    }
}

/// Waits for the header while the connection holds `permit`. `None` if the connection ended before its first byte, is overdue or evicted, or the server stops.
async fn await_header(
    stream: &TcpStream,
    permit: ConnectionPermit,
    within: Option<Duration>,
    mut stop: StopSignal,
) -> Option<Result<Origin, HeaderFault>> {
    tokio::select! {
        biased;
        read = read_header(stream) => read.transpose(),
        () = sleep_or_forever(within) => {
            permit.note_ended(Overdue::Head);
            None
        }
        () = permit.evicted() => None,
        () = stop.wait() => None,
    }
}

/// Reads the header and no byte more. `None` if the connection ended before its first byte, as that of a health check, or broke off.
async fn read_header(stream: &TcpStream) -> Result<Option<Origin>, HeaderFault> {
    let (mut bytes, mut filled) = ([0; PROXY_HEADER_BYTES_MAX], 0);
    loop {
        let end = match next_step(&bytes[..filled])? {
            Step::Done(origin) => return Ok(Some(origin)),
            Step::ReadUpTo(end) => end,
        };
        match read(stream, &mut bytes[filled..end]).await {
            Ok(0) if filled > 0 => return Err(HeaderFault::Ended { bytes: filled }),
            Ok(0) | Err(_) => return Ok(None),
            Ok(count) => filled += count,
        }
    }
}

/// Waits for bytes and reads them. 0 at the end of the stream.
async fn read(stream: &TcpStream, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        match stream.try_read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{Read, Write};
    use std::net;
    use std::sync::mpsc;

    use nerite_request::Peer;

    use super::*;
    use crate::{ConnectionLimits, Endpoint, Listener, Open, Proxies, Service, bind};

    const SOON: Duration = Duration::from_secs(30);

    struct TestService {
        address: net::SocketAddr,
        service: Service,
        peers: Arc<Peers>,
        begun: mpsc::Receiver<(Peer, String)>,
        runtime: tokio::runtime::Runtime,
    }

    /// A service whose connections with an address of this host come from proxies if `trusts`.
    fn service(trusts: bool, header_max: Option<Duration>, limits: ConnectionLimits) -> TestService {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = bind(&Endpoint::Tcp { address: "127.0.0.1".into(), port: 0, reuse_port: false }).unwrap();
        let trusted = ["127.0.0.0/8"].iter().filter(|_| trusts).map(|text| text.parse().unwrap()).collect();
        let listener = Listener::behind(listener, Proxies { trusted, header_max });
        let (address, service, (send, begun)) = (listener.address().unwrap(), Service::default(), mpsc::channel());
        let peers = Peers::new(limits);
        let admitting = Arc::clone(&peers);
        let begin = move |connection: Connection, open: Open| {
            let (peer, send, permit) =
                (connection.peer.clone(), send.clone(), admitting.admit(&connection.peer).unwrap());
            tokio::spawn(async move {
                let Ok(Stream::Tcp(stream)) = connection.into_stream(&permit) else { panic!("it came over TCP") };
                let mut bytes = [0; 64];
                let count = read(&stream, &mut bytes).await.unwrap();
                send.send((peer, String::from_utf8_lossy(&bytes[..count]).into_owned())).unwrap();
                drop((open, permit));
            });
        };
        runtime
            .block_on(async { service.accept("test", Arc::new(listener), Some(Arc::clone(&peers)), begin) })
            .unwrap();
        TestService { address, service, peers, begun, runtime }
    }

    const LIMITS: ConnectionLimits = ConnectionLimits { all_max: 64, per_peer_max: 16 };

    fn header(command: u8, client: [u8; 4]) -> Vec<u8> {
        let addresses = [&client[..], &[10, 0, 0, 1, 0x30, 0x39, 0x1f, 0x40, 4, 0, 1, 0]].concat();
        [&b"\r\n\r\n\0\r\nQUIT\n"[..], &[0x20 | command, 0x11, 0, addresses.len() as u8], &addresses].concat()
    }

    fn of(address: &str) -> Peer {
        Peer::behind_proxy(address.parse().unwrap())
    }

    /// Sends the pieces, and waits before each until the server has read the one before.
    #[track_caller]
    fn check(service: &TestService, pieces: &[&[u8]], expect: &Peer) {
        let mut client = net::TcpStream::connect(service.address).unwrap();
        client.set_nodelay(true).unwrap();
        for piece in pieces {
            client.write_all(piece).unwrap();
            std::thread::yield_now();
        }
        assert_eq!(service.begun.recv_timeout(SOON), Ok((expect.clone(), "hello".to_owned())));
    }

    #[test]
    fn the_client_is_that_of_the_header_and_the_bytes_after_it_are_left() {
        let service = service(true, Some(SOON), LIMITS);
        let whole = [&header(1, [203, 0, 113, 7])[..], b"hello"].concat();
        check(&service, &[&whole], &of("203.0.113.7"));
        let bytes: Vec<&[u8]> = whole.chunks(1).collect();
        check(&service, &[&bytes[..whole.len() - 5], &[b"hello"]].concat(), &of("203.0.113.7"));
        // Neither an address of this host nor the proxy itself makes a user.
        check(&service, &[&header(1, [127, 0, 0, 1]), b"hello"], &Peer::Unidentified);
        check(&service, &[&header(0, [203, 0, 113, 7]), b"hello"], &Peer::Unidentified);
    }

    #[test]
    fn nothing_is_read_before_a_connection_that_comes_from_no_proxy_begins() {
        let service = service(false, Some(SOON), LIMITS);
        check(&service, &[b"hello"], &Peer::own());
    }

    #[track_caller]
    fn check_closed(service: &TestService, sent: &[u8]) {
        let mut client = net::TcpStream::connect(service.address).unwrap();
        client.write_all(sent).unwrap();
        // The connection ends, or is reset if bytes were not read.
        assert_eq!(client.read(&mut [0]).unwrap_or(0), 0);
    }

    #[test]
    fn a_connection_without_a_legal_header_is_closed() {
        let service = service(true, Some(SOON), LIMITS);
        check_closed(&service, b"GET / HTTP/1.1\r\n\r\n");
        check_closed(&service, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff");
        check_closed(&service, &header(2, [203, 0, 113, 7]));
        assert!(service.begun.try_recv().is_err());
    }

    #[test]
    fn a_header_that_does_not_end_in_time_ends_the_connection() {
        let service = service(true, Some(Duration::from_millis(50)), LIMITS);
        check_closed(&service, &header(1, [203, 0, 113, 7])[..20]);
        assert_eq!(service.peers.counts().ended.first(), Some(&("head", 1)));
    }

    #[test]
    fn half_headers_count_for_the_proxy_make_room_for_each_other_and_end_with_the_service() {
        let service = service(true, None, LIMITS);
        let half = |_| {
            let mut client = net::TcpStream::connect(service.address).unwrap();
            client.write_all(&header(1, [203, 0, 113, 7])[..20]).unwrap();
            client
        };
        let mut waiting: Vec<_> = (0..LIMITS.per_peer_max).map(half).collect();
        while service.peers.counts().open < LIMITS.per_peer_max as u64 {
            std::thread::yield_now();
        }
        check(&service, &[&header(1, [203, 0, 113, 7]), b"hello"], &of("203.0.113.7"));
        assert_eq!(service.peers.counts().ended.last(), Some(&("shed", 1)));
        assert_eq!(waiting[0].read(&mut [0]).unwrap_or(0), 0);
        service.runtime.block_on(service.service.stop());
        for client in &mut waiting {
            assert_eq!(client.read(&mut [0]).unwrap_or(0), 0);
        }
        assert_eq!(service.peers.counts().open, 0);
    }
}
