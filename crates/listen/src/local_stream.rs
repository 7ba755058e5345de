//! How is a Unix stream read and written in an async runtime?

use std::io::{self, IoSlice};
use std::os::unix::net;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::io::retry_on_intr;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, send, sendmsg, shutdown};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

use crate::descriptors_passed;
use crate::limits::PEEKED_BYTES_MAX;
use crate::unix_socket::UnixSocket;

/// A connected Unix stream. It takes no descriptors from the client: the kernel refuses them, or the next read fails.
#[derive(Debug)]
pub struct LocalStream(Kind);

#[derive(Debug)]
enum Kind {
    /// The kernel refuses descriptors.
    Plain(UnixStream),
    /// The kernel does not refuse descriptors. Each read checks for them first.
    PeeksFirst(AsyncFd<UnixSocket>),
}

impl LocalStream {
    /// Registers the socket with the current async runtime. An error means that the runtime is being shut down.
    pub(crate) fn new(socket: UnixSocket) -> io::Result<LocalStream> {
        Ok(LocalStream(match socket.into_plain() {
            Ok(socket) => Kind::Plain(UnixStream::from_std(net::UnixStream::from(socket))?),
            Err(socket) => Kind::PeeksFirst(watch(socket, Interest::READABLE | Interest::WRITABLE)?),
        }))
    }
}

/// Registers a descriptor with the current async runtime. An error means that the runtime is being shut down.
///
/// `AsyncFd::with_interest` is deprecated because it is safe, but relies on `T` to refer to the same open descriptor as long as it lives. `OwnedFd` and
/// [`UnixSocket`] do. Its replacement is unsafe.
#[allow(deprecated)]
pub fn watch<T: std::os::fd::AsRawFd>(descriptor: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(descriptor, interest)
}

impl AsyncRead for LocalStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Kind::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Kind::PeeksFirst(socket) => poll_receive(socket, cx, buf),
        }
    }
}

fn poll_receive(socket: &AsyncFd<UnixSocket>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
    let fits = buf.remaining().min(PEEKED_BYTES_MAX);
    loop {
        let mut ready = ready!(socket.poll_read_ready(cx))?;
        let bytes = buf.initialize_unfilled_to(fits);
        // An error of `try_io` means that the socket was not readable. Then the wait goes on.
        if let Ok(outcome) = ready.try_io(|socket| descriptors_passed::receive(socket.get_ref(), bytes)) {
            let len = outcome?;
            if len > 0 && len < fits {
                // The socket had no more bytes, so the next read waits at once. Bytes that have arrived meanwhile make the socket readable again.
                ready.clear_ready();
            }
            buf.advance(len);
            return Poll::Ready(Ok(()));
        }
    }
}

impl AsyncWrite for LocalStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().0 {
            Kind::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Kind::PeeksFirst(socket) => poll_send(socket, cx, |socket| send(socket, bytes, SEND_FLAGS)),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().0 {
            Kind::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Kind::PeeksFirst(socket) => poll_send(socket, cx, |socket| {
                let slices = slices.get(..SLICES_MAX).unwrap_or(slices);
                sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), SEND_FLAGS)
            }),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Written bytes are in the kernel already, so there is nothing to flush.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Kind::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Kind::PeeksFirst(socket) => Poll::Ready(Ok(shutdown(socket.get_ref(), Shutdown::Write)?)),
        }
    }
}

const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
/// The most slices that the kernel takes in one call.
const SLICES_MAX: usize = 1024;

