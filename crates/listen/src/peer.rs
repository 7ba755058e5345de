//! Which user or host does a connection come from?

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;

use nerite_request::Peer;
use nerite_shm::peer_credentials;

use crate::local_addresses::{Locality, locality_of};
use crate::sock_diag::{LOOPBACK_DEVICE, is_supported, user_of};

/// The client of a TCP connection: its user if the client's socket is in this network namespace, else its address.
pub fn of_tcp(stream: &TcpStream, address: SocketAddr) -> Peer {
    let Ok(server) = stream.local_addr() else { return Peer::Unidentified };
    let (client, server) = (canonical(address), canonical(server));
    let peer = find(client, server);
    // A reset connection has given up its addresses, so the socket that was found may be a later one of another user.
    let is_reset = stream.peer_addr().is_err();
    if is_reset && peer.uid().is_some() { Peer::Unidentified } else { peer }
}

/// Finds the client of a connection between two addresses.
///
/// A client may bind its socket to a network device, and is found by that device only. The kernel carries a connection within this host over the loopback
/// device, or over the device that has the address. A client that is bound to any other device changed that after it connected, in order to hide.
fn find(client: SocketAddr, server: SocketAddr) -> Peer {
    if !is_supported() {
        // A client that hides cannot be distinguished from other clients of its address.
        return Peer::of_address(client.ip());
    }
    let scope = scope(client).or(scope(server));
    let device = scope.unwrap_or(LOOPBACK_DEVICE);
    if let Some(uid) = user_of(client, server, device) {
        return Peer::User { uid };
    }
    let has_own_address = client.ip() == server.ip() || client.ip().is_loopback();
    let of_address = match locality_of(client, scope.unwrap_or_default()) {
        Locality::Local { device } => device,
        Locality::Remote if has_own_address => None,
        Locality::Remote => return Peer::of_address(client.ip()),
    };
    let other = of_address.filter(|other| *other != device);
    let uid = other.and_then(|device| user_of(client, server, device));
    uid.map_or(Peer::Unidentified, |uid| Peer::User { uid })
}

/// An IPv6 listener reports IPv4 clients with mapped addresses. The kernel's table has the plain IPv4 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip if ip.is_ipv4() => SocketAddr::new(ip, address.port()),
        _ => address,
    }
}

/// The index of the device of a link-local address. Both sockets of such a connection are bound to it.
fn scope(address: SocketAddr) -> Option<u32> {
    match address {
        SocketAddr::V6(address) => Some(address.scope_id()).filter(|device| *device != 0),
        SocketAddr::V4(_) => None,
    }
}

/// The client with an address that a proxy named, or the proxy with that address. It is never a user: a proxy sends what others ask. Programs of this host
/// cannot be distinguished there.
pub fn of_claimed(address: IpAddr) -> Peer {
    let address = address.to_canonical();
    match locality_of(SocketAddr::new(address, 0), 0) {
        Locality::Local { .. } => Peer::Unidentified,
        Locality::Remote => Peer::behind_proxy(address),
    }
}

/// The client of a connection over a Unix socket.
pub fn of_unix(socket: impl AsFd) -> Peer {
    peer_credentials(socket).map_or(Peer::Unknown, |credentials| Peer::User { uid: credentials.uid })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::time::Duration;

    use rustix::net::sockopt::{set_socket_linger, set_socket_reuseaddr};
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

    use super::*;

    fn check(server: &str, client: &str) {
        let listener = TcpListener::bind(server).unwrap();
        let at = SocketAddr::new(client.parse().unwrap(), listener.local_addr().unwrap().port());
        let _client = TcpStream::connect(at).unwrap();
        let (stream, address) = listener.accept().unwrap();
        assert_eq!(of_tcp(&stream, address), Peer::own(), "{server} {at}");
    }

    #[test]
    fn a_client_of_this_host_is_identified_by_its_user() {
        check("127.0.0.1:0", "127.0.0.1");
        check("0.0.0.0:0", "127.0.0.1");
        if TcpListener::bind("[::1]:0").is_ok() {
            check("[::1]:0", "::1");
            check("[::]:0", "127.0.0.1");
            check("[::]:0", "::1");
        }
    }

    #[test]
    fn a_client_with_an_ipv6_socket_is_identified_over_ipv4() {
        // The C core of gRPC connects in this way.
        let Ok(client) = socket(AddressFamily::INET6, SocketType::STREAM, None) else { return };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        connect(&client, &SocketAddr::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), port)).unwrap();
        let (stream, address) = listener.accept().unwrap();
        assert_eq!(of_tcp(&stream, address), Peer::own());
    }

    #[test]
    fn a_client_that_closed_is_not_identified() {
        for address in ["127.0.0.1", "::1"] {
            let Ok(listener) = TcpListener::bind((address, 0)) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, address) = listener.accept().unwrap();
            drop(client);
            assert_eq!(of_tcp(&stream, address), Peer::Unidentified, "{address}");
        }
    }

    #[test]
    fn a_client_that_was_reset_is_not_taken_for_a_later_one_with_its_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let again = || {
            let first = TcpStream::connect(server).unwrap();
            let (stream, address) = listener.accept().unwrap();
            set_socket_linger(&first, Some(Duration::ZERO)).unwrap();
            drop(first);
            let second = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            set_socket_reuseaddr(&second, true).unwrap();
            bind(&second, &address).ok().map(|()| (stream, address, second))
        };
        // The `bind` fails if another program uses the port.
        let (stream, address, second) = (0..1000).find_map(|_| again()).unwrap();
        connect(&second, &server).unwrap();
        assert_eq!(of_tcp(&stream, address), Peer::Unidentified);
        let (stream, again) = listener.accept().unwrap();
        assert_eq!((again, of_tcp(&stream, again)), (address, Peer::own()));
    }

    #[test]
    fn a_client_of_another_host_is_identified_by_its_address() {
        let at = |address: &str| SocketAddr::new(address.parse().unwrap(), 40_000);
        for (client, server) in [("203.0.113.7", "127.0.0.1"), ("2001:db8::7", "::1")] {
            assert_eq!(find(at(client), at(server)), Peer::of_address(at(client).ip()));
        }
        // The addresses of one host are not those of another, whatever the table of routes says.
        assert_eq!(find(at("203.0.113.7"), at("203.0.113.7")), Peer::Unidentified);
    }

    #[track_caller]
    fn check_claimed(address: &str, expect: Option<&str>) {
        let expect = expect.map_or(Peer::Unidentified, |other| Peer::behind_proxy(other.parse().unwrap()));
        assert_eq!(of_claimed(address.parse().unwrap()), expect, "{address}");
    }

    #[test]
    fn a_claimed_address_makes_no_user() {
        for local in ["127.0.0.1", "127.1.2.3", "::ffff:127.0.0.1"] {
            check_claimed(local, None);
        }
        check_claimed("203.0.113.7", Some("203.0.113.7"));
        check_claimed("::ffff:203.0.113.7", Some("203.0.113.7"));
        if TcpListener::bind("[::1]:0").is_ok() {
            check_claimed("::1", None);
            check_claimed("2001:db8::7", Some("2001:db8::1"));
        }
    }
}
