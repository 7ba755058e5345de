//! How is an HTTP request sent and its answer skipped?

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::sync::Arc;

use crate::exchange::Exchange;
use crate::payload::Payload;
use crate::socket::Socket;

const BUFFER_BYTES: usize = 256 << 10;
/// The most bytes of a refusal's text that are kept.
const WORDS_MAX: usize = 500;

/// One connection that sends the same request again and again.
pub(crate) struct Connection {
    socket: Socket,
    payload: Arc<Payload>,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(address: &str, payload: Arc<Payload>) -> Result<Connection> {
        Ok(Connection { socket: Socket::connect(address)?, payload, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Reads until the head is complete. Returns its length and the number of bytes read so far.
    fn head(&mut self) -> Result<(usize, usize)> {
        let mut have = 0;
        loop {
            let room = self.buffer.get_mut(have..).filter(|room| !room.is_empty());
            let read = self.socket.read(room.ok_or_else(|| bad("an endless head"))?)?;
            if read == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            have += read;
            if let Some(at) = self.buffer[..have].windows(4).position(|four| four == b"\r\n\r\n") {
                return Ok((at + 4, have));
            }
        }
    }
}

impl Exchange for Connection {
    fn once(&mut self) -> Result<()> {
        self.socket.write_all(&self.payload.bytes)?;
        let (head_len, have) = self.head()?;
        let (ok, body_len) = parse(&self.buffer[..head_len]).ok_or_else(|| bad("a head without a length"))?;
        let mut left = (head_len + body_len).saturating_sub(have);
        if !ok {
            let words = String::from_utf8_lossy(&self.buffer[..have.min(WORDS_MAX)]).into_owned();
            return Err(bad(&words));
        }
        while left > 0 {
            let room = left.min(self.buffer.len());
            match self.socket.read(&mut self.buffer[..room])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => left -= read,
            }
        }
        Ok(())
    }
}

/// Whether the head says 200, and how long the body is.
fn parse(head: &[u8]) -> Option<(bool, usize)> {
    let head = std::str::from_utf8(head).ok()?;
    let mut lines = head.split("\r\n");
    let ok = lines.next()?.split(' ').nth(1)? == "200";
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        if name.eq_ignore_ascii_case("content-length") { value.trim().parse().ok() } else { None }
    });
    Some((ok, length?))
}

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(head: &str, read: Option<(bool, usize)>) {
        assert_eq!(parse(head.as_bytes()), read, "{head}");
    }

    #[test]
    fn a_head_has_success_and_length() {
        check("HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n", Some((true, 12)));
        check("HTTP/1.1 400 Bad Request\r\nA: b\r\nContent-Length:0\r\n\r\n", Some((false, 0)));
        check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", None);
    }
}