fn poll_send(
    socket: &AsyncFd<UnixSocket>,
    cx: &mut Context<'_>,
    mut send: impl FnMut(&UnixSocket) -> rustix::io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        let mut ready = ready!(socket.poll_write_ready(cx))?;
        // An error of `try_io` means that the socket was not writable. Then the wait goes on.
        if let Ok(outcome) = ready.try_io(|socket| Ok(retry_on_intr(|| send(socket.get_ref()))?)) {
            return Poll::Ready(outcome);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::poll_fn;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::thread::{self, JoinHandle};
    use std::time::{Duration, Instant};

    use rustix::net::sockopt::set_socket_linger;

    use super::*;
    use crate::descriptors_passed::tests::pass;
    use crate::unix::tests::on_older_kernel;
    use crate::{
        Connection, ConnectionLimits, ConnectionPermit, DescriptorsPassed, Endpoint, Listener, Peers, Stream, bind,
    };

    /// How long a close waits. A test that waits for it has failed.
    const LINGER: Duration = Duration::from_mins(1);

    /// A listening socket, as on a kernel that cannot refuse descriptors or as on the kernel that runs the test.
    struct TestSocket {
        listener: Listener,
        path: PathBuf,
        peers: Arc<Peers>,
        _folder: tempfile::TempDir,
    }

    impl TestSocket {
        fn new(is_older: bool) -> TestSocket {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("socket");
            let bound = || bind(&Endpoint::unix(&path)).unwrap();
            let listener = if is_older { on_older_kernel(bound) } else { bound() };
            let peers = Peers::new(ConnectionLimits::for_descriptors(1024));
            TestSocket { listener, path, peers, _folder: folder }
        }

        fn connect(&self) -> net::UnixStream {
            net::UnixStream::connect(&self.path).unwrap()
        }

        fn accept(&self) -> (Connection, ConnectionPermit) {
            let connection = self.listener.accept().unwrap();
            let permit = self.peers.admit(&connection.peer).unwrap();
            (connection, permit)
        }

        /// The stream alone keeps the connection open, because the permit is dropped.
        fn accept_stream(&self) -> LocalStream {
            let (connection, permit) = self.accept();
            let Stream::Unix(stream) = connection.into_stream(&permit).unwrap() else { panic!("it is a Unix socket") };
            stream
        }
    }

    /// A TCP connection whose close waits, and its peer, which does not read. The wait ends when the peer is closed.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        one.set_nonblocking(true).unwrap();
        while (&one).write(&[0; 1 << 14]).is_ok() {}
        set_socket_linger(&one, Some(LINGER)).unwrap();
        (one, peer)
    }

    /// Passes a descriptor whose close waits, until the result is dropped.
    fn pass_lingering(client: &net::UnixStream) -> TcpStream {
        let (one, peer) = lingering();
        pass(client, b"x", Some(one.as_fd()), SendFlags::empty()).unwrap();
        peer
    }

    async fn read(stream: &mut LocalStream, bytes: &mut [u8]) -> io::Result<usize> {
        let mut buf = ReadBuf::new(bytes);
        poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, &mut buf)).await?;
        Ok(buf.filled().len())
    }

    fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        thread::Builder::new().spawn(work).unwrap()
    }

    #[track_caller]
    fn is_quick<T>(work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let made = work();
        assert!(begun.elapsed() < LINGER / 2, "it waited for the close of a descriptor that a client has passed");
        made
    }

    #[tokio::test]
    async fn all_bytes_pass_in_both_directions_and_the_end_is_seen() {
        for is_older in [false, true] {
            let socket = TestSocket::new(is_older);
            let mut client = socket.connect();
            let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let expect = sent.clone();
            let mut reader = client.try_clone().unwrap();
            let writes = start(move || {
                client.write_all(&sent).unwrap();
                client.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let echoes = start(move || {
                let mut found = Vec::new();
                reader.read_to_end(&mut found).unwrap();
                found
            });
            let mut stream = socket.accept_stream();
            let mut found = Vec::new();
            let mut bytes = vec![0; 100_000];
            loop {
                match read(&mut stream, &mut bytes).await.unwrap() {
                    0 => break,
                    len => found.extend_from_slice(&bytes[..len]),
                }
            }
            assert!(found == expect, "older: {is_older}");
            let mut left = &found[..];
            while !left.is_empty() {
                let (first, rest) = left.split_at(left.len() / 3);
                let slices = [IoSlice::new(first), IoSlice::new(rest)];
                let len = poll_fn(|cx| Pin::new(&mut stream).poll_write_vectored(cx, &slices)).await.unwrap();
                left = &left[len..];
                let len = poll_fn(|cx| Pin::new(&mut stream).poll_write(cx, left)).await.unwrap();
                left = &left[len..];
            }
            poll_fn(|cx| Pin::new(&mut stream).poll_shutdown(cx)).await.unwrap();
            writes.join().unwrap();
            assert!(echoes.join().unwrap() == expect, "older: {is_older}");
        }
    }

    #[tokio::test]
    async fn a_client_that_passes_a_descriptor_gets_the_end_and_delays_nobody() {
        let socket = TestSocket::new(true);
        let (mut client, mut stream) = (socket.connect(), socket.accept_stream());
        client.write_all(b"first").unwrap();
        let mut bytes = [0; 9];
        assert_eq!(read(&mut stream, &mut bytes).await.unwrap(), 5);
        let peer = pass_lingering(&client);
        let begun = Instant::now();
        let error = read(&mut stream, &mut bytes).await.unwrap_err();
        assert!(begun.elapsed() < LINGER / 2);
        assert!(DescriptorsPassed::is(&error), "{error}");
        is_quick(|| drop(stream));
        assert_eq!(client.read(&mut bytes).unwrap(), 0, "it sees the end at once");
        assert!(client.write(b"x").is_err());
        // It counts as open until it is closed.
        assert_eq!(socket.peers.counts().open, 1);
        drop(peer);
        until(|| socket.peers.counts().open == 0);
    }

    #[tokio::test]
    async fn a_connection_that_is_not_read_delays_nobody_at_its_close() {
        let socket = TestSocket::new(true);
        let clients: Vec<_> = (0..4).map(|_| socket.connect()).collect();
        let peers: Vec<_> = clients.iter().map(pass_lingering).collect();
        let (connection, permit) = socket.accept();
        is_quick(|| drop((connection, permit)));
        is_quick(|| socket.accept().0.reject(b"full"));
        let mut answer = String::new();
        (&clients[1]).read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "full");
        is_quick(|| drop(socket.accept_stream()));
        // The last one waits to be accepted.
        is_quick(|| drop(socket));
        drop(peers);
    }

    #[track_caller]
    fn until(mut comes: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !comes() {
            assert!(begun.elapsed() < LINGER / 2);
            thread::yield_now();
        }
    }
}
