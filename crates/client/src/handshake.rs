//! Why do a client and a server not agree on TLS?
//!
//! The fault travels inside of an `io::Error` through the libraries of HTTP. [`HandshakeFault::in_chain`] finds it there again.

use std::error::Error;
use std::io;

use tokio_rustls::rustls::{AlertDescription, CertificateError, Error as TlsError, InvalidMessage};

/// Why a client and a server do not agree on TLS. The text of a certificate is the server's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeFault {
    /// The address is of `http://`, and the port speaks TLS.
    #[error("the port speaks TLS, and the address is of http://")]
    PortHasTls,
    /// The address is of `https://`, and the port does not speak TLS.
    #[error("the address is of https://, and the port does not speak TLS")]
    PortHasNoTls,
    /// The server closed the connection before both had agreed on TLS. Some ports without TLS do that.
    #[error("the server closed the connection during the TLS handshake; perhaps the port does not speak TLS")]
    Closed,
    /// No authority that the client trusts signed the server's certificate.
    #[error("no trusted authority signed the server's certificate")]
    UntrustedServer,
    /// A signature of the server is wrong. A trusted authority has the name of the server's one and another key, or the server lacks the key of its
    /// certificate.
    #[error(
        "the server's certificate is not signed with the key of the trusted authority of that name, or the server lacks its key"
    )]
    WrongSignature,
    /// The server's certificate is for other names.
    #[error("the server's certificate is for {presented}, and not for '{expected}'")]
    OtherName {
        /// The name or address that the client asked for.
        expected: String,
        /// The names in the certificate.
        presented: String,
    },
    /// The server's certificate has expired, or is not valid yet.
    #[error("the server's certificate cannot be used today: {0}")]
    NotValidNow(String),
    /// The server presents the certificate of an authority as its own.
    #[error("the server's certificate is that of an authority (CA:TRUE), which no server may present as its own")]
    AuthorityAsServer,
    /// The server presents another certificate than the only one that the client trusts.
    #[error("the server shows another certificate than the one that is trusted")]
    OtherCertificate,
    /// The server requires a certificate of its clients, and the client presented none.
    #[error("the server requires a certificate of its clients")]
    WantsCertificate,
    /// The server does not accept the certificate that the client presented.
    #[error("the server does not accept the client's certificate, or the lack of one ({0})")]
    RefusedCertificate(String),
}

/// The library's error where a server presents another certificate than the only one that the client trusts.
pub(crate) const OTHER_CERTIFICATE: &str = "another certificate than the trusted one";

/// The first bytes of an alert: its type, and the first byte of the version. A server that speaks TLS answers a client that does not with one.
pub(crate) const ALERT: [u8; 2] = [0x15, 0x03];

impl HandshakeFault {
    /// The fault among the causes of this error.
    pub(crate) fn in_chain(error: &(dyn Error + 'static)) -> Option<HandshakeFault> {
        let mut next = Some(error);
        while let Some(cause) = next {
            if let Some(fault) = cause.downcast_ref::<HandshakeFault>() {
                return Some(fault.clone());
            }
            // The `source` of such an error is that of the error inside it, not the error itself.
            next = match cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
                Some(inner) => Some(inner),
                None => cause.source(),
            };
        }
        None
    }
}

impl From<HandshakeFault> for io::Error {
    fn from(fault: HandshakeFault) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, fault)
    }
}

/// The error of a handshake, with the fault if it is known.
pub(crate) fn in_handshake(error: io::Error) -> io::Error {
    match fault_of(&error) {
        Some(fault) => fault.into(),
        None if is_closed(&error) => HandshakeFault::Closed.into(),
        None => error,
    }
}

/// Whether the other side closed the connection.
pub(crate) fn is_closed(error: &io::Error) -> bool {
    let closed = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
    closed.contains(&error.kind())
}

/// An error of a connection after the handshake. A server of TLS 1.3 refuses a client's certificate when the client's handshake has ended.
pub(crate) fn after_handshake(error: io::Error) -> io::Error {
    fault_of(&error).map_or(error, io::Error::from)
}

