//! What does a proxy say about the client of a connection?
//!
//! Version 2 of the PROXY protocol, section 2.2 of <https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt>:
//!
//! ```text
//! 0           12  13  14      16                                 28, 52
//! │ signature │ version, command │ family │ length │ addresses and ports │ additions │
//! ```
//!
//! The length is that of all bytes after the first 16. Additions (TLV) are skipped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::limits::PROXY_HEADER_BYTES_MAX;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes before the addresses.
const FIXED_BYTES: usize = 16;
const VERSION: u8 = 2;
/// The commands: the proxy speaks for itself, or for a client.
const LOCAL: u8 = 0;
const PROXY: u8 = 1;
/// The families of TCP.
const TCP_IPV4: u8 = 0x11;
const TCP_IPV6: u8 = 0x21;
/// Bytes of two addresses and two ports.
const IPV4_BYTES: usize = 12;
const IPV6_BYTES: usize = 36;

/// Who began the connection, by the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A client with this address.
    Client(IpAddr),
    /// The proxy itself, for example for a health check. Also a client without an address that this server knows.
    Proxy,
}

/// What follows from the bytes so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The header is not complete. Read up to this many bytes from its beginning, and no more.
    ReadUpTo(usize),
    /// The header is complete.
    Done(Origin),
}

/// Why a header is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderFault {
    #[error(
        "it did not begin with a PROXY header of version 2; set the proxy to send one (HAProxy: send-proxy-v2), or take \
         its address out of --trusted-proxies"
    )]
    NoHeader,
    #[error("its PROXY header has version {version}, command {command}; version 2 with commands 0 and 1 is read")]
    Unknown { version: u8, command: u8 },
    #[error("its PROXY header has {bytes} bytes, of {PROXY_HEADER_BYTES_MAX} at most; set the proxy to add less to it")]
    TooLong { bytes: usize },
    #[error("its PROXY header has {bytes} bytes for addresses that need {needed}")]
    Short { bytes: usize, needed: usize },
    #[error("it ended after {bytes} bytes of its PROXY header")]
    Ended { bytes: usize },
}

/// Reads the header as far as it has arrived. Its first bytes already tell whether it is one, so nothing else is waited for.
pub(crate) fn next_step(received: &[u8]) -> Result<Step, HeaderFault> {
    if received.iter().zip(SIGNATURE).any(|(byte, expected)| *byte != expected) {
        return Err(HeaderFault::NoHeader);
    }
    let Some(&[.., version_command, family, high, low]) = received.first_chunk::<FIXED_BYTES>() else {
        return Ok(Step::ReadUpTo(FIXED_BYTES));
    };
    let (version, command) = (version_command >> 4, version_command & 0xf);
    if version != VERSION || !matches!(command, LOCAL | PROXY) {
        return Err(HeaderFault::Unknown { version, command });
    }
    let bytes = FIXED_BYTES + usize::from(u16::from_be_bytes([high, low]));
    if bytes > PROXY_HEADER_BYTES_MAX {
        return Err(HeaderFault::TooLong { bytes });
    }
    let Some(addresses) = received.get(FIXED_BYTES..bytes) else { return Ok(Step::ReadUpTo(bytes)) };
    match (command, family) {
        (PROXY, TCP_IPV4) => client::<4>(addresses, IPV4_BYTES).map(|bytes| Ipv4Addr::from(bytes).into()),
        (PROXY, TCP_IPV6) => client::<16>(addresses, IPV6_BYTES).map(|bytes| Ipv6Addr::from(bytes).into()),
        _ => return Ok(Step::Done(Origin::Proxy)),
    }
    .map(|address| Step::Done(Origin::Client(address)))
}

