//! What does the verbose log say about a request?
//!
//! The text is made only with `--log-verbose=1`.

use std::fmt::{self, Display};

use nerite_backend::Job;

/// The most requests of a batch that are named. The others are only counted.
const NAMED_MAX: usize = 16;
/// The most characters of a request's id that are logged, because a client chooses its length.
const ID_CHARS_MAX: usize = 64;

/// A request by its id, as Triton names it.
pub(crate) struct Id<'j>(pub &'j Job);

impl Display for Id<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = if self.0.id().is_empty() { "<id_unknown>" } else { self.0.id() };
        match id.char_indices().nth(ID_CHARS_MAX) {
            Some((end, _)) => write!(f, "{}…", id.get(..end).unwrap_or_default()),
            None => f.write_str(id),
        }
    }
}

/// The requests of a batch.
pub(crate) struct Requests<'j>(pub &'j [Job]);

impl Display for Requests<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: u64 = self.0.iter().map(|job| u64::from(job.rows())).sum();
        write!(f, "{} requests of {rows} rows:", self.0.len())?;
        for (at, job) in self.0.iter().take(NAMED_MAX).enumerate() {
            write!(f, "{} {}", if at > 0 { "," } else { "" }, Id(job))?;
        }
        let more = self.0.len().saturating_sub(NAMED_MAX);
        if more > 0 { write!(f, " and {more} more") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use nerite_backend::ModelVersion;
    use nerite_request::{AdmittedRequest, Reply};

    use super::*;

    fn job(id: &str) -> Job {
        let request = AdmittedRequest { id: id.into(), rows: 2, ..AdmittedRequest::new(Reply::closed()) };
        Job::new(request, ModelVersion::unmetered("m").begin(), 0)
    }

    #[test]
    fn requests_are_named_as_far_as_a_line_goes() {
        assert_eq!(Requests(&[job("a"), job("")]).to_string(), "2 requests of 4 rows: a, <id_unknown>");
        let many: Vec<Job> = (0..20).map(|_| job("x")).collect();
        assert!(Requests(&many).to_string().ends_with("x, x and 4 more"));
        assert_eq!(Id(&job(&"é".repeat(100))).to_string(), format!("{}…", "é".repeat(64)));
    }
}
