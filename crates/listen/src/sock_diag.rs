//! Which user owns the other end of a TCP connection within this host?
//!
//! The kernel answers over netlink (`sock_diag(7)`) with one exact lookup in its table of connections, without listing sockets. It knows
//! only the network namespace of this process. A lookup names a network device. It finds sockets that are bound to that device, and those that are bound
//! to none.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::net::{AddressFamily, netlink};

use crate::netlink::{Channel, HEADER, family_of, write_address, write_header};

/// `SOCK_DIAG_BY_FAMILY`, the type of both messages.
const BY_FAMILY: u16 = 20;
/// `IPPROTO_TCP`.
const TCP: u8 = 6;
/// `TCP_LISTEN`: the kernel falls back to a listening socket of the same port.
const LISTENING: u8 = 10;
/// Bytes of a message with `struct inet_diag_req_v2`.
const REQUEST_BYTES: usize = HEADER + 56;
/// Bytes of a message with `struct inet_diag_msg`.
const ANSWER_BYTES: usize = HEADER + 72;
/// Offset of `struct inet_diag_sockid` in requests and in answers.
const REQUEST_ID: usize = HEADER + 8;
const ANSWER_ID: usize = HEADER + 4;
/// Offsets of the user and the inode in an answer.
const ANSWER_UID: usize = ANSWER_ID + 48 + 12;
const ANSWER_INODE: usize = ANSWER_UID + 4;

/// The index of the loopback device, which is the first in each network namespace (`LOOPBACK_IFINDEX`).
pub const LOOPBACK_DEVICE: u32 = 1;

static CHANNEL: Channel = Channel::new(Some(netlink::SOCK_DIAG));

/// False once the kernel did not find a listener that exists: it lacks `inet_diag`, or a container forbids this kind of socket.
static IS_SUPPORTED: AtomicBool = AtomicBool::new(true);

/// Finds out whether the kernel supports such lookups, by looking up a listener that is bound to this address.
pub fn prepare(listener: SocketAddr) {
    if !finds(listener) && IS_SUPPORTED.swap(false, Ordering::Relaxed) {
        log::warn!(
            "this kernel does not tell whose a local TCP connection is (sock_diag): clients of this host over TCP count as one client, which reaches \
             the shared memory of the server's own user and what is open to all; use Unix sockets (--http-socket, --grpc-socket) to have users told \
             apart, or --shm-trust=any to trust all clients"
        );
    }
}

/// Whether the kernel knows the users of TCP connections, as far as `prepare` could find out.
pub fn is_supported() -> bool {
    IS_SUPPORTED.load(Ordering::Relaxed)
}

/// Whether the kernel finds this listener. True if there is no descriptor or memory for the lookup.
fn finds(listener: SocketAddr) -> bool {
    let loopback: IpAddr = if listener.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let bound = if listener.ip().is_unspecified() { SocketAddr::new(loopback, listener.port()) } else { listener };
    let device = match listener {
        SocketAddr::V6(listener) if listener.scope_id() != 0 => listener.scope_id(),
        _ => LOOPBACK_DEVICE,
    };
    // No client has port 0, so the kernel finds no connection, and falls back to the listener.
    let Some(request) = request(bound, SocketAddr::new(loopback, 0), device) else { return false };
    let mut answer = [0; ANSWER_BYTES];
    match CHANNEL.exchange(&request, &mut answer) {
        Ok(_) => is_listener(&answer),
        Err(error) => {
            let errno = Errno::from_io_error(&error);
            matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS))
        }
    }
}

fn is_listener(answer: &[u8; ANSWER_BYTES]) -> bool {
    u16::from_ne_bytes([answer[4], answer[5]]) == BY_FAMILY && answer[HEADER + 1] == LISTENING
}

/// The effective user that created the socket of `client`. The socket is connected to `server`, and is bound to the network device with the index
/// `device` or to none. `None` if no such socket is open in this network namespace, or if the kernel does not answer.
pub fn user_of(client: SocketAddr, server: SocketAddr, device: u32) -> Option<u32> {
    let request = request(client, server, device)?;
    let mut answer = [0; ANSWER_BYTES];
    CHANNEL.exchange(&request, &mut answer).ok()?;
    read(&answer, client, server)
}

