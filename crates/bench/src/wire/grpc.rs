//! How is a gRPC request sent, and its response read to the end?

use std::io::{ErrorKind, IoSlice, Read, Result, Write};
use std::time::Instant;

use super::frames::{self, Frame, HEAD_BYTES, Headers, Kind, Settings};
use super::{Connection, Endpoint, Socket, Times, bad};
use crate::options::Compression;

const BUFFER_BYTES: usize = 256 << 10;
/// The bytes that a peer may send before it gets our settings and window updates.
const WINDOW_DEFAULT: i64 = 65_535;
/// The received bytes after which the connection's window is enlarged again.
const REOPEN_BYTES: u32 = 512 << 20;
/// Frames that go out in one call.
const FRAMES_MAX: usize = 32;
/// Bytes before a message: whether it is compressed, and its length.
pub(super) const MESSAGE_HEAD_BYTES: usize = 5;

/// One connection of HTTP/2, with one stream at a time.
pub(crate) struct Grpc {
    socket: Socket,
    headers: Headers,
    buffer: Vec<u8>,
    /// The part of `buffer` that is read from the socket but not yet looked at.
    unread: std::ops::Range<usize>,
    settings: Settings,
    /// What may be sent on all streams together, and on the one under way.
    window: i64,
    stream_window: i64,
    pub(super) stream: u32,
    received: u32,
}

impl Grpc {
    /// Connects to the server. Each request sends `headers`.
    pub(crate) fn connect(endpoint: &Endpoint, headers: Headers) -> Result<Grpc> {
        let mut socket = Socket::connect(endpoint)?;
        socket.write_all(&frames::greeting())?;
        socket.flush()?;
        let mut connection = Grpc {
            socket,
            headers,
            buffer: vec![0; BUFFER_BYTES],
            unread: 0..0,
            settings: Settings::default(),
            window: WINDOW_DEFAULT,
            stream_window: WINDOW_DEFAULT,
            // The first request is sent on stream 1.
            stream: u32::MAX,
            received: 0,
        };
        while !connection.settings.known {
            connection.next()?;
        }
        Ok(connection)
    }

    /// Begins the next stream. Returns the frame with its headers.
    pub(super) fn begin(&mut self) -> Vec<u8> {
        self.stream = self.stream.wrapping_add(2);
        self.stream_window = self.settings.window_bytes.into();
        let is_first = self.stream == 1;
        self.headers.frame(self.stream, is_first || !self.settings.indexes, self.settings.indexes)
    }

    /// Sends `head`, and a message on the present stream in as few calls as windows and frame size allow. `ends`: nothing follows on the stream.
    pub(super) fn send(&mut self, mut head: Vec<u8>, message: &[u8], ends: bool) -> Result<()> {
        let mut rest = message;
        while !rest.is_empty() {
            while self.window.min(self.stream_window) <= 0 {
                self.next()?;
            }
            let mut heads = Vec::with_capacity(FRAMES_MAX);
            let mut pieces = Vec::with_capacity(FRAMES_MAX);
            while !rest.is_empty() && heads.len() < FRAMES_MAX && self.window.min(self.stream_window) > 0 {
                let room = self.window.min(self.stream_window).min(self.settings.frame_bytes_max.into());
                let (piece, later) = rest.split_at(rest.len().min(room as usize));
                self.window -= piece.len() as i64;
                self.stream_window -= piece.len() as i64;
                heads.push(frames::head(Kind::DATA, u8::from(ends && later.is_empty()), self.stream, piece.len()));
                pieces.push(piece);
                rest = later;
            }
            let head = std::mem::take(&mut head);
            let mut slices = vec![IoSlice::new(&head)];
            slices
                .extend(heads.iter().zip(&pieces).flat_map(|(head, piece)| [IoSlice::new(head), IoSlice::new(piece)]));
            write_all(&mut self.socket, &mut slices)?;
        }
        self.socket.flush()
    }

    /// Reads one frame, and applies it to the connection.
    fn next(&mut self) -> Result<Frame> {
        self.next_kept(None)
    }

    /// As [`Grpc::next`]. The bytes of messages are added to `messages`, or skipped.
    pub(super) fn next_kept(&mut self, messages: Option<&mut Vec<u8>>) -> Result<Frame> {
        self.fill(HEAD_BYTES)?;
        let frame = Frame::read(&self.buffer[self.unread.start..][..HEAD_BYTES]);
        self.unread.start += HEAD_BYTES;
        if frame.kind == Kind::DATA {
            self.take_data(frame.len, messages)?;
        } else {
            self.fill(frame.len)?;
            let at = self.unread.start..self.unread.start + frame.len;
            self.unread.start = at.end;
            self.handle_frame(&frame, at)?;
        }
        Ok(frame)
    }

