//! With which files are the ports of HTTP, gRPC and metrics secured?

use std::path::PathBuf;

use nerite_listen::TlsFiles;

use super::{SettingsError, contradiction};
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
    let file = |name| values.text(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let (certificate, key, roots) = (file(flags.cert), file(flags.key), file(flags.roots));
    let needed = [(flags.cert, &certificate), (flags.key, &key), (flags.roots, &roots)];
    let lacking = needed.iter().take(if is_mutual { 3 } else { 2 }).filter(|(_, file)| file.is_none());
    let lacking: Vec<String> = lacking.map(|(name, _)| format!("--{name}=<file>")).collect();
    match (certificate, key) {
        (Some(certificate), Some(key)) if lacking.is_empty() => {
            Ok(Some(TlsFiles { certificate, key, client_roots: roots.filter(|_| is_mutual) }))
        }
        _ => {
            let flag = if is_mutual { flags.mutual } else { flags.use_ssl };
            let text = format!("--{flag} needs {}, in PEM format", lacking.join(" and "));
            Err(contradiction(text, &[flags.use_ssl, flags.mutual]))
        }
    }
}
