//! How do the commands of this program ask a server over HTTP?
//!
//! They send the token of `NERITE_TOKEN`, which the client reads itself, and use TLS for addresses of `https://`.

use std::path::{Path, PathBuf};

use nerite_client::{ClientOptions, Tls, http};

/// Which certificates to trust, and which one to present, at an address of `https://`. The options are named as in curl.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Certificates {
    /// Believed in place of the system's.
    authority: Option<PathBuf>,
    /// Shown to a server that asks for one, and its key.
    own: Option<PathBuf>,
    key: Option<PathBuf>,
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

    /// A client of the server at this address.
    pub(crate) fn client(&self, url: &str) -> Result<http::Client, String> {
        let text = |error: nerite_client::Error| error.to_string();
        let options = match self.tls()? {
            Some(tls) => ClientOptions::default().tls(tls),
            None => ClientOptions::default(),
        };
        http::Client::with_options(url, &options).map_err(text)
    }

    fn tls(&self) -> Result<Option<Tls>, String> {
        let text = |error: nerite_client::Error| error.to_string();
        if self.is_none() {
            return Ok(None);
        }
        let tls = self.authority.as_ref().map_or_else(Tls::with_system_roots, Tls::with_roots_file).map_err(text)?;
        match (&self.own, &self.key) {
            (None, None) => Ok(Some(tls)),
            (Some(own), Some(key)) => tls.identity_pem(&read(own)?, &read(key)?).map(Some).map_err(text),
            _ => Err("--cert and --key are given together".to_owned()),
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_has_its_key() {
        let mut certificates = Certificates::default();
        assert!(certificates.client("https://a:1").is_ok() || Tls::with_system_roots().is_err());
        assert_eq!(certificates.take("--other", || Ok("x")), Ok(false));
        assert_eq!(certificates.take("--cert", || Ok("/nowhere/cert.pem")), Ok(true));
        let refused = |certificates: &Certificates| certificates.client("https://a:1").map(drop).expect_err("refused");
        assert!(Tls::with_system_roots().is_err() || refused(&certificates).contains("--cert and --key"));
        assert_eq!(certificates.take("--cacert", || Ok("/nowhere/ca.pem")), Ok(true));
        assert!(refused(&certificates).contains("/nowhere/ca.pem"));
    }
}