fn fault_of(error: &io::Error) -> Option<HandshakeFault> {
    match error.get_ref()?.downcast_ref::<TlsError>()? {
        TlsError::InvalidMessage(InvalidMessage::InvalidContentType) => Some(HandshakeFault::PortHasNoTls),
        TlsError::InvalidCertificate(why) => of_certificate(why),
        TlsError::General(text) if text == OTHER_CERTIFICATE => Some(HandshakeFault::OtherCertificate),
        TlsError::AlertReceived(alert) => of_alert(*alert),
        _ => None,
    }
}

fn of_certificate(why: &CertificateError) -> Option<HandshakeFault> {
    match why {
        CertificateError::UnknownIssuer => Some(HandshakeFault::UntrustedServer),
        CertificateError::BadSignature => Some(HandshakeFault::WrongSignature),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let expected = expected.to_str().into_owned();
            let presented: Vec<String> = presented.iter().map(|name| format!("'{}'", bare(name))).collect();
            let presented = if presented.is_empty() { "no name".to_owned() } else { presented.join(", ") };
            Some(HandshakeFault::OtherName { expected, presented })
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => Some(HandshakeFault::NotValidNow(why.to_string())),
        // The library has no name of its own for this one.
        CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            Some(HandshakeFault::AuthorityAsServer)
        }
        _ => None,
    }
}

/// The name in `DnsName("name")`.
fn bare(name: &str) -> &str {
    name.split(['(', ')', '"']).rfind(|part| !part.is_empty()).unwrap_or(name)
}

fn of_alert(alert: AlertDescription) -> Option<HandshakeFault> {
    match alert {
        AlertDescription::CertificateRequired => Some(HandshakeFault::WantsCertificate),
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnknownCA
        | AlertDescription::DecryptError
        | AlertDescription::AccessDenied => Some(HandshakeFault::RefusedCertificate(format!("{alert:?}"))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(error: TlsError, expect: Option<&str>) {
        let error = io::Error::new(io::ErrorKind::InvalidData, error);
        assert_eq!(fault_of(&error).map(|fault| fault.to_string()).as_deref(), expect);
    }

    #[test]
    fn errors_of_the_library_are_faults_that_have_a_cure() {
        let plain = "the address is of https://, and the port does not speak TLS";
        check(TlsError::InvalidMessage(InvalidMessage::InvalidContentType), Some(plain));
        let certificate = |why| TlsError::InvalidCertificate(why);
        check(
            certificate(CertificateError::UnknownIssuer),
            Some("no trusted authority signed the server's certificate"),
        );
        let expected = "a.example".try_into().expect("a name");
        let presented = vec![r#"DnsName("b.example")"#.to_owned(), "IpAddress(10.0.0.7)".to_owned()];
        check(
            certificate(CertificateError::NotValidForNameContext { expected, presented }),
            Some("the server's certificate is for 'b.example', '10.0.0.7', and not for 'a.example'"),
        );
        let expired = "the server's certificate cannot be used today: Expired";
        check(certificate(CertificateError::Expired), Some(expired));
        let other = "the server shows another certificate than the one that is trusted";
        check(TlsError::General(OTHER_CERTIFICATE.to_owned()), Some(other));
        let required = "the server requires a certificate of its clients";
        check(TlsError::AlertReceived(AlertDescription::CertificateRequired), Some(required));
        let refused = "the server does not accept the client's certificate, or the lack of one (UnknownCA)";
        check(TlsError::AlertReceived(AlertDescription::UnknownCA), Some(refused));
        check(TlsError::AlertReceived(AlertDescription::InternalError), None);
        check(certificate(CertificateError::Revoked), None);
    }

    #[test]
    fn a_fault_is_found_among_the_causes_of_an_error() {
        let fault = io::Error::from(HandshakeFault::Closed);
        assert_eq!(HandshakeFault::in_chain(&fault), Some(HandshakeFault::Closed));
        let wrapped = io::Error::other(io::Error::from(HandshakeFault::WantsCertificate));
        assert_eq!(HandshakeFault::in_chain(&wrapped), Some(HandshakeFault::WantsCertificate));
        assert_eq!(HandshakeFault::in_chain(&io::Error::other("refused")), None);
    }
}
