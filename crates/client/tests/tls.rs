//! Do the clients speak TLS, and do they keep their time limits?
//!
//! The TLS server of these tests terminates TLS and forwards the bytes. They go to the real server of `NERITE_HTTP` and `NERITE_GRPC` if these variables are
//! set (see `server.rs`), or to a small HTTP server that answers every request with the same page.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use nerite_client::{ClientOptions, Error, HandshakeFault, Request, Tensor, Tls, grpc, http};
use rcgen::{CertifiedKey, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, sign};

const PAGE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";

/// A self-signed certificate for this name, and its key.
fn certificate(name: &str) -> CertifiedKey<KeyPair> {
    rcgen::generate_simple_self_signed([name.to_owned()]).unwrap()
}

/// Starts a TLS server with the certificate `own`, which forwards to the address `behind`. With `clients`, it requires that certificate of its clients. Returns
/// its port.
async fn port_of_tls(own: &CertifiedKey<KeyPair>, clients: Option<&CertifiedKey<KeyPair>>, behind: String) -> u16 {
    let provider = Arc::new(ring::default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let config = match clients {
        None => config.unwrap().with_no_client_auth(),
        Some(client) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from(client.cert.der().to_vec())).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            config.unwrap().with_client_cert_verifier(verifier)
        }
    };
    let key = PrivateKeyDer::from_pem_slice(own.signing_key.serialize_pem().as_bytes()).unwrap();
    // The resolver does not check whether the key belongs to the certificate.
    let key = ring::default_provider().key_provider.load_private_key(key).unwrap();
    let shown = sign::CertifiedKey::new(vec![CertificateDer::from(own.cert.der().to_vec())], key);
    let mut config = config.with_cert_resolver(Arc::new(sign::SingleCertAndKey::from(shown)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, behind) = (acceptor.clone(), behind.clone());
            tokio::spawn(async move {
                let mut secure = acceptor.accept(stream).await?;
                copy_bidirectional(&mut secure, &mut TcpStream::connect(behind).await?).await
            });
        }
    });
    port
}

/// Starts an HTTP server that answers each request with the same page, or, with `None`, never answers. Returns its address.
async fn page(answer: Option<&'static [u8]>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut have = vec![0; 1 << 16];
                while stream.read(&mut have).await.is_ok_and(|count| count > 0) {
                    if let Some(answer) = answer {
                        stream.write_all(answer).await.unwrap();
                    }
                }
            });
        }
    });
    address
}

fn believing(own: &CertifiedKey<KeyPair>) -> Tls {
    Tls::with_roots_pem(own.cert.pem().as_bytes()).unwrap()
}

async fn infer(port: u16, tls: Tls) -> Result<String, Error> {
    let options = ClientOptions::default().tls(tls);
    http::Client::with_options(&format!("https://localhost:{port}"), &options)?.page("/").await
}

