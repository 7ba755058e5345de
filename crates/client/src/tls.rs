//! Which certificates does a client trust, and which one does it present?

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::Error;

/// Names a file of certificates to trust in place of the system's, as for OpenSSL.
const ROOTS_FILE: &str = "SSL_CERT_FILE";
/// Where systems keep the certificates that they trust.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Certificates for addresses of `https://`.
#[derive(Clone)]
pub struct Tls {
    roots: Arc<RootCertStore>,
    identity: Option<Arc<Identity>>,
    server_name: Option<String>,
}

struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Tls {
    /// Trusts what the system trusts: the file that `SSL_CERT_FILE` names, or the bundle of the distribution.
    pub fn with_system_roots() -> Result<Tls, Error> {
        let named = std::env::var_os(ROOTS_FILE).filter(|name| !name.is_empty()).map(PathBuf::from);
        let found = named.or_else(|| SYSTEM_ROOTS.iter().map(PathBuf::from).find(|path| path.exists()));
        let path = found.ok_or_else(|| {
            fault("the system's root certificates", &format!("no file of them is here; name one by {ROOTS_FILE}"))
        })?;
        Tls::with_roots_file(path)
    }

    /// Trusts the certificates in this PEM file, and those that they signed.
    pub fn with_roots_file(path: impl AsRef<Path>) -> Result<Tls, Error> {
        let path = path.as_ref();
        let called = path.display().to_string();
        Tls::with_roots(&called, &std::fs::read(path).map_err(|error| fault(&called, &error))?)
    }

    /// Believes these certificates, in PEM, and those that they signed.
    pub fn with_roots_pem(pem: &[u8]) -> Result<Tls, Error> {
        Tls::with_roots("the root certificates", pem)
    }

    /// Presents this certificate (its chain and its key, in PEM) to servers that ask for one.
    pub fn identity_pem(mut self, chain: &[u8], key: &[u8]) -> Result<Tls, Error> {
        let chain = certificates("the certificate to show", chain)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| fault("the key to show a certificate", &error))?;
        self.identity = Some(Arc::new(Identity { chain, key }));
        Ok(self)
    }

    /// Sets the name that the server's certificate must have, if it differs from the address.
    pub fn server_name(mut self, name: &str) -> Tls {
        self.server_name = Some(name.to_owned());
        self
    }

    fn with_roots(called: &str, pem: &[u8]) -> Result<Tls, Error> {
        let mut roots = RootCertStore::empty();
        // A system's bundle may have some that are of no use here.
        let (believed, _) = roots.add_parsable_certificates(certificates(called, pem)?);
        if believed == 0 {
            return Err(fault(called, &"no certificate in it; give the authority's in PEM"));
        }
        Ok(Tls { roots: Arc::new(roots), identity: None, server_name: None })
    }

    /// For connections to `host` that speak `protocol`.
    pub(crate) fn connector(&self, host: &str, protocol: &[u8]) -> Result<(TlsConnector, ServerName<'static>), Error> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| fault("the settings", &error))?
            .with_root_certificates(Arc::clone(&self.roots));
        let mut config = match self.identity.as_deref() {
            None => builder.with_no_client_auth(),
            Some(Identity { chain, key }) => builder
                .with_client_auth_cert(chain.clone(), key.clone_key())
                .map_err(|error| fault("the certificate to show", &error))?,
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = self.server_name.as_deref().unwrap_or(host).to_owned();
        let read =
            ServerName::try_from(name.clone()).map_err(|error| fault(&format!("server name '{name}'"), &error))?;
        Ok((TlsConnector::from(Arc::new(config)), read))
    }
}

fn certificates(called: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| fault(called, &error))
}

fn fault(what: &str, reason: &dyn fmt::Display) -> Error {
    Error::Tls { what: what.to_owned(), reason: reason.to_string() }
}

impl fmt::Debug for Tls {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({} roots, shows a certificate: {})", self.roots.len(), self.identity.is_some())
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
