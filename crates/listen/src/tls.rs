//! How is a port secured, and when are its certificates read again?
//!
//! A certificate that was renewed on disk is used for new connections, without a restart. The files are checked when a client connects, at
//! most once in [`CERTIFICATES_CHECK_INTERVAL`]. Connections that are open keep the certificate that they began with.

use std::fmt;
use std::fs;
use std::future::poll_fn;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use nerite_locks::Mutex;
use nerite_memory::read_regular_file;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{Error, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::certificate_ends::first_end_s;
use crate::connection_monitor::{ConnectionMonitor, EndReason};
use crate::limits::{CERTIFICATES_BYTES_MAX, CERTIFICATES_CHECK_INTERVAL, CERTIFICATES_WAIT_MAX};
use crate::stall::{Overdue, sleep_or_forever};
use crate::timed::Timed;

/// The certificates of a port. Clones share them.
#[derive(Clone)]
pub struct Tls(Arc<Secured>);

/// The PEM files of a port.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server's certificate chain.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// If present, clients must show a certificate that one of these signed.
    pub client_roots: Option<PathBuf>,
}

/// The application protocol of a port, which TLS negotiates (ALPN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplicationProtocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, which gRPC uses.
    Http2,
}

/// Why a port cannot be secured.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds no PEM.
    #[error("'{}' cannot be read as PEM: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: pem::Error,
    },
    /// The certificate and the key do not belong together, or their kind is not supported.
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

impl TlsError {
    /// The file that the error concerns.
    pub fn path(&self) -> &Path {
        match self {
            TlsError::File { path, .. } | TlsError::Certificate { path, .. } | TlsError::Roots { path, .. } => path,
        }
    }
}

struct Secured {
    files: TlsFiles,
    protocol: ApplicationProtocol,
    current: Mutex<Current>,
}

/// The files as they were last read.
struct Current {
    config: Arc<ServerConfig>,
    /// When the first certificate of the chain ends, in seconds since 1970. `None` if one of them does not tell.
    ends_at_s: Option<u64>,
    /// The files that were read last, whether they could be used or not. They are not read again until they change.
    read_from: Stamps,
    /// When the files may be checked again.
    check_at: Instant,
    is_checking: bool,
}

/// The device, inode and size of each file, and the time of its last change in seconds and ns. They differ once a file was changed or replaced. `None` for
/// a file that does not exist.
type Stamps = [Option<(u64, u64, u64, i64, i64)>; 3];

impl Tls {
    /// Reads the files of a port.
    pub fn from_files(files: TlsFiles, protocol: ApplicationProtocol) -> Result<Tls, TlsError> {
        // The stamps are taken before the files are read. So a file that changes meanwhile is read again.
        let read_from = files.stamps();
        let (config, ends_at_s) = files.read(protocol)?;
        let check_at = Instant::now() + CERTIFICATES_CHECK_INTERVAL;
        let current =
            Mutex::new(Current { config: Arc::new(config), ends_at_s, read_from, check_at, is_checking: false });
        Ok(Tls(Arc::new(Secured { files, protocol, current })))
    }

    /// When the first certificate ends of the chain that the next client gets, in seconds since 1970. `None` if a certificate does not tell.
    pub async fn ends_at_s(&self) -> Option<u64> {
        drop(self.config().await);
        self.0.lock().ends_at_s
    }

    /// Negotiates TLS with a client. `None` if that failed, took longer than `within`, or the server stops; the reason is logged or counted.
    pub async fn handshake(
        &self,
        socket: TcpStream,
        monitor: &mut ConnectionMonitor,
        within: Option<Duration>,
    ) -> Option<TlsStream<Timed<TcpStream>>> {
        let socket = Timed::new(socket, Arc::clone(monitor.progress()));
        let negotiated = async { TlsAcceptor::from(self.config().await).accept(socket).await };
        let negotiated = tokio::select! {
            biased;
            negotiated = negotiated => negotiated,
            () = sleep_or_forever(within) => {
                monitor.note_ended(Overdue::Head);
                return None;
            }
            // When the server stops or the connection is evicted, the handshake is given up at once.
            why = poll_fn(|cx| monitor.poll(cx, Duration::ZERO)) => {
                if let EndReason::Overdue(overdue) = why {
                    monitor.note_ended(overdue);
                }
                return None;
            }
        };
        negotiated.inspect_err(|error| log::debug!("the TLS handshake with a client failed: {error}")).ok()
    }

    /// The configuration for a new connection. Reads the files again if they changed.
    async fn config(&self) -> Arc<ServerConfig> {
        if self.0.begin_check(Instant::now()) {
            let secured = Arc::clone(&self.0);
            #[expect(clippy::disallowed_methods, reason = "one at a time for a port, and at most one a second")]
            let check = tokio::task::spawn_blocking(move || secured.check());
            // A check that takes longer goes on, and later connections use its result.
            if let Ok(Err(_)) = tokio::time::timeout(CERTIFICATES_WAIT_MAX, check).await {
                log::error!("the certificates of {} could not be checked", self.0.files.certificate.display());
            }
        }
        Arc::clone(&self.0.lock().config)
    }
}

