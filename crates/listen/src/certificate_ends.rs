//! Until when is a chain of certificates valid?

use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::Decode;

/// When the first certificate of a chain ends, in seconds since 1970. `None` if one of them cannot be parsed, or there is none.
pub(crate) fn first_end_s(chain: &[CertificateDer<'_>]) -> Option<u64> {
    let ends = chain.iter().map(|der| {
        let certificate = Certificate::from_der(der).inspect_err(|error| {
            log::warn!("the end of a certificate is not shown in the metrics, because it cannot be parsed: {error}");
        });
        Some(certificate.ok()?.tbs_certificate().validity().not_after.to_unix_duration().as_secs())
    });
    ends.collect::<Option<Vec<_>>>()?.into_iter().min()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    /// A certificate that ends when that year begins.
    fn ending(year: i32) -> CertificateDer<'static> {
        let key = KeyPair::generate().expect("a key");
        let mut wanted = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        wanted.not_after = date_time_ymd(year, 1, 1);
        wanted.self_signed(&key).expect("signed").der().clone()
    }

    #[track_caller]
    fn check(chain: &[CertificateDer<'_>], expect: Option<u64>) {
        assert_eq!(first_end_s(chain), expect);
    }

    #[test]
    fn a_chain_ends_with_its_first_certificate_that_does() {
        const IN_2030: u64 = 1_893_456_000;
        check(&[], None);
        check(&[ending(2030)], Some(IN_2030));
        check(&[ending(2040), ending(2030), ending(2035)], Some(IN_2030));
        // Years from 2050 on have another form in a certificate.
        check(&[ending(2050)], Some(2_524_608_000));
        check(&[ending(2030), CertificateDer::from_slice(b"no certificate")], None);
    }
}
