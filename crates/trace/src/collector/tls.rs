//! Which collectors are trusted over `https://`?

use std::path::PathBuf;
use std::sync::Arc;

use nerite_memory::read_regular_file;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The largest file of certificates that is read. Those of systems have some 200 KB.
const CERTIFICATES_BYTES_MAX: u64 = 4 << 20;
/// Names a file of certificates to trust in place of the system's, as for OpenSSL.
const ROOTS_FILE: &str = "SSL_CERT_FILE";
/// Where systems keep the certificates that they trust.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Encrypts connections to one host.
pub(super) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Tls {
    /// Trusts the certificates in this file, or the system's if it is empty.
    pub(super) fn new(host: &str, certificates: &str) -> Result<Tls, String> {
        let path = if certificates.is_empty() { system_roots()? } else { PathBuf::from(certificates) };
        let wrong = |error: &dyn std::fmt::Display| {
            let cure = "name the authority's in PEM by OTEL_EXPORTER_OTLP_CERTIFICATE";
            format!("certificates in '{}': {error}; {cure}", path.display())
        };
        let (pem, _) = read_regular_file(&path, CERTIFICATES_BYTES_MAX).map_err(|error| wrong(&error))?;
        let mut roots = RootCertStore::empty();
        // A system's bundle may contain certificates that cannot be used here. They are ignored.
        let (believed, _) = roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).flatten());
        if believed == 0 {
            return Err(wrong(&"there is none"));
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(&error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(host.to_owned()).map_err(|error| format!("'{host}' is no name: {error}"))?;
        Ok(Tls { connector: TlsConnector::from(Arc::new(config)), name })
    }

    pub(super) async fn over(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
        self.connector.connect(self.name.clone(), stream).await.map_err(|error| error.to_string())
    }
}

fn system_roots() -> Result<PathBuf, String> {
    let named = std::env::var_os(ROOTS_FILE).filter(|name| !name.is_empty()).map(PathBuf::from);
    let found = named.or_else(|| SYSTEM_ROOTS.iter().map(PathBuf::from).find(|path| path.exists()));
    found.ok_or_else(|| format!("there is no file of the system's certificates; name one by {ROOTS_FILE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_never_ends_is_refused() {
        let refused = Tls::new("localhost", "/dev/zero").map(drop).expect_err("no certificates");
        let expect = "certificates in '/dev/zero': it is no regular file; name the authority's in PEM by OTEL_EXPORTER_OTLP_CERTIFICATE";
        assert_eq!(refused, expect);
    }
}
