//! How are packets and descriptors sent between the server and a model's process?

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, MemfdFlags, Mode, OFlags, fcntl_get_seals, fstat, fstatfs, memfd_create, open, statfs};
use rustix::io::{Errno, ioctl_fionread, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recv, recvmsg, sendmsg, shutdown, socketpair,
};

use crate::limits::{DESCRIPTORS_MAX, LONG_BYTES_MAX, PACKET_BYTES_MAX};
use crate::packets::Long;

/// The server's end of a pair of packet sockets. Any thread may send. One thread at a time may receive.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    /// Whether the peer closed its end with unread packets.
    left_unread: AtomicBool,
    /// How many notices ([`Channel::try_notice`]) were begun, and how many of them are over.
    notices_begun: AtomicU64,
    notices_over: AtomicU64,
}

/// The number of notices when a packet was sent. `None` if one was being sent at that time.
pub(crate) type Mark = Option<u64>;

/// The buffer for received packets.
pub struct Packet {
    short: Box<[u8]>,
    long: Vec<u8>,
}

/// A text that is too long for a packet, in a file that the peer has passed.
#[derive(Debug)]
pub struct LongText {
    file: OwnedFd,
    len: usize,
}

/// The result of one receive call.
#[derive(Debug)]
pub enum Received<'p> {
    /// The peer has closed the channel.
    End,
    /// A packet's text.
    Text(&'p [u8]),
    /// A text that is to be read from its file, which takes longer.
    Long(LongText),
}

/// A packet as the kernel gave it.
enum Got {
    /// The number of bytes; 0 at the end.
    Bytes(usize),
    Long(LongText),
}

impl Default for Packet {
    fn default() -> Packet {
        Packet { short: vec![0; PACKET_BYTES_MAX].into(), long: Vec::new() }
    }
}

impl Channel {
    /// A pair: the server's end, and that of the process.
    pub fn pair() -> io::Result<(Channel, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(io::Error::from)?;
        Ok((Channel::from(ours), theirs))
    }

    /// Receives again after ECONNRESET. The kernel reports it once, to a sender or a receiver, if the peer closed its end with unread packets, before the
    /// packets that the peer had sent itself.
    fn retry_after_reset<T>(&self, mut receive: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
        match retry_on_intr(&mut receive) {
            Err(Errno::CONNRESET) => {
                self.left_unread.store(true, Ordering::Release);
                retry_on_intr(receive)
            }
            result => result,
        }
    }

    /// Sends a packet that belongs to no request, if that can be done at once.
    pub(crate) fn try_notice(&self, text: &str) -> io::Result<()> {
        self.notices_begun.fetch_add(1, Ordering::SeqCst);
        let sent = self.try_send(text);
        self.notices_over.fetch_add(1, Ordering::SeqCst);
        sent
    }

    /// Returns a mark for [`Channel::left_last_unread`], which refers to the packet that this thread sends next.
    pub(crate) fn mark(&self) -> Mark {
        let begun = self.notices_begun.load(Ordering::SeqCst);
        (self.notices_over.load(Ordering::SeqCst) == begun).then_some(begun)
    }

    /// Whether the peer has closed its end, and had not read the packet that was sent after this mark. Packets are read in order, so the last one was
    /// unread if any was. After a later notice this is not known.
    pub(crate) fn left_last_unread(&self, mark: Mark) -> bool {
        self.left_unread.load(Ordering::Acquire) && mark == Some(self.notices_begun.load(Ordering::SeqCst))
    }

    /// Sends a packet. Waits if the peer has not read enough of the earlier ones.
    pub fn send(&self, packet: impl AsRef<[u8]>, descriptors: &[OwnedFd]) -> io::Result<()> {
        self.send_with(packet.as_ref(), descriptors, SendFlags::NOSIGNAL)
    }

    /// Sends a packet if it can be sent at once.
    pub fn try_send(&self, text: &str) -> io::Result<()> {
        self.try_send_all(text, &[])
    }

