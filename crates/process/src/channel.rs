//! How do packets and descriptors pass between the server and a model's process?

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recv, recvmsg, sendmsg, shutdown, socketpair,
};

use crate::limits::{DESCRIPTORS_MAX, LONG_BYTES_MAX, PACKET_BYTES_MAX};
use crate::packets::Long;

/// The server's end of a pair of sockets that keep packets apart. Any thread may send, one at a time receives.
#[derive(Debug)]
pub struct Channel(OwnedFd);

/// Where packets arrive, one after another.
pub struct Packet {
    short: Box<[u8]>,
    long: Vec<u8>,
}

impl Default for Packet {
    fn default() -> Packet {
        Packet { short: vec![0; PACKET_BYTES_MAX].into(), long: Vec::new() }
    }
}

impl Channel {
    /// A pair: this end, and that of the process.
    pub fn pair() -> io::Result<(Channel, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(io::Error::from)?;
        Ok((Channel(ours), theirs))
    }

    /// Sends a packet; waits where the other side has not read enough of the earlier ones.
    pub fn send(&self, packet: impl AsRef<[u8]>, descriptors: &[OwnedFd]) -> io::Result<()> {
        self.send_with(packet.as_ref(), descriptors, SendFlags::NOSIGNAL)
    }

    /// Sends a packet if it can be sent at once.
    pub fn try_send(&self, text: &str) -> io::Result<()> {
        self.try_send_all(text, &[])
    }

    /// The same, with descriptors.
    pub fn try_send_all(&self, text: &str, descriptors: &[OwnedFd]) -> io::Result<()> {
        self.send_with(text.as_bytes(), descriptors, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    /// Whether the other side has closed it and nothing of it is left to receive.
    pub fn has_ended(&self) -> bool {
        let looked = recv(&self.0, &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        looked.map_or_else(|error| error != Errno::AGAIN && error != Errno::INTR, |(bytes, _)| bytes == 0)
    }

    /// Closes it, whoever else holds it.
    pub fn end(&self) {
        // Fails if the other side was quicker.
        let _ = shutdown(&self.0, Shutdown::Both);
    }

    fn send_with(&self, packet: &[u8], descriptors: &[OwnedFd], flags: SendFlags) -> io::Result<()> {
        if packet.len() <= PACKET_BYTES_MAX {
            let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            return self.send_packet(packet, &borrowed, flags);
        }
        let long = memory_file(packet)?;
        let borrowed: Vec<_> = std::iter::once(long.as_fd()).chain(descriptors.iter().map(AsFd::as_fd)).collect();
        self.send_packet(Long(packet.len()).to_string().as_bytes(), &borrowed, flags)
    }

    fn send_packet(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>], flags: SendFlags) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        retry_on_intr(|| sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, flags))?;
        Ok(())
    }

    /// The next packet's text; `None` at the end. Only texts are believed: a descriptor that comes with a packet is read if the packet
    /// says that it holds its text, and closed.
    pub fn receive<'p>(&self, into: &'p mut Packet) -> io::Result<Option<&'p [u8]>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        self.receive_into(into, &mut space, None)
    }

    /// The next packet's text, and the descriptors that came with it but the one of a long text: for a child, which believes its server.
    pub fn receive_all<'p>(
        &self,
        into: &'p mut Packet,
        descriptors: &mut Vec<OwnedFd>,
    ) -> io::Result<Option<&'p [u8]>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        self.receive_into(into, &mut space, Some(descriptors))
    }

    fn receive_into<'p>(
        &self,
        into: &'p mut Packet,
        space: &mut [MaybeUninit<u8>],
        others: Option<&mut Vec<OwnedFd>>,
    ) -> io::Result<Option<&'p [u8]>> {
        let mut control = RecvAncillaryBuffer::new(space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = retry_on_intr(|| recvmsg(&self.0, &mut [IoSliceMut::new(&mut into.short)], &mut control, flags))?;
        if got.flags.contains(ReturnFlags::TRUNC) {
            return Err(invalid(format!("a packet of more than {PACKET_BYTES_MAX} bytes")));
        }
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let mut descriptors = descriptors.flatten().peekable();
        let text = into.short.get(..got.bytes).unwrap_or_default();
        let long = descriptors.peek().is_some().then(|| Long::read(text)).flatten();
        let long = long.and_then(|Long(len)| Some((descriptors.next()?, len)));
        if let Some(others) = others {
            others.extend(descriptors);
        }
        if let Some((descriptor, len)) = long {
            into.long = read_long(descriptor, len)?;
            return Ok(Some(&into.long));
        }
        Ok((!text.is_empty()).then_some(text))
    }

    /// Whether something arrives in that time. Finer than [`Channel::set_patience`], which counts in the system's ticks.
    pub fn wait(&self, at_most: Duration) -> io::Result<bool> {
        let at_most = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut polled, Some(&at_most)) {
            Ok(count) => Ok(count > 0),
            // Interrupted: the caller has other work anyway.
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits no longer than this for a packet; `None` waits for ever.
    pub fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        use rustix::net::sockopt::{Timeout, set_socket_timeout};
        Ok(set_socket_timeout(&self.0, Timeout::Recv, patience)?)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Channel {
        Channel(socket)
    }
}

