//! Which certificates does a client trust, and which one does it present?

mod pinned;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{ClientConfig, Error as TlsError, RootCertStore};

use self::pinned::Pinned;
use crate::Error;

/// The variable that names a file of certificates to trust instead of the system's, as for OpenSSL.
const ROOTS_FILE: &str = "SSL_CERT_FILE";
/// The files in which distributions keep the certificates that they trust.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// What a client presents, in errors.
const OWN: &str = "the certificate to show";
const OWN_KEY: &str = "the key to show a certificate";

/// Certificates for addresses of `https://`.
#[derive(Clone)]
pub struct Tls {
    trusted: Trusted,
    identity: Option<Arc<Identity>>,
    server_name: Option<String>,
}

/// Which servers are trusted.
#[derive(Clone)]
enum Trusted {
    /// Servers with a certificate for their name that is signed by one of these.
    Roots(Arc<RootCertStore>),
    /// A server that presents exactly this certificate.
    Server(CertificateDer<'static>),
}

struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Tls {
    /// Trusts the certificates that the system trusts: those in the file that `SSL_CERT_FILE` names, or in the bundle of the distribution.
    pub fn with_system_roots() -> Result<Tls, Error> {
        if let Some(named) = std::env::var_os(ROOTS_FILE).filter(|name| !name.is_empty()).map(PathBuf::from) {
            return Tls::with_roots_at(&named, &format!("{ROOTS_FILE}={}", named.display()));
        }
        let found = SYSTEM_ROOTS.iter().map(Path::new).find(|path| path.exists());
        Tls::with_roots_file(found.ok_or_else(|| {
            fault("the system's root certificates", &format!("no file with them was found; name one in {ROOTS_FILE}"))
        })?)
    }

    /// Trusts the certificates in this PEM file, and the certificates that they signed.
    pub fn with_roots_file(path: impl AsRef<Path>) -> Result<Tls, Error> {
        let path = path.as_ref();
        Tls::with_roots_at(path, &path.display().to_string())
    }

    /// Trusts these certificates, in PEM, and the certificates that they signed.
    pub fn with_roots_pem(pem: &[u8]) -> Result<Tls, Error> {
        Tls::with_roots("the root certificates", pem)
    }

    /// Trusts a server that presents exactly this certificate, in PEM. The certificate's name and validity period are not checked. This is for users who have
    /// the server's own certificate file. Further certificates in the file are its chain, and are not trusted.
    pub fn with_server_certificate_pem(pem: &[u8]) -> Result<Tls, Error> {
        let called = "the server's certificate";
        let first = certificates(called, pem)?.into_iter().next();
        let shown = first.ok_or_else(|| fault(called, &"no certificate in it; give the server's in PEM"))?;
        Ok(Tls { trusted: Trusted::Server(shown), identity: None, server_name: None })
    }

    /// Presents this certificate to servers that request one. `chain` is the certificate and its chain, `key` is its key, both in PEM.
    pub fn identity_pem(mut self, chain: &[u8], key: &[u8]) -> Result<Tls, Error> {
        let chain = certificates(OWN, chain)?;
        if chain.is_empty() {
            return Err(fault(OWN, &"no certificate in it; give the client's in PEM"));
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
            pem::Error::NoItemsFound => fault(OWN_KEY, &"no private key in it; give it in PEM, without a password"),
            error => fault(OWN_KEY, &error),
        })?;
        match CertifiedKey::from_der(chain.clone(), key.clone_key(), &ring::default_provider()) {
            Err(TlsError::InconsistentKeys(_)) => return Err(fault(OWN_KEY, &"it is the key of another certificate")),
            Err(error) => return Err(fault(OWN, &error)),
            Ok(_) => {}
        }
        self.identity = Some(Arc::new(Identity { chain, key }));
        Ok(self)
    }

    /// Sets the name that the server's certificate must have, if it differs from the address.
    pub fn server_name(mut self, name: &str) -> Tls {
        self.server_name = Some(name.to_owned());
        self
    }

    fn with_roots_at(path: &Path, called: &str) -> Result<Tls, Error> {
        Tls::with_roots(called, &std::fs::read(path).map_err(|error| fault(called, &error))?)
    }

    fn with_roots(called: &str, pem: &[u8]) -> Result<Tls, Error> {
        let mut roots = RootCertStore::empty();
        // A system's bundle may have certificates that cannot be used here.
        let (believed, _) = roots.add_parsable_certificates(certificates(called, pem)?);
        if believed == 0 {
            return Err(fault(called, &"no certificate in it; give the authority's in PEM"));
        }
        Ok(Tls { trusted: Trusted::Roots(Arc::new(roots)), identity: None, server_name: None })
    }

    /// A connector for `host` and `protocol` (ALPN), and the name that the server's certificate must have.
    pub(crate) fn connector(&self, host: &str, protocol: &[u8]) -> Result<(TlsConnector, ServerName<'static>), Error> {
        let (config, name) = self.rustls_config(host, protocol)?;
        Ok((TlsConnector::from(config), name))
    }

    /// The same certificates for connections that a program makes by itself with the crate `rustls`. Returns its configuration for `protocol` (ALPN), such
    /// as `http/1.1`, and the name that the certificate of the server at `host` must have.
    pub fn rustls_config(
        &self,
        host: &str,
        protocol: &[u8],
    ) -> Result<(Arc<ClientConfig>, ServerName<'static>), Error> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| fault("the settings", &error))?;
        let builder = match &self.trusted {
            Trusted::Roots(roots) => builder.with_root_certificates(Arc::clone(roots)),
            Trusted::Server(shown) => {
                let verifier = Pinned::new(shown.clone(), provider.signature_verification_algorithms);
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
        };
        let mut config = match self.identity.as_deref() {
            None => builder.with_no_client_auth(),
            Some(Identity { chain, key }) => {
                builder.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(|error| fault(OWN, &error))?
            }
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = self.server_name.as_deref().unwrap_or(host).to_owned();
        let read =
            ServerName::try_from(name.clone()).map_err(|error| fault(&format!("server name '{name}'"), &error))?;
        Ok((Arc::new(config), read))
    }
}

fn certificates(called: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| fault(called, &error))
}

fn fault(what: &str, reason: &dyn fmt::Display) -> Error {
    Error::Tls { what: what.to_owned(), reason: reason.to_string() }
}

impl fmt::Debug for Tls {
    /// Omits the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trusted = match &self.trusted {
            Trusted::Roots(roots) => format!("{} roots", roots.len()),
            Trusted::Server(_) => "one certificate".to_owned(),
        };
        write!(f, "Tls({trusted}, shows a certificate: {})", self.identity.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(made: Result<Tls, Error>, text: &str) {
        let error = made.expect_err("refused").to_string();
        assert!(error.contains(text), "{error}");
    }

    #[test]
    fn certificates_that_are_none_are_refused_with_the_cure() {
        check(
            Tls::with_roots_pem(b"nothing"),
            "TLS: the root certificates: no certificate in it; give the authority's",
        );
        check(Tls::with_roots_file("/nonexistent/roots.pem"), "TLS: /nonexistent/roots.pem: No such file");
    }
}
