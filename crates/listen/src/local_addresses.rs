//! Is an address one of this host, and which network device has it?
//!
//! The kernel answers over netlink (`rtnetlink(7)`) with one exact lookup in its routing table.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use crate::netlink::{Channel, HEADER, family_of, write_address, write_header};

/// `RTM_NEWROUTE`, the type of answers, and `RTM_GETROUTE`.
const ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
/// `RTM_F_FIB_MATCH`: the kernel answers with the entry of its table. That entry names the device that has a local address. Older kernels name the
/// loopback device.
const ENTRY: u32 = 0x2000;
/// `RTN_LOCAL`, `RTN_BROADCAST` and `RTN_ANYCAST`: what is sent to such an address is delivered on this host, so a program of this host may have it.
const LOCAL: u8 = 2;
const BROADCAST: u8 = 3;
const ANYCAST: u8 = 4;
/// `RTA_DST` and `RTA_OIF`.
const DESTINATION: u16 = 1;
const DEVICE: u16 = 4;
/// Bytes of a message with `struct rtmsg`, after which attributes follow.
const FIXED: usize = HEADER + 12;
/// Offset of the type of the route in it.
const KIND: usize = HEADER + 7;
/// Bytes of the head of an attribute.
const ATTRIBUTE: usize = 4;
/// The most bytes of an answer that are read. The answer for a local address has about 120.
const ANSWER_BYTES: usize = 512;

static CHANNEL: Channel = Channel::new(None);

/// Whether the address belongs to this network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locality {
    /// It belongs to this namespace. `device` is the index of the device that has the address, if the kernel reports it.
    Local { device: Option<u32> },
    /// It belongs to another host or namespace.
    Remote,
}

/// Opens the channel before the first lookup. So the number of open descriptors does not change later, and lookups work even if no descriptor is free.
pub(crate) fn prepare() {
    CHANNEL.prepare();
}

/// Whether the address of a client belongs to this network namespace. `device` is the index of the device that the address is meant for, or 0.
pub(crate) fn locality_of(client: SocketAddr, device: u32) -> Locality {
    let mut answer = [0; ANSWER_BYTES];
    let received = CHANNEL.exchange(&request(client.ip(), device), &mut answer).ok();
    let locality = received.and_then(|bytes| read(answer.get(..bytes)?));
    locality.unwrap_or_else(|| locality_by_binding(client))
}

/// The locality if the kernel does not permit reading the routing table. A socket can be bound only to an address of this host. If the result is not
/// clear, the address counts as one of this host, because that gives the client fewer rights.
fn locality_by_binding(mut client: SocketAddr) -> Locality {
    client.set_port(0);
    match UdpSocket::bind(client) {
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => Locality::Remote,
        _ => Locality::Local { device: None },
    }
}

/// The bytes of a request for the route to an address.
fn request(address: IpAddr, device: u32) -> Vec<u8> {
    let address_bytes = if address.is_ipv4() { 4 } else { 16 };
    let mut bytes = vec![0; FIXED + ATTRIBUTE + address_bytes];
    bytes[HEADER] = family_of(address);
    bytes[HEADER + 1] = 8 * address_bytes as u8;
    bytes[HEADER + 8..FIXED].copy_from_slice(&ENTRY.to_ne_bytes());
    write_attribute_head(&mut bytes[FIXED..], DESTINATION);
    write_address(&mut bytes[FIXED + ATTRIBUTE..], address);
    if device != 0 {
        let at = bytes.len();
        bytes.resize(at + ATTRIBUTE + 4, 0);
        write_attribute_head(&mut bytes[at..], DEVICE);
        bytes[at + ATTRIBUTE..].copy_from_slice(&device.to_ne_bytes());
    }
    write_header(&mut bytes, GET_ROUTE);
    bytes
}

/// Writes the head of an attribute that fills `bytes`.
fn write_attribute_head(bytes: &mut [u8], kind: u16) {
    let length = bytes.len() as u16;
    bytes[..2].copy_from_slice(&length.to_ne_bytes());
    bytes[2..4].copy_from_slice(&kind.to_ne_bytes());
}

/// The content of an answer. `None` if it is not about a route.
fn read(answer: &[u8]) -> Option<Locality> {
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    if kind != ROUTE {
        return None;
    }
    if !matches!(*answer.get(KIND)?, LOCAL | BROADCAST | ANYCAST) {
        return Some(Locality::Remote);
    }
    Some(Locality::Local { device: device(answer.get(FIXED..)?) })
}

/// The device that the attributes of a route name.
fn device(mut attributes: &[u8]) -> Option<u32> {
    loop {
        let number = |at: usize| attributes.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes);
        let (length, kind) = (usize::from(number(0)?), number(2)?);
        if kind == DEVICE {
            return attributes.get(ATTRIBUTE..)?.first_chunk().copied().map(u32::from_ne_bytes);
        }
        // Each attribute begins at a multiple of four. With a length of zero, the loop would not end.
        attributes = attributes.get(length.max(ATTRIBUTE).next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::sock_diag::LOOPBACK_DEVICE;

    #[track_caller]
    fn check(address: &str, expect: Locality) {
        let client = SocketAddr::new(address.parse().unwrap(), 40_000);
        assert_eq!(locality_of(client, 0), expect, "{address}");
        let Locality::Local { .. } = expect else {
            return assert_eq!(locality_by_binding(client), expect, "{address}");
        };
        assert_eq!(locality_by_binding(client), Locality::Local { device: None }, "{address}");
    }

    #[test]
    fn the_kernel_tells_which_addresses_are_of_this_host() {
        let loopback = Locality::Local { device: Some(LOOPBACK_DEVICE) };
        check("127.0.0.1", loopback);
        check("127.1.2.3", loopback);
        check("203.0.113.7", Locality::Remote);
        if UdpSocket::bind("[::1]:0").is_ok() {
            check("::1", loopback);
            check("2001:db8::7", Locality::Remote);
        }
    }

    #[track_caller]
    fn check_read(change: impl FnOnce(&mut Vec<u8>), expect: Option<Locality>) {
        let mut answer = request("192.0.2.7".parse().unwrap(), 7);
        answer[4..6].copy_from_slice(&ROUTE.to_ne_bytes());
        answer[KIND] = LOCAL;
        change(&mut answer);
        assert_eq!(read(&answer), expect);
    }

    #[test]
    fn an_answer_that_is_cut_or_of_another_kind_tells_nothing() {
        check_read(|_| (), Some(Locality::Local { device: Some(7) }));
        check_read(|answer| answer[KIND] = 1, Some(Locality::Remote));
        check_read(|answer| answer[4..6].copy_from_slice(&2u16.to_ne_bytes()), None);
        check_read(|answer| answer.truncate(HEADER + 1), None);
        check_read(Vec::clear, None);
        let unknown = Some(Locality::Local { device: None });
        check_read(|answer| answer.truncate(FIXED + 3), unknown);
        check_read(|answer| answer.truncate(FIXED + 12), unknown);
        check_read(|answer| answer[FIXED..FIXED + 2].fill(0), unknown);
        check_read(|answer| answer[FIXED..FIXED + 2].fill(0xff), unknown);
    }
}
