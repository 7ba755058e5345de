//! How does the server read from a Unix socket without taking the descriptors that a client passes?
//!
//! The kernel closes a descriptor (`SCM_RIGHTS`) that a reader does not take, in the thread that reads. If it is the last one of its file, that may take
//! hours: a TCP connection with SO_LINGER waits for its peer. Before Linux 6.16 a socket cannot refuse descriptors. So the server looks at what waits, without
//! taking it (`MSG_PEEK`), and reads no more bytes than it has looked at:
//!
//! ```text
//!   queue of the socket:   [bytes] [bytes] [bytes + descriptor] [bytes]
//!   peek, 5 bytes fit:      ^^^^^^^^^^^^^   no descriptor: these bytes are read
//!   peek, more fit:         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^        MSG_CTRUNC: nothing is read
//! ```
//! A peek has no room for descriptors, so the kernel makes none for the server, and reports that by MSG_CTRUNC. It takes a reference to each file for a
//! moment. That is never the last reference, because the queue holds another.

use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;

use rustix::io::retry_on_intr;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recv, recvmsg};

/// A client has passed descriptors, and the server takes none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client passes file descriptors (SCM_RIGHTS), and the server takes none; send bytes only")]
pub struct DescriptorsPassed;

impl From<DescriptorsPassed> for io::Error {
    fn from(passed: DescriptorsPassed) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, passed)
    }
}

impl DescriptorsPassed {
    /// Whether this error of a read is [`DescriptorsPassed`].
    pub fn is(error: &io::Error) -> bool {
        matches!(error.get_ref(), Some(inner) if inner.is::<DescriptorsPassed>())
    }
}

/// Copies waiting bytes of a Unix socket to `bytes`, and leaves them in the socket. Returns the number of bytes. Fails with [`DescriptorsPassed`] if a
/// descriptor waits with these bytes. For a stream, it also fails if a descriptor waits behind them. For a socket that preserves packets, only the
/// next packet is read, even if more would fit.
pub fn peek(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<usize> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let mut into = [IoSliceMut::new(bytes)];
    let found = retry_on_intr(|| recvmsg(&socket, &mut into, &mut RecvAncillaryBuffer::default(), flags))?;
    if found.flags.contains(ReturnFlags::CTRUNC) { Err(DescriptorsPassed.into()) } else { Ok(found.bytes) }
}

/// Reads from a Unix stream that has no other reader. Returns the number of bytes, which is 0 at the end of the stream. Fails with [`DescriptorsPassed`], and
/// reads nothing, if a descriptor waits.
pub(crate) fn receive(stream: impl AsFd, bytes: &mut [u8]) -> io::Result<usize> {
    let len = peek(&stream, bytes)?;
    if len == 0 {
        return Ok(0);
    }
    let (_, len) = retry_on_intr(|| recv(&stream, &mut bytes[..len], RecvFlags::DONTWAIT))?;
    Ok(len)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use std::fs::File;
    use std::io::IoSlice;
    use std::mem::MaybeUninit;
    use std::os::fd::{BorrowedFd, OwnedFd};

    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
        socketpair, sockopt,
    };

    use super::*;

    /// Two connected sockets.
    pub(crate) fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None).unwrap()
    }

    /// Sends bytes and, if there is one, a descriptor.
    pub(crate) fn pass(
        to: impl AsFd,
        bytes: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
        flags: SendFlags,
    ) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let passed = descriptor.as_slice();
        assert!(passed.is_empty() || control.push(SendAncillaryMessage::ScmRights(passed)));
        sendmsg(to, &[IoSlice::new(bytes)], &mut control, flags | SendFlags::NOSIGNAL)
    }

    /// Checks what `receive` returns for these messages with a buffer of `fits` bytes: the bytes of each call until the end, or `!` for descriptors.
    #[track_caller]
    fn check(messages: &[(&str, bool)], fits: usize, expect: &[&str]) {
        let (client, server) = pair(SocketType::STREAM);
        let file = File::open("/dev/null").unwrap();
        for (bytes, with) in messages {
            pass(&client, bytes.as_bytes(), with.then(|| file.as_fd()), SendFlags::empty()).unwrap();
        }
        drop(client);
        let (mut found, mut bytes) = (Vec::new(), vec![0; fits]);
        loop {
            match receive(&server, &mut bytes) {
                Ok(0) => break,
                Ok(len) => found.push(String::from_utf8(bytes[..len].to_vec()).unwrap()),
                Err(error) => {
                    assert!(DescriptorsPassed::is(&error), "{error}");
                    found.push("!".to_owned());
                    break;
                }
            }
        }
        assert_eq!(found, expect, "{messages:?}, {fits} bytes fit");
    }

    #[test]
    fn a_stream_is_read_up_to_the_message_that_brings_descriptors() {
        check(&[], 9, &[]);
        check(&[("ab", false), ("cd", false)], 9, &["abcd"]);
        check(&[("ab", false), ("cd", false)], 3, &["abc", "d"]);
        check(&[("ab", true)], 9, &["!"]);
        check(&[("ab", true)], 1, &["!"]);
        check(&[("ab", false), ("cd", true)], 9, &["!"]);
        check(&[("ab", false), ("cd", true), ("ef", false)], 3, &["!"]);
    }

    #[test]
    fn a_packet_is_looked_at_by_itself_also_an_empty_one() {
        let (client, server) = pair(SocketType::SEQPACKET);
        let file = File::open("/dev/null").unwrap();
        for (bytes, with) in [("ab", false), ("", true), ("", false), ("cd", true)] {
            pass(&client, bytes.as_bytes(), with.then(|| file.as_fd()), SendFlags::empty()).unwrap();
            let found = peek(&server, &mut []);
            assert_eq!(found.is_err_and(|error| DescriptorsPassed::is(&error)), with, "{bytes}");
            recv(&server, &mut [0; 9], RecvFlags::DONTWAIT).unwrap();
        }
        assert_eq!(peek(&server, &mut []).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_look_leaves_the_descriptors_open_until_the_socket_is_closed() {
        for kind in [SocketType::STREAM, SocketType::SEQPACKET] {
            let (client, server) = pair(kind);
            let (reader, writer) = std::io::pipe().unwrap();
            rustix::io::ioctl_fionbio(&reader, true).unwrap();
            pass(&client, b"x", Some(writer.as_fd()), SendFlags::empty()).unwrap();
            drop((client, writer));
            for _ in 0..3 {
                assert!(DescriptorsPassed::is(&peek(&server, &mut [0; 9]).unwrap_err()));
                assert_eq!(rustix::io::read(&reader, &mut [0]).unwrap_err(), rustix::io::Errno::AGAIN);
            }
            drop(server);
            assert_eq!(rustix::io::read(&reader, &mut [0]), Ok(0));
        }
    }

    #[test]
    fn an_urgent_byte_hides_no_descriptor_if_it_is_read_inline() {
        let (client, server) = pair(SocketType::STREAM);
        sockopt::set_socket_oobinline(&server, true).unwrap();
        let file = File::open("/dev/null").unwrap();
        if pass(&client, b"x", Some(file.as_fd()), SendFlags::OOB).is_err() {
            return; // The kernel has no urgent bytes on Unix sockets.
        }
        assert!(DescriptorsPassed::is(&receive(&server, &mut [0; 9]).unwrap_err()));
    }
}
