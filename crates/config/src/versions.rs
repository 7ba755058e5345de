//! Which of the versions on disk are served?

use crate::ModelConfig;
use crate::proto::model_version_policy::PolicyChoice;

/// The version policy of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionPolicy {
    /// This many of the highest versions.
    Latest(u32),
    /// All versions.
    All,
    /// These versions, as far as they exist.
    Specific(Vec<i64>),
}

impl VersionPolicy {
    /// The policy of a configuration. The default is the highest version.
    pub fn of(config: &ModelConfig) -> Self {
        let Some(policy) = &config.version_policy else { return Self::Latest(1) };
        match &policy.policy_choice {
            // As in Triton, an empty policy excludes no version.
            None => Self::All,
            Some(PolicyChoice::Latest(latest)) => Self::Latest(latest.num_versions),
            Some(PolicyChoice::All(_)) => Self::All,
            Some(PolicyChoice::Specific(specific)) => Self::Specific(specific.versions.clone()),
        }
    }

    /// The versions to serve, of those available, in ascending order and without duplicates.
    pub fn select(&self, available: &[i64]) -> Vec<i64> {
        let mut versions = available.to_vec();
        versions.sort_unstable();
        versions.dedup();
        match self {
            Self::All => {}
            Self::Latest(count) => {
                let surplus = versions.len().saturating_sub(*count as usize);
                versions.drain(..surplus);
            }
            Self::Specific(wanted) => versions.retain(|version| wanted.contains(version)),
        }
        versions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(policy: VersionPolicy, available: &[i64], expect: &[i64]) {
        assert_eq!(policy.select(available), expect);
    }

    #[test]
    fn a_policy_selects_among_available_versions() {
        check(VersionPolicy::Latest(1), &[1, 3, 2], &[3]);
        check(VersionPolicy::Latest(2), &[1, 10, 2], &[2, 10]);
        check(VersionPolicy::Latest(9), &[1, 2], &[1, 2]);
        check(VersionPolicy::Latest(0), &[1, 2], &[]);
        check(VersionPolicy::All, &[2, 1, 2], &[1, 2]);
        check(VersionPolicy::Specific(vec![3, 1]), &[1, 2, 3], &[1, 3]);
        check(VersionPolicy::Specific(vec![7]), &[1, 2, 3], &[]);
    }

    #[test]
    fn no_policy_means_the_latest_one() {
        assert_eq!(VersionPolicy::of(&ModelConfig::default()), VersionPolicy::Latest(1));
        let empty = crate::parse_text("p", b"version_policy { }").map(|config| crate::normalise(config, "m"));
        assert_eq!(empty.as_ref().map(VersionPolicy::of), Ok(VersionPolicy::All));
    }
}