/// The bytes of the client's address, which is the first one.
fn client<const N: usize>(addresses: &[u8], needed: usize) -> Result<[u8; N], HeaderFault> {
    let address = addresses.first_chunk().filter(|_| addresses.len() >= needed);
    address.copied().ok_or(HeaderFault::Short { bytes: addresses.len(), needed })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with this byte of version and command, this family, and these bytes after the first 16.
    fn header(version_command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = (rest.len() as u16).to_be_bytes();
        [&SIGNATURE[..], &[version_command, family], &length, rest].concat()
    }

    fn ipv4(rest: &[u8]) -> Vec<u8> {
        header(0x21, TCP_IPV4, &[&[192, 0, 2, 7, 10, 0, 0, 1, 0x30, 0x39, 0x1f, 0x40], rest].concat())
    }

    fn client_of(address: &str) -> Step {
        Step::Done(Origin::Client(address.parse().expect("an address")))
    }

    #[track_caller]
    fn check(header: &[u8], expect: Result<Step, HeaderFault>) {
        assert_eq!(next_step(header), expect);
        // However the bytes arrive, no more is asked for than the header has, and at least one byte more.
        for bytes in 0..header.len() {
            match next_step(&header[..bytes]) {
                Ok(Step::ReadUpTo(end)) => assert!(bytes < end && end <= header.len(), "{bytes} {end}"),
                early => assert_eq!(early, expect, "{bytes}"),
            }
        }
    }

    #[test]
    fn a_header_names_the_client_whatever_it_adds() {
        check(&ipv4(&[]), Ok(client_of("192.0.2.7")));
        check(&ipv4(&[4, 0, 1, 0]), Ok(client_of("192.0.2.7")));
        check(&ipv4(&vec![0xff; PROXY_HEADER_BYTES_MAX - FIXED_BYTES - IPV4_BYTES]), Ok(client_of("192.0.2.7")));
        let addresses = ["2001:db8::7", "::1"].map(|text| text.parse::<Ipv6Addr>().expect("an address").octets());
        check(&header(0x21, TCP_IPV6, &[&addresses.concat()[..], &[0; 4]].concat()), Ok(client_of("2001:db8::7")));
    }

    #[test]
    fn the_proxy_speaks_for_itself_or_for_a_client_without_an_address() {
        for family in [0, TCP_IPV4, TCP_IPV6] {
            check(&header(0x20, family, &[]), Ok(Step::Done(Origin::Proxy)));
            check(&header(0x20, family, &[7; 40]), Ok(Step::Done(Origin::Proxy)));
        }
        // No address, UDP over IPv4 and IPv6, a Unix socket.
        for family in [0, 0x12, 0x22, 0x31, 0xff] {
            check(&header(0x21, family, &[7; 216]), Ok(Step::Done(Origin::Proxy)));
        }
    }

    #[test]
    fn a_header_with_a_fault_is_refused_as_soon_as_the_fault_is_there() {
        for none in
            [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PROXY TCP4 192.0.2.7 10.0.0.1 1 2\r\n", b"PRI *", b"\r\n\r\r", b"\x16"]
        {
            assert_eq!(next_step(none), Err(HeaderFault::NoHeader));
        }
        check(&header(0x11, TCP_IPV4, &[]), Err(HeaderFault::Unknown { version: 1, command: 1 }));
        check(&header(0x22, TCP_IPV4, &[]), Err(HeaderFault::Unknown { version: 2, command: 2 }));
        check(&header(0x21, TCP_IPV4, &[7; 11]), Err(HeaderFault::Short { bytes: 11, needed: 12 }));
        check(&header(0x21, TCP_IPV6, &[7; 35]), Err(HeaderFault::Short { bytes: 35, needed: 36 }));
        let long = ipv4(&vec![0; PROXY_HEADER_BYTES_MAX]);
        let fault = HeaderFault::TooLong { bytes: long.len() };
        assert_eq!(next_step(&long[..FIXED_BYTES]), Err(fault.clone()));
        assert_eq!(
            fault.to_string(),
            "its PROXY header has 564 bytes, of 536 at most; set the proxy to add less to it"
        );
        let whole = [&SIGNATURE[..], &[0x21, TCP_IPV4, 0xff, 0xff]].concat();
        assert_eq!(next_step(&whole), Err(HeaderFault::TooLong { bytes: 65_551 }));
    }
}