/// The bytes of a request for one socket. `None` if the addresses are of different families.
fn request(client: SocketAddr, server: SocketAddr, device: u32) -> Option<[u8; REQUEST_BYTES]> {
    if client.is_ipv4() != server.is_ipv4() {
        return None;
    }
    let mut bytes = [0; REQUEST_BYTES];
    write_header(&mut bytes, BY_FAMILY);
    bytes[HEADER] = family_of(client.ip());
    bytes[HEADER + 1] = TCP;
    // All states.
    bytes[HEADER + 4..HEADER + 8].copy_from_slice(&u32::MAX.to_ne_bytes());
    let id = &mut bytes[REQUEST_ID..];
    id[..2].copy_from_slice(&client.port().to_be_bytes());
    id[2..4].copy_from_slice(&server.port().to_be_bytes());
    write_address(&mut id[4..20], client.ip());
    write_address(&mut id[20..36], server.ip());
    id[36..40].copy_from_slice(&device.to_ne_bytes());
    // No cookie: the connection is identified by its addresses alone.
    id[40..48].fill(0xff);
    Some(bytes)
}

/// The user in an answer about the connection from `client` to `server`.
fn read(answer: &[u8; ANSWER_BYTES], client: SocketAddr, server: SocketAddr) -> Option<u32> {
    let number = |at: usize| answer[at..].first_chunk().copied().map(u32::from_ne_bytes);
    let port = |at: usize| answer[at..].first_chunk().copied().map(u16::from_be_bytes);
    let kind = u16::from_ne_bytes([answer[4], answer[5]]);
    let (family, state) = (answer[HEADER], answer[HEADER + 1]);
    // A socket that its process has closed has no inode, and always user 0.
    let is_open = state != LISTENING && number(ANSWER_INODE)? != 0;
    let from = SocketAddr::new(read_address(family, &answer[ANSWER_ID + 4..])?, port(ANSWER_ID)?);
    let to = SocketAddr::new(read_address(family, &answer[ANSWER_ID + 20..])?, port(ANSWER_ID + 2)?);
    let is_same = (from.ip(), from.port()) == (client.ip(), client.port())
        && (to.ip(), to.port()) == (server.ip(), server.port());
    if kind == BY_FAMILY && is_open && is_same { number(ANSWER_UID) } else { None }
}

/// An address of an answer. A socket of IPv6 that is connected over IPv4 has mapped addresses.
fn read_address(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    if u16::from(family) == AddressFamily::INET6.as_raw() {
        return Some(IpAddr::from(*bytes.first_chunk::<16>()?).to_canonical());
    }
    Some(IpAddr::from(*bytes.first_chunk::<4>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 40_000);
    const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8000);

    #[track_caller]
    fn check(change: impl FnOnce(&mut [u8; ANSWER_BYTES]), expect: Option<u32>) {
        let request = request(CLIENT, SERVER, 1).expect("both are of one family");
        let id = &request[REQUEST_ID..][..36];
        let mut answer = [0; ANSWER_BYTES];
        answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        answer[HEADER] = AddressFamily::INET.as_raw() as u8;
        answer[HEADER + 1] = 1;
        answer[ANSWER_ID..][..36].copy_from_slice(id);
        answer[ANSWER_UID..][..4].copy_from_slice(&1000u32.to_ne_bytes());
        answer[ANSWER_INODE..][..4].copy_from_slice(&7u32.to_ne_bytes());
        change(&mut answer);
        assert_eq!(read(&answer, CLIENT, SERVER), expect);
    }

    #[test]
    fn only_an_open_connection_of_those_addresses_has_a_user() {
        check(|_| (), Some(1000));
        check(|answer| answer[4..6].copy_from_slice(&2u16.to_ne_bytes()), None);
        check(|answer| answer[HEADER + 1] = LISTENING, None);
        check(|answer| answer[ANSWER_INODE..][..4].fill(0), None);
        check(|answer| answer[ANSWER_ID] ^= 1, None);
        check(|answer| answer[ANSWER_ID + 20] ^= 1, None);
    }

    #[test]
    fn an_ipv6_socket_that_is_connected_over_ipv4_has_mapped_addresses() {
        let mapped = |answer: &mut [u8; ANSWER_BYTES]| {
            answer[HEADER] = AddressFamily::INET6.as_raw() as u8;
            for at in [ANSWER_ID + 4, ANSWER_ID + 20] {
                let address = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
                answer[at..at + 16].copy_from_slice(&address);
            }
        };
        check(mapped, Some(1000));
    }

    #[test]
    fn a_listener_is_found_and_no_other_port() {
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(address) else { continue };
            let address = listener.local_addr().expect("it is bound");
            assert!(finds(address), "{address}");
            drop(listener);
            assert!(!finds(address), "{address}");
        }
    }

    #[test]
    fn a_missing_socket_has_no_user() {
        assert_eq!(user_of(SocketAddr::new(CLIENT.ip(), 1), SocketAddr::new(SERVER.ip(), 2), 1), None);
        assert_eq!(user_of(CLIENT, "[::1]:8000".parse().expect("an address"), 1), None);
    }
}
