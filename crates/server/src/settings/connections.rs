//! How many connections may there be, and how long may clients keep the server waiting?

use std::time::Duration;

use nerite_listen::limits::{BODY_TIMEOUT, HEAD_TIMEOUT, IDLE_TIMEOUT, WRITE_TIMEOUT};
use nerite_listen::{ConnectionLimits, HANDSHAKE_MAX, TimeLimits};

use super::SettingsError;
use crate::flags::{Values, bad};

/// The default time after which a gRPC connection without calls is asked to end. Clients connect again by themselves.
const GRPC_IDLE_TIMEOUT: Duration = Duration::from_hours(1);

/// The limits on connections.
#[derive(Clone, Copy, Debug)]
pub struct Connections {
    /// Connections that may be open, if the operator said how many.
    pub all_max: Option<usize>,
    /// Connections of one peer, if the operator said how many.
    pub per_peer_max: Option<usize>,
    /// Time limits of HTTP and metrics.
    pub http: TimeLimits,
    /// Time limits of gRPC.
    pub grpc: TimeLimits,
    /// For a TLS handshake over HTTP.
    pub http_handshake: Option<Duration>,
    /// For a TLS handshake over gRPC.
    pub grpc_handshake: Option<Duration>,
}

impl Connections {
    /// The log line about a limit per peer that exceeds all connections of a process with this many descriptors.
    pub fn warning(&self, descriptors: u64) -> Option<String> {
        let (requested, limits) = (self.per_peer_max?, self.limits(descriptors));
        (requested > limits.all_max).then(|| {
            format!(
                "--connections-per-peer-max={requested} has no effect: there may be {} connections in all; raise --connections-max",
                limits.all_max
            )
        })
    }

    /// How many connections a process with this many descriptors may have.
    pub fn limits(&self, descriptors: u64) -> ConnectionLimits {
        let all_max = self.all_max.unwrap_or(ConnectionLimits::for_descriptors(descriptors).all_max);
        let per_peer_max = self.per_peer_max.unwrap_or(all_max / 2).clamp(1, all_max);
        ConnectionLimits { all_max, per_peer_max }
    }
}

pub(super) fn connections(values: &Values<'_>) -> Result<Connections, SettingsError> {
    let count = |flag| match values.int_if_given::<usize>(flag)? {
        Some(0) => Err(bad(flag, "a server without connections serves nobody; give at least 1")),
        count => Ok(count),
    };
    let seconds = |flag, default| values.time_limit(flag, default);
    let http = TimeLimits {
        head: seconds("http-header-timeout", HEAD_TIMEOUT)?,
        idle: seconds("http-idle-timeout", IDLE_TIMEOUT)?,
        body: seconds("body-progress-timeout", BODY_TIMEOUT)?,
        write: seconds("write-timeout", WRITE_TIMEOUT)?,
    };
    let (all_max, per_peer_max) = (count("connections-max")?, count("connections-per-peer-max")?);
    if let (Some(all), Some(per_peer)) = (all_max, per_peer_max)
        && per_peer > all
    {
        return Err(bad(
            "connections-per-peer-max",
            format!(
                "one peer may have {per_peer} connections, and all together {all}; give at most {all}, or raise --connections-max"
            ),
        )
        .into());
    }
    Ok(Connections {
        all_max,
        per_peer_max,
        http,
        grpc: TimeLimits { idle: seconds("grpc-idle-timeout", GRPC_IDLE_TIMEOUT)?, ..http },
        http_handshake: seconds("http-handshake-timeout", HANDSHAKE_MAX)?,
        grpc_handshake: seconds("grpc-handshake-timeout", HANDSHAKE_MAX)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags;

    fn read(line: &str) -> Result<Connections, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let given = flags::parse(&words).expect("known flags");
        connections(&Values(&given)).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn check(line: &str, descriptors: u64, all_max: usize, per_peer_max: usize) {
        let limits = read(line).expect("legal values").limits(descriptors);
        assert_eq!(limits, ConnectionLimits { all_max, per_peer_max }, "{line}");
    }

    #[test]
    fn what_is_not_said_follows_from_the_rest() {
        check("", 1024, 768, 384);
        check("--connections-max=100", 1024, 100, 50);
        check("--connections-max=1", 1024, 1, 1);
        check("--connections-per-peer-max=7", 1024, 768, 7);
        check("--connections-per-peer-max=9999", 1024, 768, 768);
    }

    #[test]
    fn one_peer_may_not_have_more_than_all() {
        let refused = read("--connections-max=100 --connections-per-peer-max=101").expect_err("more than all");
        assert!(
            refused.contains("one peer may have 101 connections, and all together 100; give at most 100"),
            "{refused}"
        );
        assert!(read("--connections-max=100 --connections-per-peer-max=100").is_ok());
        let warning = |line: &str| read(line).expect("legal values").warning(1024);
        assert_eq!(warning("--connections-per-peer-max=768"), None);
        assert!(
            warning("--connections-per-peer-max=769")
                .is_some_and(|text| text.contains("=769 has no effect: there may be 768"))
        );
        assert_eq!(warning(""), None);
    }

    #[test]
    fn times_are_seconds_and_none_is_no_limit() {
        let found = read("--http-header-timeout=0.5 --write-timeout=0").expect("legal values");
        let http = TimeLimits { head: Some(Duration::from_millis(500)), write: None, ..TimeLimits::default() };
        assert_eq!((found.http, found.grpc), (http, TimeLimits { idle: Some(GRPC_IDLE_TIMEOUT), ..http }));
        assert_eq!((found.http_handshake, found.grpc_handshake), (Some(HANDSHAKE_MAX), Some(HANDSHAKE_MAX)));
        let far = read("--http-header-timeout=1e300").expect_err("a time beyond all timers");
        assert_eq!(far, "Bad option: \"--http-header-timeout\".\na time is 0 to 1000000000 seconds. Got 1e300\n");
        for line in ["--write-timeout=-1", "--write-timeout=1e30", "--write-timeout=x", "--connections-max=0"] {
            let flag = line.split('=').next().expect("a part before the sign");
            assert!(read(line).is_err_and(|text| text.contains(flag)), "{line}");
        }
    }
}