#[track_caller]
fn check_fault<T: std::fmt::Debug>(result: Result<T, Error>, expect: &HandshakeFault) {
    match result {
        Err(Error::Handshake { fault, .. }) => assert_eq!(fault, *expect),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_server_is_believed_by_its_certificate_and_name() {
    let (own, other) = (certificate("localhost"), certificate("other.example"));
    let behind = page(Some(PAGE)).await;
    let port = port_of_tls(&own, None, behind.clone()).await;
    assert_eq!(infer(port, believing(&own)).await.unwrap(), "hi");
    // All certificates of these tests have the same name of their issuer.
    check_fault(infer(port, believing(&other)).await, &HandshakeFault::WrongSignature);
    let (expected, presented) = ("other.example".to_owned(), "'localhost'".to_owned());
    let other_name = HandshakeFault::OtherName { expected, presented };
    check_fault(infer(port, believing(&own).server_name("other.example")).await, &other_name);
    let elsewhere = port_of_tls(&other, None, behind).await;
    assert_eq!(infer(elsewhere, believing(&other).server_name("other.example")).await.unwrap(), "hi");
}

#[tokio::test]
async fn a_server_whose_own_certificate_is_known_is_believed_whatever_its_name() {
    let (own, other) = (certificate("elsewhere.example"), certificate("elsewhere.example"));
    let knowing = |pem: String| Tls::with_server_certificate_pem(pem.as_bytes());
    let port = port_of_tls(&own, None, page(Some(PAGE)).await).await;
    // The certificates after the first one are its chain, and are not trusted.
    let (chain, reversed) = (own.cert.pem() + &other.cert.pem(), other.cert.pem() + &own.cert.pem());
    assert_eq!(infer(port, knowing(chain).unwrap()).await.unwrap(), "hi");
    check_fault(infer(port, knowing(reversed).unwrap()).await, &HandshakeFault::OtherCertificate);
    let refused = knowing("nothing".to_owned()).unwrap_err().to_string();
    assert!(refused.contains("no certificate in it; give the server's"), "{refused}");
}

#[tokio::test]
async fn a_server_that_shows_a_certificate_without_its_key_is_refused() {
    let (own, other) = (certificate("localhost"), certificate("localhost"));
    let knowing = Tls::with_server_certificate_pem(own.cert.pem().as_bytes()).unwrap();
    // The other server has the certificate, which is public, but another key.
    let thief = CertifiedKey { cert: own.cert, signing_key: other.signing_key };
    let port = port_of_tls(&thief, None, page(Some(PAGE)).await).await;
    check_fault(infer(port, knowing).await, &HandshakeFault::WrongSignature);
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_is_shown_one() {
    let (own, mine) = (certificate("localhost"), certificate("client"));
    let port = port_of_tls(&own, Some(&mine), page(Some(PAGE)).await).await;
    let (chain, key) = (mine.cert.pem(), mine.signing_key.serialize_pem());
    let showing = believing(&own).identity_pem(chain.as_bytes(), key.as_bytes()).unwrap();
    assert!(!format!("{showing:?}").contains("KEY"));
    assert_eq!(infer(port, showing).await.unwrap(), "hi");
    check_fault(infer(port, believing(&own)).await, &HandshakeFault::WantsCertificate);
    let address = format!("https://localhost:{port}");
    let grpc = grpc::Client::with_options(&address, &ClientOptions::default().tls(believing(&own))).unwrap();
    check_fault(grpc.is_live().await, &HandshakeFault::WantsCertificate);
    let other = certificate("stranger");
    let (chain, key) = (other.cert.pem(), other.signing_key.serialize_pem());
    let stranger = believing(&own).identity_pem(chain.as_bytes(), key.as_bytes()).unwrap();
    let Err(Error::Handshake { fault, .. }) = infer(port, stranger).await else { panic!("a stranger") };
    assert!(matches!(fault, HandshakeFault::RefusedCertificate(_)), "{fault:?}");
}

/// A client learns whether the port speaks TLS, whichever protocol it speaks itself.
#[tokio::test]
async fn an_address_of_the_wrong_scheme_is_said() {
    let own = certificate("localhost");
    let plain = page(Some(PAGE)).await;
    let secure = port_of_tls(&own, None, plain.clone()).await;
    let trusting = ClientOptions::default().tls(believing(&own).server_name("localhost"));
    let wrong = [
        (format!("http://localhost:{secure}"), ClientOptions::default(), HandshakeFault::PortHasTls),
        (format!("https://{plain}"), trusting.clone(), HandshakeFault::PortHasNoTls),
        (format!("https://{}", closing().await), trusting, HandshakeFault::Closed),
    ];
    for (address, options, fault) in wrong {
        check_fault(http::Client::with_options(&address, &options).unwrap().page("/").await, &fault);
        check_fault(grpc::Client::with_options(&address, &options).unwrap().is_live().await, &fault);
    }
}

/// Starts a server that reads something and closes the connection. Returns its address.
async fn closing() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            drop(stream.read(&mut [0; 64]).await);
        }
    });
    address
}

