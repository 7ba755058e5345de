//! Do TLS and Unix sockets work as well as plain TCP?

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nerite_grpc::Options;
use nerite_listen::{ApplicationProtocol, Endpoint, Tls, TlsFiles, bind};
use nerite_wire::proto::messages::{ServerLiveRequest, ServerLiveResponse};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::peer::Peer;
use crate::test_server::TestServer;

/// A directory with `root.pem`, and with `.pem` and `.key` files of `server` and `client`, both signed by that root.
struct Certificates(TempDir);

impl Certificates {
    fn new() -> Certificates {
        let certificates = Certificates(tempfile::tempdir().unwrap());
        let mut root = CertificateParams::new([]).unwrap();
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root_key = KeyPair::generate().unwrap();
        fs::write(certificates.path("root.pem"), root.self_signed(&root_key).unwrap().pem()).unwrap();
        let issuer = Issuer::new(root, root_key);
        for name in ["server", "client"] {
            let key = KeyPair::generate().unwrap();
            let paper = CertificateParams::new(["localhost".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
            fs::write(certificates.path(&format!("{name}.pem")), paper.pem()).unwrap();
            fs::write(certificates.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
        }
        certificates
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn server(&self, mutual: bool) -> TestServer {
        self.server_with(mutual, Options::default())
    }

    fn server_with(&self, mutual: bool, options: Options) -> TestServer {
        let client_roots = mutual.then(|| self.path("root.pem"));
        let files = TlsFiles { certificate: self.path("server.pem"), key: self.path("server.key"), client_roots };
        let tls = Tls::from_files(files, ApplicationProtocol::Http2).unwrap();
        TestServer::with(Options { tls: Some(tls), ..options }, nerite_api::Options::default())
    }

    async fn connect(&self, server: &TestServer, with_certificate: bool) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("root.pem")).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let mut config = if with_certificate {
            let paper = CertificateDer::from_pem_file(self.path("client.pem")).unwrap();
            let key = PrivateKeyDer::from_pem_file(self.path("client.key")).unwrap();
            config.with_client_auth_cert(vec![paper], key).unwrap()
        } else {
            config.with_no_client_auth()
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let socket = TcpStream::connect(server.address.unwrap()).await?;
        TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), socket).await
    }
}

async fn is_live(peer: &Peer) -> bool {
    peer.call("ServerLive", &ServerLiveRequest {}).await.message::<ServerLiveResponse>().live
}

#[tokio::test]
async fn calls_work_over_tls() {
    let certificates = Certificates::new();
    let server = certificates.server(false);
    let socket = certificates.connect(&server, false).await.unwrap();
    assert_eq!(socket.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    assert!(is_live(&Peer::over(socket).await).await);
}

#[tokio::test]
async fn clients_without_a_required_certificate_get_no_answer() {
    let certificates = Certificates::new();
    let server = certificates.server(true);
    assert!(is_live(&Peer::over(certificates.connect(&server, true).await.unwrap()).await).await);
    // The server refuses after the handshake is complete for the client.
    if let Ok(socket) = certificates.connect(&server, false).await {
        let peer = Peer::over(socket).await;
        let begun = peer.begin("ServerLive", &[]).await;
        let answered = match begun {
            Some((feed, calling)) => {
                drop(feed);
                calling.await.is_ok()
            }
            None => false,
        };
        assert!(!answered);
    }
}

#[tokio::test]
async fn an_unencrypted_client_of_a_tls_port_does_not_affect_others() {
    let certificates = Certificates::new();
    let server = certificates.server(false);
    let socket = TcpStream::connect(server.address.unwrap()).await.unwrap();
    let peer = Peer::over(socket).await;
    if let Some((feed, calling)) = peer.begin("ServerLive", &[]).await {
        drop(feed);
        assert!(calling.await.is_err());
    }
    let socket = certificates.connect(&server, false).await.unwrap();
    assert!(is_live(&Peer::over(socket).await).await);
    server.handle.stop().await;
}

/// Whether the server closes a connection on which the client sends only `first`. The timeout is long because the machine may be busy.
async fn is_ended(server: &TestServer, first: &[u8]) -> bool {
    let mut socket = TcpStream::connect(server.address.unwrap()).await.unwrap();
    socket.write_all(first).await.unwrap();
    let mut rest = Vec::new();
    // An error is an end as well: the server may close the connection while bytes are unread.
    timeout(Duration::from_mins(1), socket.read_to_end(&mut rest)).await.is_ok()
}

#[tokio::test]
async fn a_handshake_without_progress_is_ended() {
    let certificates = Certificates::new();
    let options = Options { handshake_max: Some(Duration::from_millis(300)), ..Options::default() };
    let server = certificates.server_with(false, options);
    // Nothing, the head of a record, and half of a ClientHello.
    let half_hello = [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], &[7; 100]].concat();
    for first in [&b""[..], b"\x16\x03\x01", &half_hello] {
        assert!(is_ended(&server, first).await, "{first:?}");
    }
    // The limit is for the TLS handshake, not for the connection.
    let socket = certificates.connect(&server, false).await.unwrap();
    let peer = Peer::over(socket).await;
    assert!(is_live(&peer).await);
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(is_live(&peer).await);
}

#[tokio::test]
async fn without_a_limit_a_handshake_may_pause() {
    let certificates = Certificates::new();
    let server = certificates.server_with(false, Options { handshake_max: None, ..Options::default() });
    let mut socket = TcpStream::connect(server.address.unwrap()).await.unwrap();
    let mut byte = [0];
    assert!(timeout(Duration::from_secs(1), socket.read(&mut byte)).await.is_err());
}

#[track_caller]
fn check(certificate: PathBuf, key: PathBuf, expect: &str) {
    let files = TlsFiles { certificate, key, client_roots: None };
    let error = Tls::from_files(files, ApplicationProtocol::Http2).unwrap_err().to_string();
    assert!(error.contains(expect), "{error}");
}

#[test]
fn invalid_certificates_are_named() {
    let certificates = Certificates::new();
    check(certificates.path("none.pem"), certificates.path("server.key"), "none.pem' cannot be read as PEM");
    check(certificates.path("server.pem"), certificates.path("server.pem"), "server.pem' cannot be read as PEM");
    check(certificates.path("server.pem"), certificates.path("client.key"), "server.pem' cannot be used");
}

#[tokio::test]
async fn calls_work_over_a_unix_socket_and_its_file_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("grpc.sock");
    for _ in 0..2 {
        let listener = bind(&Endpoint::unix(&path)).unwrap();
        let server = TestServer::behind(listener, Options::default(), nerite_api::Options::default());
        let peer = Peer::over(UnixStream::connect(&path).await.unwrap()).await;
        assert!(is_live(&peer).await);
        server.handle.stop().await;
        assert!(!path.exists());
    }
}
