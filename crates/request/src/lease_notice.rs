//! How does a client let the server choose an output's memory, and how does it learn which memory that is?
//!
//! ```text
//!   output { shared_memory_region: "session-<32 hex digits>", no size }         what an InferRequest says: a SessionRef
//!   output { shared_memory_region: "lease-…", shared_memory_offset, _byte_size } what the Response says: a LeaseNotice
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nerite_tensor::Name;

use crate::RegionRef;

const PREFIX: &str = "session-";
const KEY_DIGITS: usize = 32;

/// A session as requests of any protocol name it, so that the session's quota pays for the memory of outputs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SessionRef {
    /// The session's secret.
    pub key: u128,
    /// The client's number for this request, with which the client can give up the outputs if no answer comes. 0 for none.
    pub tag: u64,
}

impl SessionRef {
    /// Reads `session-<32 hexadecimal digits>`, optionally followed by `-<tag>`. Each session has exactly one text.
    pub fn parse(text: &str) -> Option<SessionRef> {
        let rest = text.strip_prefix(PREFIX)?;
        let (digits, tag) = rest.split_at_checked(KEY_DIGITS)?;
        let tag = match tag.strip_prefix('-') {
            Some(tag) => tag.parse().ok().filter(|tag| *tag > 0)?,
            None => 0,
        };
        let found = SessionRef { key: u128::from_str_radix(digits, 16).ok()?, tag };
        (found.to_string() == text).then_some(found)
    }

    /// The session that an output names instead of a region. Such an output has no offset and no size. Some clients cannot leave these out, so 0 counts as
    /// none. With a size, the text is the name of a region.
    pub fn wanted(region: &str, offset: u64, byte_size: u64) -> Option<SessionRef> {
        SessionRef::parse(region).filter(|_| offset == 0 && byte_size == 0)
    }
}

impl fmt::Display for SessionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:032x}", self.key)?;
        if self.tag == 0 { Ok(()) } else { write!(f, "-{}", self.tag) }
    }
}

impl fmt::Debug for SessionRef {
    /// Omits the key: anyone who knows it can use the session's quota, and logs have many readers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionRef(tag {})", self.tag)
    }
}

/// An output in a lease that the server chose, for the response to name.
#[derive(Clone, Debug)]
pub struct LeaseNotice {
    /// The model's name for it.
    pub output: Name,
    /// Where it lies.
    pub region: RegionRef,
    unseen: Arc<Unseen>,
}

impl LeaseNotice {
    /// Makes a notice. `take_back` is called if all clones of the notice are dropped before [`LeaseNotice::set_sent`] was called: the response was lost
    /// before it was written.
    pub fn new(output: Name, region: RegionRef, take_back: impl FnOnce() + Send + Sync + 'static) -> LeaseNotice {
        let unseen = Unseen { is_sent: AtomicBool::new(false), take_back: Some(Box::new(take_back)) };
        LeaseNotice { output, region, unseen: Arc::new(unseen) }
    }

    /// The response that names the output is being sent. From now on the output belongs to the client.
    pub fn set_sent(&self) {
        self.unseen.is_sent.store(true, Ordering::Release);
    }
}

struct Unseen {
    is_sent: AtomicBool,
    take_back: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Drop for Unseen {
    fn drop(&mut self) {
        if let Some(take_back) = self.take_back.take().filter(|_| !*self.is_sent.get_mut()) {
            take_back();
        }
    }
}

impl fmt::Debug for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unseen")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[track_caller]
    fn check(text: &str, found: Option<(u128, u64)>) {
        assert_eq!(SessionRef::parse(text).map(|session| (session.key, session.tag)), found, "{text}");
    }

    #[test]
    fn only_the_one_way_to_write_a_session_is_read() {
        check("session-0000000000000000000000000000000a", Some((10, 0)));
        check("session-ffffffffffffffffffffffffffffffff-18446744073709551615", Some((u128::MAX, u64::MAX)));
        check("session-0000000000000000000000000000000a-7", Some((10, 7)));
        check("session-0000000000000000000000000000000a-0", None);
        check("session-0000000000000000000000000000000a-07", None);
        check("session-0000000000000000000000000000000a-", None);
        check("session-0000000000000000000000000000000a7", None);
        check("session-0000000000000000000000000000000A", None);
        check("session-+000000000000000000000000000000a", None);
        check("session-0000000000000000000000000000000a-18446744073709551616", None);
        check("session-00000000000000000000000000000é", None);
        check("session-0a", None);
        check("lease-0000000000000000000000000000000a", None);
        check("", None);
    }

    #[test]
    fn who_gives_a_size_or_an_offset_means_a_region() {
        let text = "session-0000000000000000000000000000000a";
        assert!(SessionRef::wanted(text, 0, 0).is_some());
        assert!(SessionRef::wanted(text, 0, 1).is_none() && SessionRef::wanted(text, 1, 0).is_none());
        assert_eq!(format!("{:?}", SessionRef::parse(text)), "Some(SessionRef(tag 0))");
    }

    #[track_caller]
    fn check_taken_back(act: impl FnOnce(LeaseNotice), times: usize) {
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        let region = RegionRef { name: "lease".into(), offset: 0, byte_size: 1 };
        act(LeaseNotice::new("O".into(), region, move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        assert_eq!(taken.load(Ordering::Relaxed), times);
    }

    #[test]
    fn what_was_not_sent_is_taken_back_once() {
        check_taken_back(drop, 1);
        check_taken_back(|lent| drop((lent.clone(), lent)), 1);
        check_taken_back(|lent| lent.set_sent(), 0);
        check_taken_back(|lent| lent.clone().set_sent(), 0);
    }
}