#[test]
fn a_certificate_to_show_has_its_key() {
    let (own, mine, other) = (certificate("localhost"), certificate("client"), certificate("client"));
    let refused = |chain: &str, key: &str| {
        believing(&own).identity_pem(chain.as_bytes(), key.as_bytes()).unwrap_err().to_string()
    };
    let (chain, key) = (mine.cert.pem(), mine.signing_key.serialize_pem());
    assert!(refused("nothing", &key).ends_with("no certificate in it; give the client's in PEM"));
    assert!(refused(&chain, "nothing").ends_with("no private key in it; give it in PEM, without a password"));
    assert!(refused(&chain, &other.signing_key.serialize_pem()).ends_with("it is the key of another certificate"));
}

#[tokio::test]
async fn certificates_are_for_secure_addresses_only() {
    let options = ClientOptions::default().tls(believing(&certificate("localhost")));
    for address in ["http://localhost:1", "unix:/nonexistent"] {
        let refused = http::Client::with_options(address, &options).unwrap_err().to_string();
        assert!(refused.contains("only addresses of https:// have a use for"), "{refused}");
        assert!(grpc::Client::with_options(address, &options).is_err());
    }
}

#[tokio::test]
async fn a_real_server_answers_behind_tls() {
    let named = |name: &str| std::env::var(name).ok()?.strip_prefix("http://").map(str::to_owned);
    let (Some(http), Some(grpc)) = (named("NERITE_HTTP"), named("NERITE_GRPC")) else { return };
    let own = certificate("localhost");
    let options = ClientOptions::default().tls(believing(&own)).request_max(Duration::from_mins(1));
    let [http, grpc] = [port_of_tls(&own, None, http).await, port_of_tls(&own, None, grpc).await];
    let [http, grpc] = [http, grpc].map(|port| format!("https://localhost:{port}"));
    let (http, grpc) = (http::Client::with_options(&http, &options), grpc::Client::with_options(&grpc, &options));
    let (http, grpc) = (http.unwrap(), grpc.unwrap());
    let numbers = |name| Tensor::from_slice(name, &[1, 16], &[2i32; 16]).unwrap();
    let request = Request::new("simple").input(numbers("INPUT0")).input(numbers("INPUT1"));
    for response in [http.infer(&request).await, grpc.infer(&request).await] {
        assert_eq!(response.unwrap().output("OUTPUT0").unwrap().as_slice::<i32>().unwrap(), [4; 16]);
    }
}

#[tokio::test]
async fn a_call_without_an_answer_ends_at_its_limit() {
    let address = format!("http://{}", page(None).await);
    let options = ClientOptions::default().request_max(Duration::from_millis(50));
    let http = http::Client::with_options(&address, &options).unwrap();
    let grpc = grpc::Client::with_options(&address, &options).unwrap();
    let began = Instant::now();
    for result in [http.page("/").await.map(drop), grpc.is_live().await.map(drop)] {
        let error = result.unwrap_err().to_string();
        assert_eq!(error, format!("no answer from {address} within 50 ms; ClientOptions::request_max allows more"));
    }
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn a_connection_that_is_not_agreed_on_ends_at_its_limit() {
    // The server at this address never answers the TLS handshake.
    let address = format!("https://{}", page(None).await);
    let options = ClientOptions::default()
        .tls(believing(&certificate("localhost")).server_name("localhost"))
        .connect_max(Duration::from_millis(50));
    let http = http::Client::with_options(&address, &options).unwrap();
    let grpc = grpc::Client::with_options(&address, &options).unwrap();
    for result in [http.is_live().await, grpc.is_live().await] {
        let error = result.unwrap_err().to_string();
        let text =
            format!("cannot connect to {address}: no connection within 50 ms; ClientOptions::connect_max allows more");
        assert_eq!(error, text);
    }
}
