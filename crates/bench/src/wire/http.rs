//! How is an HTTP request sent, and its response read to the end?

use std::io::{ErrorKind, Read, Result, Write};
use std::time::Instant;

use super::{Connection, Endpoint, Socket, Times, bad};

const BUFFER_BYTES: usize = 256 << 10;
/// The most bytes of a refusal's text that are kept.
const REFUSAL_BYTES_MAX: usize = 500;

/// One connection of HTTP/1.1.
pub(crate) struct Http {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Http {
    /// Connects to the server.
    pub(crate) fn connect(endpoint: &Endpoint) -> Result<Http> {
        Ok(Http { socket: Socket::connect(endpoint)?, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Reads until the head is complete. Returns its length, the number of bytes read so far, and when the first of them was.
    fn head(&mut self) -> Result<(usize, usize, Instant)> {
        let (mut have, mut first) = (0, None);
        loop {
            let room = self.buffer.get_mut(have..).filter(|room| !room.is_empty());
            let read = self.socket.read(room.ok_or_else(|| bad("an endless head"))?)?;
            if read == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let first = *first.get_or_insert_with(Instant::now);
            have += read;
            if let Some(at) = self.buffer[..have].windows(4).position(|four| four == b"\r\n\r\n") {
                return Ok((at + 4, have, first));
            }
        }
    }
}

impl Connection for Http {
    fn exchange(&mut self, request: &[u8]) -> Result<Times> {
        let start = Instant::now();
        self.socket.write_all(request)?;
        self.socket.flush()?;
        let sent = Instant::now();
        let (head_len, have, first) = self.head()?;
        let (is_ok, body_len) = parse(&self.buffer[..head_len]).ok_or_else(|| bad("a head without a length"))?;
        let mut left = (head_len + body_len).saturating_sub(have);
        if !is_ok {
            // A refusal is short, so its body has mostly come with its head.
            let text = String::from_utf8_lossy(&self.buffer[head_len..have.min(head_len + REFUSAL_BYTES_MAX)]);
            return Err(bad(&text));
        }
        while left > 0 {
            let room = left.min(self.buffer.len());
            match self.socket.read(&mut self.buffer[..room])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => left -= read,
            }
        }
        Ok(Times { start, sent, first, end: Instant::now(), requests: 1, responses: 1 })
    }
}

/// Whether the head says 200, and how long the body is.
fn parse(head: &[u8]) -> Option<(bool, usize)> {
    let head = std::str::from_utf8(head).ok()?;
    let mut lines = head.split("\r\n");
    let is_ok = lines.next()?.split(' ').nth(1)? == "200";
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        if name.eq_ignore_ascii_case("content-length") { value.trim().parse().ok() } else { None }
    });
    Some((is_ok, length?))
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
