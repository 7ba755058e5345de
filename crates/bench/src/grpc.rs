//! How is a gRPC request sent and its answer skipped?

mod frames;

use std::io::{Error, ErrorKind, IoSlice, Read, Result, Write};
use std::sync::Arc;

use self::frames::{Frame, HEAD_BYTES, Kind, Settings};
use crate::exchange::Exchange;
use crate::payload::Payload;
use crate::socket::Socket;

const BUFFER_BYTES: usize = 256 << 10;
/// The bytes that a peer may send before it gets our settings and window updates.
const WINDOW_DEFAULT: i64 = 65_535;
/// The received bytes after which the connection's window is enlarged again.
const REOPEN_BYTES: u32 = 512 << 20;
/// Frames that go out in one call.
const FRAMES_MAX: usize = 32;

/// One connection that repeats the same request, each time on a new stream.
pub(crate) struct Connection {
    socket: Socket,
    payload: Arc<Payload>,
    authority: String,
    buffer: Vec<u8>,
    /// The part of `buffer` that is read from the socket but not yet looked at.
    unread: std::ops::Range<usize>,
    settings: Settings,
    /// What may be sent on all streams together, and on the one under way.
    window: i64,
    stream_window: i64,
    stream: u32,
    received: u32,
}

impl Connection {
    pub(crate) fn new(address: &str, payload: Arc<Payload>) -> Result<Connection> {
        let mut socket = Socket::connect(address)?;
        socket.write_all(&frames::greeting())?;
        let authority = if address.starts_with("unix:") { "localhost" } else { address };
        let mut connection = Connection {
            socket,
            payload,
            authority: authority.to_owned(),
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

    /// Sends the message in as few calls as windows and frame size allow.
    fn send(&mut self) -> Result<()> {
        let payload = Arc::clone(&self.payload);
        let first = self.stream == 1;
        let mut head =
            frames::headers(self.stream, first || !self.settings.indexes, self.settings.indexes, &self.authority);
        let mut rest = payload.bytes.as_slice();
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
                heads.push(frames::head(Kind::DATA, u8::from(later.is_empty()), self.stream, piece.len()));
                pieces.push(piece);
                rest = later;
            }
            let head = std::mem::take(&mut head);
            let mut slices = vec![IoSlice::new(&head)];
            slices
                .extend(heads.iter().zip(&pieces).flat_map(|(head, piece)| [IoSlice::new(head), IoSlice::new(piece)]));
            write_all(&mut self.socket, &mut slices)?;
        }
        Ok(())
    }

    /// Reads one frame, applies it to the connection, and returns its kind.
    fn next(&mut self) -> Result<Frame> {
        self.fill(HEAD_BYTES)?;
        let frame = Frame::read(&self.buffer[self.unread.start..][..HEAD_BYTES]);
        self.unread.start += HEAD_BYTES;
        if frame.kind == Kind::DATA {
            self.skip(frame.len)?;
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

    /// Skips `len` bytes of a tensor, and enlarges the connection's window in time.
    fn skip(&mut self, len: usize) -> Result<()> {
        let here = len.min(self.unread.len());
        self.unread.start += here;
        let mut left = len - here;
        while left > 0 {
            let room = left.min(self.buffer.len());
            match self.socket.read(&mut self.buffer[..room])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => left -= read,
            }
        }
        self.received += len as u32;
        if self.received > REOPEN_BYTES {
            let mut update = frames::head(Kind::WINDOW_UPDATE, 0, 0, 4).to_vec();
            update.extend(self.received.to_be_bytes());
            self.received = 0;
            self.socket.write_all(&update)?;
        }
        Ok(())
    }
}

impl Exchange for Connection {
    fn once(&mut self) -> Result<()> {
        self.stream = self.stream.wrapping_add(2);
        self.stream_window = self.settings.window_bytes.into();
        self.send()?;
        let mut answered = false;
        loop {
            let frame = self.next()?;
            if frame.stream != self.stream {
                continue;
            }
            answered |= frame.kind == Kind::DATA && frame.len > 0;
            let ends = matches!(frame.kind, Kind::DATA | Kind::HEADERS) && frame.flags & frames::END_STREAM != 0;
            if ends {
                // A refusal has only headers. Its text is compressed there, and is not read here.
                return if answered { Ok(()) } else { Err(bad("a refusal without a message")) };
            }
        }
    }
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

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}