    fn handle_frame(&mut self, frame: &Frame, at: std::ops::Range<usize>) -> Result<()> {
        let body = &self.buffer[at];
        match frame.kind {
            Kind::SETTINGS if frame.flags & frames::ACK == 0 => {
                let before = i64::from(self.settings.window_bytes);
                self.settings.read(body);
                self.stream_window += i64::from(self.settings.window_bytes) - before;
                self.socket.write_all(&frames::head(Kind::SETTINGS, frames::ACK, 0, 0))
            }
            Kind::PING if frame.flags & frames::ACK == 0 => {
                let mut answer = frames::head(Kind::PING, frames::ACK, 0, body.len()).to_vec();
                answer.extend_from_slice(body);
                self.socket.write_all(&answer)
            }
            Kind::WINDOW_UPDATE => {
                let more = i64::from(frames::number(body));
                match frame.stream {
                    0 => self.window += more,
                    stream if stream == self.stream => self.stream_window += more,
                    _ => {}
                }
                Ok(())
            }
            Kind::GOAWAY => {
                Err(bad(&format!("goodbye: {}", String::from_utf8_lossy(body.get(8..).unwrap_or_default()))))
            }
            Kind::RST_STREAM if frame.stream == self.stream => {
                Err(bad(&format!("stream reset with code {}", frames::number(body))))
            }
            _ => Ok(()),
        }
    }

    /// Has at least `len` unread bytes in the buffer.
    fn fill(&mut self, len: usize) -> Result<()> {
        if len > self.buffer.len() {
            return Err(bad("a control frame larger than any"));
        }
        if self.unread.start + len > self.buffer.len() {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        while self.unread.len() < len {
            if self.unread.is_empty() {
                self.unread = 0..0;
            }
            match self.socket.read(&mut self.buffer[self.unread.end..])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => self.unread.end += read,
            }
        }
        Ok(())
    }

    /// Takes `len` bytes of a message, and enlarges the windows in time.
    fn take_data(&mut self, len: usize, mut messages: Option<&mut Vec<u8>>) -> Result<()> {
        let is_kept = messages.is_some();
        let mut keep = |bytes: &[u8]| {
            if let Some(messages) = messages.as_mut() {
                messages.extend_from_slice(bytes);
            }
        };
        let here = len.min(self.unread.len());
        keep(&self.buffer[self.unread.start..][..here]);
        self.unread.start += here;
        let mut left = len - here;
        while left > 0 {
            let room = left.min(self.buffer.len());
            match self.socket.read(&mut self.buffer[..room])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => {
                    keep(&self.buffer[..read]);
                    left -= read;
                }
            }
        }
        self.received += len as u32;
        if self.received > REOPEN_BYTES {
            // The stream of a unary call is too short for this. That of kept messages is the only one of its connection.
            for stream in [0, self.stream].into_iter().take(if is_kept { 2 } else { 1 }) {
                let mut update = frames::head(Kind::WINDOW_UPDATE, 0, stream, 4).to_vec();
                update.extend(self.received.to_be_bytes());
                self.socket.write_all(&update)?;
            }
            self.received = 0;
        }
        Ok(())
    }
}

impl Connection for Grpc {
    fn exchange(&mut self, request: &[u8]) -> Result<Times> {
        let start = Instant::now();
        let head = self.begin();
        self.send(head, request, true)?;
        let sent = Instant::now();
        let (mut first, mut is_answered) = (None, false);
        loop {
            let frame = self.next()?;
            if frame.stream != self.stream {
                continue;
            }
            let first = *first.get_or_insert_with(Instant::now);
            is_answered |= frame.kind == Kind::DATA && frame.len > 0;
            let ends = matches!(frame.kind, Kind::DATA | Kind::HEADERS) && frame.flags & frames::END_STREAM != 0;
            if ends && is_answered {
                return Ok(Times { start, sent, first, end: Instant::now(), requests: 1, responses: 1 });
            }
            if ends {
                // A refusal has only headers. Its text is compressed there, and is not read here.
                return Err(bad("the server refused a request"));
            }
        }
    }
}

/// A message with what gRPC puts before it: whether it is compressed, and its length.
pub(crate) fn framed(message: &[u8], compression: Compression) -> Vec<u8> {
    let compressed = match compression {
        Compression::None => None,
        Compression::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(message).and_then(|()| encoder.finish()).ok()
        }
        Compression::Deflate => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(message).and_then(|()| encoder.finish()).ok()
        }
    };
    let body = compressed.as_deref().unwrap_or(message);
    let mut framed = Vec::with_capacity(body.len() + MESSAGE_HEAD_BYTES);
    framed.push(u8::from(compressed.is_some()));
    framed.extend((body.len() as u32).to_be_bytes());
    framed.extend(body);
    framed
}

fn write_all(socket: &mut Socket, mut slices: &mut [IoSlice<'_>]) -> Result<()> {
    while !slices.is_empty() {
        match socket.write_vectored(slices)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            written => IoSlice::advance_slices(&mut slices, written),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_carries_its_length_and_whether_it_is_compressed() {
        assert_eq!(framed(b"abc", Compression::None), [0, 0, 0, 0, 3, b'a', b'b', b'c']);
        let zeros = framed(&[0; 1000], Compression::Gzip);
        assert_eq!(
            (zeros[0], zeros.len() - 5),
            (1, u32::from_be_bytes([zeros[1], zeros[2], zeros[3], zeros[4]]) as usize)
        );
        assert!(zeros.len() < 100);
    }
}
