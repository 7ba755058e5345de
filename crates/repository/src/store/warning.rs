//! Which properties of a repository are harmless, but probably a mistake?

use std::fmt;
use std::path::PathBuf;

/// A property of a repository or a model's directory that is harmless, but probably a mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// A folder such as `01`.
    LeadingZero {
        /// Its name.
        folder: String,
    },
    /// A folder that is not a version.
    NoNumber {
        /// Its name.
        folder: String,
    },
    /// A version that the policy names and the directory lacks.
    MissingVersion {
        /// The model.
        model: String,
        /// The version.
        version: i64,
    },
    /// A repository with files and without a model.
    NoModel {
        /// The repository.
        repository: PathBuf,
        /// The name that one of the files has, or would have in a model.
        file: String,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::LeadingZero { folder } => {
                write!(f, "ignore version directory '{folder}' which contains leading zeros in its directory name")
            }
            Warning::NoNumber { folder } => {
                write!(f, "ignore version directory '{folder}' which fails to convert to integral number")
            }
            Warning::MissingVersion { model, version } => {
                write!(
                    f,
                    "version {version} is specified for model '{model}', but the version directory is not present"
                )
            }
            Warning::NoModel { repository, file } => {
                let at = repository.display();
                write!(f, "repository '{at}' has files, and no model: a model lies at {at}/<model>/1/{file}")
            }
        }
    }
}
