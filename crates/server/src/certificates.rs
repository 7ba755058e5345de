//! How do the commands of this program ask a server over HTTP?
//!
//! They send the token of `NERITE_TOKEN`, which the client reads itself, and use TLS for addresses of `https://`.

use std::path::{Path, PathBuf};

use nerite_client::{ClientOptions, Error, HandshakeFault, Tls, http};
use nerite_listen::limits::CERTIFICATES_BYTES_MAX;
use nerite_memory::read_regular_file;

/// Which certificates to trust, and which one to present, at an address of `https://`. The options are named as in curl.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Certificates {
    /// The authorities to trust in place of the system's.
    authority: Option<PathBuf>,
    /// The client certificate, with its key. It is presented to a server that requests one.
    own: Option<PathBuf>,
    key: Option<PathBuf>,
    /// The server's own certificate, if its settings are known. It is trusted whatever its name, unless an authority is given.
    shown: Option<PathBuf>,
}

impl Certificates {
    /// Takes an option if it is one of these.
    pub(crate) fn take<V: Into<PathBuf>>(
        &mut self,
        option: &str,
        value: impl FnOnce() -> Result<V, String>,
    ) -> Result<bool, String> {
        let file = match option {
            "--cacert" => &mut self.authority,
            "--cert" => &mut self.own,
            "--key" => &mut self.key,
            _ => return Ok(false),
        };
        *file = Some(value()?.into());
        Ok(true)
    }

    /// Whether none was given.
    pub(crate) fn is_none(&self) -> bool {
        *self == Certificates::default()
    }

    /// Whether a certificate was given to show to servers.
    pub(crate) fn has_own(&self) -> bool {
        self.own.is_some()
    }

    /// Trusts the server that shows the certificate in this file.
    pub(crate) fn trust_shown(mut self, certificate: Option<PathBuf>) -> Certificates {
        self.shown = certificate;
        self
    }

    /// A client of the server at this address.
    pub(crate) fn client(&self, url: &str) -> Result<http::Client, String> {
        http::Client::with_options(url, &self.options(url)?).map_err(|error| self.explain(&error))
    }

    /// How a client of either protocol connects to this address.
    pub(crate) fn options(&self, url: &str) -> Result<ClientOptions, String> {
        if url.starts_with("https://") || url.starts_with("grpcs://") {
            return Ok(ClientOptions::default().tls(self.tls()?));
        }
        if self.is_none() {
            return Ok(ClientOptions::default());
        }
        Err(format!(
            "--cacert, --cert and --key are for addresses of https://, and the address is '{url}'; write https://, or leave \
             them out"
        ))
    }

    fn tls(&self) -> Result<Tls, String> {
        let tls = match (&self.authority, &self.shown) {
            (Some(authority), _) => Tls::with_roots_pem(&read("--cacert", authority)?)
                .map_err(|error| format!("--cacert '{}': {}", authority.display(), reason_of(&error)))?,
            (None, Some(shown)) => Tls::with_server_certificate_pem(&read("the server's certificate", shown)?)
                .map_err(|error| format!("the server's certificate '{}': {}", shown.display(), reason_of(&error)))?,
            (None, None) => Tls::with_system_roots()
                .map_err(|error| format!("{error}; --cacert FILE names other certificates to believe"))?,
        };
        match (&self.own, &self.key) {
            (None, None) => Ok(tls),
            (Some(own), Some(key)) => {
                let made = tls.identity_pem(&read("--cert", own)?, &read("--key", key)?);
                let named = || format!("--cert '{}' and --key '{}'", own.display(), key.display());
                made.map_err(|error| format!("{}: {error}", named()))
            }
            _ => Err("--cert and --key are given together".to_owned()),
        }
    }

    /// The text of an error of a call, with the cure if the two sides do not agree on TLS.
    pub(crate) fn explain(&self, error: &Error) -> String {
        match error {
            Error::Handshake { endpoint, fault } => format!("{error}; {}", self.cure(endpoint, fault)),
            other => other.to_string(),
        }
    }

    fn cure(&self, endpoint: &str, fault: &HandshakeFault) -> String {
        let at = endpoint.split_once("://").map_or(endpoint, |(_, at)| at);
        match fault {
            HandshakeFault::PortHasTls => format!(
                "give the URL https://{at}, and --cacert FILE unless the system trusts the authority of the server's \
                 certificate"
            ),
            HandshakeFault::PortHasNoTls | HandshakeFault::Closed => {
                format!("give the URL http://{at}, without --cacert, --cert and --key")
            }
            HandshakeFault::UntrustedServer => match &self.authority {
                Some(file) => format!(
                    "--cacert is '{}', which has none that did; name the file with the certificate of the authority that did",
                    file.display()
                ),
                None => "name the file with the authority's certificate, in PEM: --cacert FILE".to_owned(),
            },
            HandshakeFault::WrongSignature => {
                "name the file with the certificate that the authority has now: --cacert FILE".to_owned()
            }
            HandshakeFault::OtherName { .. } => {
                "ask by a URL with a name of the certificate, or give the server a certificate for this one".to_owned()
            }
            HandshakeFault::NotValidNow(_) => "renew the certificate, or set this host's clock".to_owned(),
            HandshakeFault::AuthorityAsServer => {
                "give the server a certificate of its own, made with basicConstraints=CA:FALSE".to_owned()
            }
            HandshakeFault::OtherCertificate => {
                let shown = self.shown.as_deref().unwrap_or(Path::new("")).display();
                format!(
                    "that is '{shown}', by the settings; give those of this server, or trust its authority by --cacert FILE"
                )
            }
            HandshakeFault::WantsCertificate | HandshakeFault::RefusedCertificate(_) => {
                "present one that an authority of the server signed: --cert FILE and --key FILE".to_owned()
            }
        }
    }
}