/// A memory file with these bytes, for another process to read or load.
pub fn memory_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("nerite-text", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

fn read_long(descriptor: OwnedFd, len: usize) -> io::Result<Vec<u8>> {
    if len > LONG_BYTES_MAX {
        return Err(invalid(format!("a text of {len} bytes, at most {LONG_BYTES_MAX} are read")));
    }
    let (mut file, mut text) = (File::from(descriptor), Vec::new());
    file.rewind()?;
    // Read, never mapped: who made the file may shrink it.
    file.take(len as u64).read_to_end(&mut text)?;
    if text.len() < len {
        return Err(invalid(format!("a text of {len} bytes has {}", text.len())));
    }
    Ok(text)
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[track_caller]
    fn check(text: &str) {
        let (ours, theirs) = Channel::pair().unwrap();
        ours.send(text, &[]).unwrap();
        let mut packet = Packet::default();
        let got = Channel(theirs).receive(&mut packet).unwrap().unwrap().len();
        assert!(
            packet.short.starts_with(text.as_bytes()) || packet.long == text.as_bytes(),
            "{got} of {} bytes",
            text.len()
        );
        assert_eq!(got, text.len());
    }

    #[test]
    fn texts_of_any_length_arrive_whole() {
        check("{}");
        check(&"x".repeat(PACKET_BYTES_MAX));
        check(&"x".repeat(PACKET_BYTES_MAX + 1));
        check(&"y".repeat(3 << 20));
    }

    #[test]
    fn the_end_is_told_from_a_packet() {
        let (ours, theirs) = Channel::pair().unwrap();
        ours.send("{}", &[]).unwrap();
        drop(ours);
        let theirs = Channel(theirs);
        let mut got = Packet::default();
        assert!(theirs.receive(&mut got).unwrap().is_some());
        assert!(theirs.receive(&mut got).unwrap().is_none());
        assert_eq!(theirs.send("{}", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[track_caller]
    fn check_refused(packet: &str, file: &[u8], words: &str) {
        let (ours, theirs) = Channel::pair().unwrap();
        let file = memory_file(file).unwrap();
        ours.send_packet(packet.as_bytes(), &[file.as_fd()], SendFlags::empty()).unwrap();
        let error = Channel(theirs).receive(&mut Packet::default()).unwrap_err().to_string();
        assert_eq!(error, words);
    }

    #[test]
    fn a_long_text_that_is_not_what_was_said_is_refused() {
        check_refused(r#"{"long":10}"#, b"short", "a text of 10 bytes has 5");
        check_refused(r#"{"long":68719476736}"#, b"", "a text of 68719476736 bytes, at most 67108864 are read");
    }

    #[test]
    fn a_receiver_with_patience_gives_up() {
        let (ours, _theirs) = Channel::pair().unwrap();
        ours.set_patience(Some(Duration::from_millis(1))).unwrap();
        assert_eq!(ours.receive(&mut Packet::default()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