    /// As [`Channel::try_send`], with descriptors.
    pub fn try_send_all(&self, packet: impl AsRef<[u8]>, descriptors: &[OwnedFd]) -> io::Result<()> {
        self.send_with(packet.as_ref(), descriptors, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    /// Waits until a packet can be sent, or the peer has closed the channel.
    pub fn wait_for_space(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], None)).map(drop)?)
    }

    /// Whether the peer has closed it, and all packets were received.
    pub fn has_ended(&self) -> bool {
        let looked =
            self.retry_after_reset(|| recv(&self.socket, &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT));
        looked.map_or_else(|error| error != Errno::AGAIN && error != Errno::INTR, |(bytes, _)| bytes == 0)
    }

    /// How many bytes of packets were sent and not received yet.
    pub(crate) fn unread_bytes(&self) -> u64 {
        ioctl_fionread(&self.socket).unwrap_or_default()
    }

    /// Closes it, even if other references exist.
    pub fn end(&self) {
        // This fails if the peer has closed it first.
        let _ = shutdown(&self.socket, Shutdown::Both);
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
        let sent = retry_on_intr(|| sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags));
        if sent == Err(Errno::CONNRESET) {
            self.left_unread.store(true, Ordering::Release);
        }
        sent?;
        Ok(())
    }

    /// The next packet's text. `None` at the end. Only texts are accepted. If the packet says that its text is in a
    /// file, the text is read from the descriptor. All descriptors are closed.
    pub fn receive<'p>(&self, into: &'p mut Packet) -> io::Result<Option<&'p [u8]>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let got = self.receive_into(&mut into.short, &mut space, None, RecvFlags::empty())?;
        into.text(got)
    }

    /// As [`Channel::receive`], for a packet that is there already; [`io::ErrorKind::WouldBlock`] if there is none. A
    /// long text is not read.
    pub fn try_receive<'p>(&self, into: &'p mut Packet) -> io::Result<Received<'p>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        Ok(match self.receive_into(&mut into.short, &mut space, None, RecvFlags::DONTWAIT)? {
            Got::Long(long) => Received::Long(long),
            Got::Bytes(0) => Received::End,
            Got::Bytes(bytes) => Received::Text(into.short.get(..bytes).unwrap_or_default()),
        })
    }

    /// The next packet's text, and its descriptors without that of a long text. This is for a child, which trusts its server.
    pub fn receive_all<'p>(
        &self,
        into: &'p mut Packet,
        descriptors: &mut Vec<OwnedFd>,
    ) -> io::Result<Option<&'p [u8]>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let got = self.receive_into(&mut into.short, &mut space, Some(descriptors), RecvFlags::empty())?;
        into.text(got)
    }

    fn receive_into(
        &self,
        short: &mut [u8],
        space: &mut [MaybeUninit<u8>],
        others: Option<&mut Vec<OwnedFd>>,
        flags: RecvFlags,
    ) -> io::Result<Got> {
        let mut control = RecvAncillaryBuffer::new(space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let got =
            self.retry_after_reset(|| recvmsg(&self.socket, &mut [IoSliceMut::new(short)], &mut control, flags))?;
        if got.flags.contains(ReturnFlags::TRUNC) {
            return Err(invalid(format!("a packet of more than {PACKET_BYTES_MAX} bytes")));
        }
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let mut descriptors = descriptors.flatten().peekable();
        let text = short.get(..got.bytes).unwrap_or_default();
        let long = descriptors.peek().is_some().then(|| Long::read(text)).flatten();
        let long = long.and_then(|Long(len)| Some(LongText { file: descriptors.next()?, len }));
        if let Some(others) = others {
            others.extend(descriptors);
        }
        Ok(long.map_or(Got::Bytes(got.bytes), Got::Long))
    }

    /// Whether a packet arrives within that time. It is more precise than [`Channel::set_receive_timeout`], which has the resolution of the kernel's ticks.
    pub fn wait(&self, at_most: Duration) -> io::Result<bool> {
        let at_most = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut polled, Some(&at_most)) {
            Ok(count) => Ok(count > 0),
            // A signal interrupted the wait. The caller has other work anyway.
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the channel: each end reads what has arrived, and then the end.
    pub fn shut_down(&self) {
        // This fails if the other end was closed before.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Sets the longest wait for a packet. `None` has no limit.
    pub fn set_receive_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        use rustix::net::sockopt::{Timeout, set_socket_timeout};
        Ok(set_socket_timeout(&self.socket, Timeout::Recv, timeout)?)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Channel {
        let (notices_begun, notices_over) = (AtomicU64::new(0), AtomicU64::new(0));
        Channel { socket, left_unread: AtomicBool::new(false), notices_begun, notices_over }
    }
}

/// A memory file with these bytes, for another process to read or load.
pub fn memory_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    let made = match memfd_create("nerite-text", MemfdFlags::CLOEXEC) {
        // A sandbox that limits memory allows no memory files, because the limit does not count them.
        Err(Errno::PERM) => {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR)
        }
        made => made,
    };
    let mut file = File::from(made?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

impl Packet {
    /// The text of what was received. `None` at the end.
    fn text(&mut self, got: Got) -> io::Result<Option<&[u8]>> {
        match got {
            Got::Long(long) => {
                self.long = long.read()?;
                Ok(Some(&self.long))
            }
            Got::Bytes(0) => Ok(None),
            Got::Bytes(bytes) => Ok(self.short.get(..bytes)),
        }
    }
}

impl LongText {
    /// Reads it if it has no more than `most` bytes.
    pub(crate) fn read_up_to(self, most: usize) -> io::Result<Option<Vec<u8>>> {
        if self.len > most {
            log::warn!(
                "a model's process sent a line of {} bytes, which is left out; at most {most} are read",
                self.len
            );
            return Ok(None);
        }
        self.read().map(Some)
    }

    /// Reads it.
    pub fn read(self) -> io::Result<Vec<u8>> {
        let LongText { file, len } = self;
        if len > LONG_BYTES_MAX {
            return Err(invalid(format!("a text of {len} bytes, at most {LONG_BYTES_MAX} are read")));
        }
        check_file(&file)?;
        let (mut file, mut text) = (File::from(file), Vec::new());
        file.rewind()?;
        // The file is read and never mapped, because the process that made it may shrink it.
        file.take(len as u64).read_to_end(&mut text)?;
        if text.len() < len {
            return Err(invalid(format!("a text of {len} bytes has {}", text.len())));
        }
        Ok(text)
    }
}

/// Refuses descriptors whose peer could make a read wait: pipes, counters, and files of file systems that a process serves. A memory file is in
/// memory. Other files must be on a file system of the kind that has the server's own temporary files.
fn check_file(file: &OwnedFd) -> io::Result<()> {
    if FileType::from_raw_mode(fstat(file)?.st_mode) != FileType::RegularFile {
        return Err(invalid("a text in a descriptor that is no file".to_owned()));
    }
    if fcntl_get_seals(file).is_ok() || fstatfs(file)?.f_type == statfs(std::env::temp_dir())?.f_type {
        return Ok(());
    }
    Err(invalid("a text in a file that is neither in memory nor where temporary files are".to_owned()))
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
        let got = Channel::from(theirs).receive(&mut packet).unwrap().unwrap().len();
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
    fn packets_of_a_peer_that_did_not_read_arrive() {
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = Channel::from(theirs);
        ours.send("unread", &[]).unwrap();
        theirs.send("last", &[]).unwrap();
        drop(theirs);
        assert!(!ours.has_ended());
        let mut got = Packet::default();
        assert_eq!(ours.receive(&mut got).unwrap(), Some(&b"last"[..]));
        assert!(ours.receive(&mut got).unwrap().is_none());
    }

    #[test]
    fn the_end_is_told_from_a_packet() {
        let (ours, theirs) = Channel::pair().unwrap();
        ours.send("{}", &[]).unwrap();
        drop(ours);
        let theirs = Channel::from(theirs);
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
        let error = Channel::from(theirs).receive(&mut Packet::default()).unwrap_err().to_string();
        assert_eq!(error, words);
    }

    #[test]
    fn a_long_text_of_another_length_is_refused() {
        check_refused(r#"{"long":10}"#, b"short", "a text of 10 bytes has 5");
        check_refused(r#"{"long":68719476736}"#, b"", "a text of 68719476736 bytes, at most 67108864 are read");
    }

    #[test]
    fn a_long_text_is_read_from_files_only() {
        let counter = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let (pipe, _writer) = io::pipe().unwrap();
        let pipe = OwnedFd::from(pipe);
        let process = OwnedFd::from(File::open("/proc/self/status").unwrap());
        let no_file = "a text in a descriptor that is no file";
        let elsewhere = "a text in a file that is neither in memory nor where temporary files are";
        for (descriptor, words) in [(counter, no_file), (pipe, no_file), (process, elsewhere)] {
            let (ours, theirs) = Channel::pair().unwrap();
            ours.send_packet(br#"{"long":10}"#, &[descriptor.as_fd()], SendFlags::empty()).unwrap();
            let error = Channel::from(theirs).receive(&mut Packet::default()).unwrap_err();
            assert_eq!(error.to_string(), words);
        }
        let (ours, theirs) = Channel::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        ours.send_packet(br#"{"long":10}"#, &[file.as_fd()], SendFlags::empty()).unwrap();
        assert_eq!(Channel::from(theirs).receive(&mut Packet::default()).unwrap(), Some(&b"0123456789"[..]));
    }

    #[test]
    fn work_that_would_wait_is_left_to_another_thread() {
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = Channel::from(theirs);
        theirs.send("y".repeat(PACKET_BYTES_MAX + 1), &[]).unwrap();
        let mut packet = Packet::default();
        let Ok(Received::Long(long)) = ours.try_receive(&mut packet) else { panic!("it is not read") };
        assert_eq!(long.read().unwrap().len(), PACKET_BYTES_MAX + 1);
        let sent = std::iter::from_fn(|| ours.try_send("{}").ok()).count();
        assert_eq!(ours.try_send("{}").unwrap_err().kind(), io::ErrorKind::WouldBlock);
        (0..sent).for_each(|_| assert!(theirs.receive(&mut packet).unwrap().is_some()));
        ours.wait_for_space().unwrap();
        assert!(ours.try_send("{}").is_ok());
    }

    #[test]
    fn a_receiver_with_patience_gives_up() {
        let (ours, _theirs) = Channel::pair().unwrap();
        assert_eq!(ours.try_receive(&mut Packet::default()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        ours.set_receive_timeout(Some(Duration::from_millis(1))).unwrap();
        assert_eq!(ours.receive(&mut Packet::default()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