impl Secured {
    fn lock(&self) -> impl std::ops::DerefMut<Target = Current> + '_ {
        // A panic while the lock is held leaves the fields valid: each change is one assignment.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the caller is to check the files now.
    fn begin_check(&self, now: Instant) -> bool {
        let mut current = self.lock();
        let is_due = now >= current.check_at && !current.is_checking;
        if is_due {
            current.is_checking = true;
        }
        is_due
    }

    /// Reads the files again if they changed since they were read last.
    fn check(&self) {
        let stamps = self.files.stamps();
        let has_changed = self.lock().read_from != stamps;
        let read = has_changed.then(|| self.files.read(self.protocol));
        let mut current = self.lock();
        current.read_from = stamps;
        current.is_checking = false;
        current.check_at = Instant::now() + CERTIFICATES_CHECK_INTERVAL;
        match read {
            None => {}
            Some(Ok((config, ends_at_s))) => {
                (current.config, current.ends_at_s) = (Arc::new(config), ends_at_s);
                log::info!(
                    "the changed certificate '{}' is used for new connections",
                    self.files.certificate.display()
                );
            }
            Some(Err(error)) => {
                log::error!("the certificate in use is kept, because the changed files cannot be used: {error}");
            }
        }
    }
}

impl TlsFiles {
    /// All reasons why these files cannot secure a port, as far as they can be found now. Whether the certificate and the key belong together is checked only
    /// if all files can be read.
    pub fn faults(&self, protocol: ApplicationProtocol) -> Vec<TlsError> {
        let roots = self.client_roots.as_deref().and_then(|path| certificates(path).err());
        let faults = [certificates(&self.certificate).err(), private_key(&self.key).err(), roots];
        let faults: Vec<TlsError> = faults.into_iter().flatten().collect();
        if faults.is_empty() { self.read(protocol).err().into_iter().collect() } else { faults }
    }

