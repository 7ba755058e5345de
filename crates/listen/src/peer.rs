//! Which user or host does a connection come from?

use std::net::SocketAddr;

use nerite_request::Peer;
use tokio::net::{TcpStream, UnixStream};

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
    stream.peer_cred().map_or(Peer::Unknown, |credentials| Peer::User { uid: credentials.uid() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    async fn check(server: &str, client: &str) {
        let listener = TcpListener::bind(server).await.unwrap();
        let at = SocketAddr::new(client.parse().unwrap(), listener.local_addr().unwrap().port());
        let socket = if at.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        let (accepted, client) = tokio::join!(listener.accept(), socket.unwrap().connect(at));
        let (stream, address) = accepted.unwrap();
        assert_eq!(of_tcp(&stream, address), Peer::own(), "{server} {at}");
        let _client = client.unwrap();
    }

    #[tokio::test]
    async fn a_client_of_this_host_is_identified_by_its_user() {
        check("127.0.0.1:0", "127.0.0.1").await;
        check("0.0.0.0:0", "127.0.0.1").await;
        if TcpListener::bind("[::1]:0").await.is_ok() {
            check("[::1]:0", "::1").await;
            check("[::]:0", "127.0.0.1").await;
            check("[::]:0", "::1").await;
        }
    }

    #[tokio::test]
    async fn a_client_with_an_ipv6_socket_is_identified_over_ipv4() {
        // The C core of gRPC connects in this way.
        let Ok(socket) = TcpSocket::new_v6() else { return };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let at = SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), port);
        let (accepted, client) = tokio::join!(listener.accept(), socket.connect(at));
        let (stream, address) = accepted.unwrap();
        assert_eq!(of_tcp(&stream, address), Peer::own());
        let _client = client.unwrap();
    }

    #[tokio::test]
    async fn a_client_that_closed_is_identified_by_its_address() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, address) = listener.accept().await.unwrap();
        drop(client);
        assert_eq!(of_tcp(&stream, address), Peer::Address(address.ip()));
    }
}
