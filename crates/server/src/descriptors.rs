//! How many descriptors may the server have?

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than any server needs. Some systems allow a billion, and programs that close all descriptors when they start would take long.
const DESCRIPTORS_MAX: u64 = 1 << 20;
/// With a lower limit the log says what the consequences are.
const DESCRIPTORS_FEW: u64 = 4096;

/// Raises the soft limit on open descriptors as far as the hard one allows, and returns it. The soft one is 1,024 on
/// most systems, for the sake of programs that use `select`.
pub fn raise_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(DESCRIPTORS_MAX, |maximum| maximum.min(DESCRIPTORS_MAX));
    if current.is_some_and(|current| current < wanted) {
        // If the system refuses, the limit stays as it is, and the server accepts fewer connections.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS_MAX)
}

/// The log line about a low limit.
pub fn warning(descriptors: u64, connections: usize) -> Option<String> {
    (descriptors < DESCRIPTORS_FEW).then(|| {
        format!(
            "the limit of open files is {descriptors}, so at most {connections} connections are served at a time, and few leases; \
             raise the hard limit (`ulimit -Hn`, `docker run --ulimit nofile=65536`, LimitNOFILE=65536 in the unit)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_what_the_system_allows_and_only_a_low_one_is_logged() {
        let limit = raise_limit();
        assert_eq!(Some(limit), getrlimit(Resource::Nofile).current);
        assert_eq!(raise_limit(), limit);
        assert!(warning(1024, 768).is_some_and(|text| text.contains("1024") && text.contains("768")));
        assert_eq!(warning(4096, 3072), None);
    }
}