    fn stamps(&self) -> Stamps {
        let stamp = |path: &Path| {
            let found = fs::metadata(path).ok()?;
            Some((found.dev(), found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
        };
        [stamp(&self.certificate), stamp(&self.key), self.client_roots.as_deref().and_then(stamp)]
    }

    /// The configuration, and when the first certificate of the chain ends.
    fn read(&self, protocol: ApplicationProtocol) -> Result<(ServerConfig, Option<u64>), TlsError> {
        let chain = certificates(&self.certificate)?;
        let ends_at_s = first_end_s(&chain);
        let private = private_key(&self.key)?;
        let provider = Arc::new(ring::default_provider());
        let unusable = |cause| TlsError::Certificate { path: self.certificate.clone(), cause };
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let config = match &self.client_roots {
            None => config.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for root in certificates(path)? {
                    roots.add(root).map_err(|cause| TlsError::Certificate { path: path.clone(), cause })?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier.build().map_err(|cause| TlsError::Roots { path: path.clone(), cause })?;
                config.with_client_cert_verifier(verifier)
            }
        };
        let mut config = config.with_single_cert(chain, private).map_err(unusable)?;
        config.alpn_protocols = vec![match protocol {
            ApplicationProtocol::Http1 => b"http/1.1".to_vec(),
            ApplicationProtocol::Http2 => b"h2".to_vec(),
        }];
        Ok((config, ends_at_s))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |cause| TlsError::File { path: path.to_owned(), cause };
    let found: Vec<_> = CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<_, _>>().map_err(unreadable)?;
    if found.is_empty() { Err(unreadable(pem::Error::NoItemsFound)) } else { Ok(found) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let unreadable = |cause| TlsError::File { path: path.to_owned(), cause };
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(unreadable)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |cause| TlsError::File { path: path.to_owned(), cause: pem::Error::Io(cause) };
    read_regular_file(path, CERTIFICATES_BYTES_MAX).map(|(bytes, _)| bytes).map_err(unreadable)
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.0.files).finish()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// A folder with the certificate and the key of a server.
    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Folder {
            let folder = Folder(tempfile::tempdir().unwrap());
            folder.renew();
            folder
        }

        fn files(&self) -> TlsFiles {
            let path = |name| self.0.path().join(name);
            TlsFiles { certificate: path("server.pem"), key: path("server.key"), client_roots: None }
        }

        /// Writes a new certificate with its key.
        fn renew(&self) {
            let (certificate, key) = made();
            put(&self.files().certificate, &certificate);
            put(&self.files().key, &key);
        }
    }

    /// Replaces a file. Writing to it instead could leave its size and, within a few ms, its times as they were.
    fn put(path: &Path, text: &str) {
        let fresh = path.with_extension("new");
        fs::write(&fresh, text).unwrap();
        fs::rename(&fresh, path).unwrap();
    }

    fn made() -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// The configuration that a connection gets when the files may be checked again.
    fn config_when_due(tls: &Tls) -> Arc<ServerConfig> {
        let due = tls.0.lock().check_at;
        assert!(tls.0.begin_check(due));
        tls.0.check();
        Arc::clone(&tls.0.lock().config)
    }

    #[test]
    fn all_faults_of_the_files_are_named_at_once() {
        let folder = Folder::new();
        let faults = |files: TlsFiles| {
            let faults = files.faults(ApplicationProtocol::Http1).into_iter();
            faults.map(|error| error.path().file_name().unwrap().display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(faults(folder.files()), Vec::<String>::new());
        let none = |name: &str| folder.0.path().join(name);
        let files = TlsFiles { certificate: none("a"), key: none("b"), client_roots: Some(none("c")) };
        assert_eq!(faults(files), ["a", "b", "c"]);
        assert_eq!(faults(TlsFiles { key: none("b"), ..folder.files() }), ["b"]);
        // A key of another certificate.
        put(&folder.files().key, &made().1);
        assert_eq!(faults(folder.files()), ["server.pem"]);
    }

    #[test]
    fn changed_files_are_read_again_and_unchanged_ones_are_not() {
        let folder = Folder::new();
        let tls = Tls::from_files(folder.files(), ApplicationProtocol::Http2).unwrap();
        let first = config_when_due(&tls);
        assert!(Arc::ptr_eq(&first, &config_when_due(&tls)));
        folder.renew();
        let before = tls.0.lock().check_at.checked_sub(Duration::from_nanos(1)).unwrap();
        assert!(!tls.0.begin_check(before), "checked before the interval was over");
        let second = config_when_due(&tls);
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&second, &config_when_due(&tls)));
    }

    #[test]
    fn files_that_cannot_be_used_leave_the_old_certificate_in_use_until_they_can() {
        let folder = Folder::new();
        let tls = Tls::from_files(folder.files(), ApplicationProtocol::Http1).unwrap();
        let first = config_when_due(&tls);
        let (certificate, key) = made();
        // The certificate is replaced before its key, as when both are copied one after the other.
        put(&folder.files().certificate, &certificate);
        assert!(Arc::ptr_eq(&first, &config_when_due(&tls)));
        fs::remove_file(folder.files().key).unwrap();
        assert!(Arc::ptr_eq(&first, &config_when_due(&tls)));
        put(&folder.files().key, &key);
        assert!(!Arc::ptr_eq(&first, &config_when_due(&tls)));
    }

    #[test]
    fn a_fifo_in_the_place_of_a_file_is_refused_and_waits_for_nobody() {
        let folder = Folder::new();
        let tls = Tls::from_files(folder.files(), ApplicationProtocol::Http1).unwrap();
        for path in [folder.files().key, folder.files().certificate] {
            let first = config_when_due(&tls);
            fs::remove_file(&path).unwrap();
            assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
            assert!(Arc::ptr_eq(&first, &config_when_due(&tls)));
            fs::remove_file(&path).unwrap();
            folder.renew();
            assert!(!Arc::ptr_eq(&first, &config_when_due(&tls)));
        }
    }

    #[tokio::test]
    async fn who_asks_for_the_end_of_a_certificate_has_changed_files_read() {
        let folder = Folder::new();
        put_ending(&folder, 2030);
        let tls = Tls::from_files(folder.files(), ApplicationProtocol::Http1).unwrap();
        assert_eq!(tls.ends_at_s().await, Some(1_893_456_000));
        put_ending(&folder, 2031);
        tls.0.lock().check_at = Instant::now();
        assert_eq!(tls.ends_at_s().await, Some(1_893_456_000 + 365 * 86_400));
    }

    /// Writes a certificate that ends when that year begins.
    fn put_ending(folder: &Folder, year: i32) {
        let key = KeyPair::generate().unwrap();
        let mut wanted = CertificateParams::new(["localhost".to_owned()]).unwrap();
        wanted.not_after = rcgen::date_time_ymd(year, 1, 1);
        put(&folder.files().certificate, &wanted.self_signed(&key).unwrap().pem());
        put(&folder.files().key, &key.serialize_pem());
    }

    #[test]
    fn one_connection_checks_while_others_go_on() {
        let folder = Folder::new();
        let tls = Tls::from_files(folder.files(), ApplicationProtocol::Http2).unwrap();
        let due = tls.0.lock().check_at;
        assert!(tls.0.begin_check(due));
        assert!(!tls.0.begin_check(due));
        tls.0.check();
        assert!(tls.0.begin_check(due + 2 * CERTIFICATES_CHECK_INTERVAL));
    }
}
