//! Why can no Python run a model here?

use nerite_request::Status;

/// Why there is no Python that can run models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoPython {
    /// What was found instead.
    pub found: String,
    /// What to do. Empty if that follows from what was found.
    pub cure: String,
}

impl NoPython {
    /// The error of a load.
    pub(crate) fn status(self) -> Status {
        let NoPython { found, cure } = self;
        if cure.is_empty() {
            return Status::internal(found);
        }
        Status::internal(format!("no Python to run the model: {found}; {cure}"))
    }
}
