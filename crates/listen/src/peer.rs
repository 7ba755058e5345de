//! Which user or host does a connection come from?

use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;

use nerite_request::Peer;
use rustix::net::sockopt::socket_peercred;

use crate::sock_diag::user_of;

/// The client of a TCP connection: its user if the client's socket is in this network namespace, else its address.
pub fn of_tcp(stream: &TcpStream, address: SocketAddr) -> Peer {
    // An IPv6 listener reports IPv4 clients with mapped addresses. The kernel's table has the plain IPv4 address.
    let client = SocketAddr::new(address.ip().to_canonical(), address.port());
    let uid = stream.local_addr().ok().and_then(|own| {
        let server = SocketAddr::new(own.ip().to_canonical(), own.port());
        user_of(client, server)
    });
    uid.map_or(Peer::Address(client.ip()), |uid| Peer::User { uid })
}

/// The client of a connection over a Unix socket.
pub fn of_unix(stream: &UnixStream) -> Peer {
    socket_peercred(stream).map_or(Peer::Unknown, |credentials| Peer::User { uid: credentials.uid.as_raw() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use rustix::net::{AddressFamily, SocketType, connect, socket};

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
    fn a_client_that_closed_is_identified_by_its_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, address) = listener.accept().unwrap();
        drop(client);
        assert_eq!(of_tcp(&stream, address), Peer::Address(address.ip()));
    }
}
