//! Who may listen in, and who may connect?

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{Error, RootCertStore, ServerConfig};

/// The certificates of a port.
#[derive(Clone)]
pub struct Tls(pub(crate) TlsAcceptor);

/// Why a port cannot be secured.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds no PEM.
    #[error("'{}' cannot be read as PEM: {cause}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        cause: pem::Error,
    },
    /// The certificate and the key do not go together, or are of a kind that is not known.
    #[error("the certificate of '{}' cannot be used: {cause}", path.display())]
    Certificate {
        /// The certificate's file.
        path: PathBuf,
        /// What is wrong with it.
        cause: Error,
    },
    /// Clients cannot be checked against these certificates.
    #[error("clients cannot be checked against '{}': {cause}", path.display())]
    Roots {
        /// The file of root certificates.
        path: PathBuf,
        /// What is wrong with them.
        cause: VerifierBuilderError,
    },
}

impl Tls {
    /// Reads PEM files: the server's certificate chain and its key. With `client_roots`, clients must show a certificate
    /// that one of those signed.
    pub fn from_files(certificate: &Path, key: &Path, client_roots: Option<&Path>) -> Result<Tls, TlsError> {
        let chain = certificates(certificate)?;
        let private =
            PrivateKeyDer::from_pem_file(key).map_err(|cause| TlsError::File { path: key.to_owned(), cause })?;
        let provider = Arc::new(ring::default_provider());
        let unusable = |cause| TlsError::Certificate { path: certificate.to_owned(), cause };
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let config = match client_roots {
            None => config.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for root in certificates(path)? {
                    roots.add(root).map_err(|cause| TlsError::Certificate { path: path.to_owned(), cause })?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier.build().map_err(|cause| TlsError::Roots { path: path.to_owned(), cause })?;
                config.with_client_cert_verifier(verifier)
            }
        };
        let mut config = config.with_single_cert(chain, private).map_err(unusable)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Tls(TlsAcceptor::from(Arc::new(config))))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |cause| TlsError::File { path: path.to_owned(), cause };
    CertificateDer::pem_file_iter(path).map_err(unreadable)?.collect::<Result<_, _>>().map_err(unreadable)
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}