/// What is wrong with certificates, without the name that the client has for them.
fn reason_of(error: &Error) -> String {
    match error {
        Error::Tls { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}

fn read(called: &str, path: &Path) -> Result<Vec<u8>, String> {
    read_regular_file(path, CERTIFICATES_BYTES_MAX)
        .map(|(bytes, _)| bytes)
        .map_err(|error| format!("{called} '{}' cannot be read: {error}; name a PEM file", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(options: &[(&str, &str)]) -> Certificates {
        let mut certificates = Certificates::default();
        for &(option, value) in options {
            assert_eq!(certificates.take(option, || Ok(value)), Ok(true));
        }
        certificates
    }

    #[track_caller]
    fn check_refused(options: &[(&str, &str)], url: &str, expect: &str) {
        let refused = given(options).client(url).map(drop).expect_err("refused");
        assert_eq!(refused, expect, "{options:?}");
    }

    #[test]
    fn files_that_cannot_be_used_are_named_with_their_options() {
        let (ca, url) = (("--cacert", "/nowhere/ca.pem"), "https://a:1");
        assert_eq!(Certificates::default().take("--other", || Ok("x")), Ok(false));
        let missing = "cannot be read: No such file or directory (os error 2); name a PEM file";
        check_refused(&[ca], url, &format!("--cacert '/nowhere/ca.pem' {missing}"));
        let other = "--cacert, --cert and --key are for addresses of https://, and the address is 'a:1'; write https://, or \
                     leave them out";
        check_refused(&[ca], "a:1", other);
        let device = "--cacert '/dev/zero' cannot be read: it is no regular file; name a PEM file";
        check_refused(&[("--cacert", "/dev/zero")], url, device);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f").display().to_string();
        std::fs::write(&path, "nothing").expect("written");
        let none = format!("--cacert '{path}': no certificate in it; give the authority's in PEM");
        check_refused(&[("--cacert", &path)], url, &none);
        if Tls::with_system_roots().is_err() {
            return;
        }
        check_refused(&[("--cert", "/c")], url, "--cert and --key are given together");
        check_refused(&[("--cert", "/nowhere/c"), ("--key", &path)], url, &format!("--cert '/nowhere/c' {missing}"));
        check_refused(&[("--cert", &path), ("--key", "/nowhere/k")], url, &format!("--key '/nowhere/k' {missing}"));
        let empty = format!(
            "--cert '{path}' and --key '{path}': TLS: the certificate to show: no certificate in it; give the client's in PEM"
        );
        check_refused(&[("--cert", &path), ("--key", &path)], url, &empty);
    }

    #[track_caller]
    fn check_cure(options: &[(&str, &str)], fault: HandshakeFault, expect: &str) {
        let error = Error::Handshake { endpoint: "https://a:1".to_owned(), fault };
        let text = given(options).explain(&error);
        assert_eq!(text, format!("{error}; {expect}"));
    }

    #[test]
    fn each_fault_has_its_cure() {
        let ca = ("--cacert", "/ca.pem");
        let secure = "give the URL https://a:1, and --cacert FILE unless the system trusts the authority of the server's \
                      certificate";
        check_cure(&[], HandshakeFault::PortHasTls, secure);
        let plain = "give the URL http://a:1, without --cacert, --cert and --key";
        check_cure(&[ca], HandshakeFault::PortHasNoTls, plain);
        check_cure(&[ca], HandshakeFault::Closed, plain);
        let name = "name the file with the authority's certificate, in PEM: --cacert FILE";
        check_cure(&[], HandshakeFault::UntrustedServer, name);
        let other = "--cacert is '/ca.pem', which has none that did; name the file with the certificate of the authority that did";
        check_cure(&[ca], HandshakeFault::UntrustedServer, other);
        let present = "present one that an authority of the server signed: --cert FILE and --key FILE";
        check_cure(&[ca], HandshakeFault::WantsCertificate, present);
        check_cure(&[ca], HandshakeFault::RefusedCertificate("UnknownCA".to_owned()), present);
        let url = "ask by a URL with a name of the certificate, or give the server a certificate for this one";
        check_cure(&[ca], HandshakeFault::OtherName { expected: "a".to_owned(), presented: "'b'".to_owned() }, url);
        let text = Certificates::default().explain(&Error::Answer("x".to_owned()));
        assert_eq!(text, "answer not understood: x");
    }
}
