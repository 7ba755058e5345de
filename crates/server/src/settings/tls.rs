//! With which files are the ports of HTTP, gRPC and metrics secured?

use std::path::PathBuf;

use nerite_listen::TlsFiles;

use super::SettingsError;
use crate::flags::Values;

/// The names of the flags of one port.
pub(super) struct TlsFlags {
    pub(super) use_ssl: &'static str,
    pub(super) mutual: &'static str,
    pub(super) cert: &'static str,
    pub(super) key: &'static str,
    pub(super) roots: &'static str,
}

/// The files of a port; `None` if it is not secured. Mutual TLS implies TLS.
pub(super) fn tls_files(values: &Values<'_>, flags: &TlsFlags) -> Result<Option<TlsFiles>, SettingsError> {
    let is_mutual = values.bool(flags.mutual, false)?;
    if !is_mutual && !values.bool(flags.use_ssl, false)? {
        return Ok(None);
    }
    let file = |name| {
        let given = values.text(name).filter(|path| !path.is_empty());
        given.map(PathBuf::from).ok_or_else(|| {
            let flag = if is_mutual { flags.mutual } else { flags.use_ssl };
            SettingsError::Contradiction(format!("--{flag} needs --{name}=<file>, in PEM format"))
        })
    };
    let (certificate, key) = (file(flags.cert)?, file(flags.key)?);
    let client_roots = if is_mutual { Some(file(flags.roots)?) } else { None };
    Ok(Some(TlsFiles { certificate, key, client_roots }))
}
