//! Which error does a client get if its region lost its memory?

use std::fmt;

use crate::objects::Objects;
use crate::record::{Origin, Record};

/// A region whose memory was missing at an access. Displayed as the error text of the requests that fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    record: Record,
    at: usize,
    object_bytes: u64,
    now: ObjectNow,
}

/// What is at the key of a region's object now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectNow {
    /// The same object.
    Same {
        /// Bytes it has now.
        byte_size: u64,
    },
    /// Another object than the registered one.
    Another,
    /// No object.
    Gone,
    /// It cannot be determined.
    Unknown,
}

impl Loss {
    /// The region of `record` had no memory at offset `at`. Its object had `object_bytes` bytes when it was registered.
    pub(crate) fn new(record: &Record, at: usize, object_bytes: u64, now: ObjectNow) -> Loss {
        Loss { record: record.clone(), at, object_bytes, now }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loss { record: Record { name, origin, .. }, at, object_bytes, now } = self;
        write!(f, "shared memory region '{name}' can no longer be used: ")?;
        let key = match origin {
            Origin::System { key, .. } => key,
            Origin::Cuda { device_id } => {
                return write!(f, "its memory on device {device_id} was gone at offset {at}; register it again");
            }
        };
        write!(f, "its object '{key}' was {object_bytes} bytes when registered and ")?;
        match now {
            ObjectNow::Same { byte_size } if byte_size < object_bytes => write!(
                f,
                "has {byte_size} now (touched at offset {at}); register it again once the object has its size back"
            ),
            ObjectNow::Same { byte_size } => {
                let objects = Objects::look();
                write!(
                    f,
                    "has {byte_size} now, but no memory when it was touched at offset {at}: it was shorter then, or there was \
                     no room ({objects}, {}); see that it has its bytes, then register it again",
                    objects.free()
                )
            }
            ObjectNow::Another => write!(
                f,
                "was cut short or without room (touched at offset {at}), and its key leads to another object now; register \
                 it again to use that one"
            ),
            ObjectNow::Gone => write!(
                f,
                "was cut short or without room (touched at offset {at}), and its key is gone now; make the object anew and \
                 register it again"
            ),
            ObjectNow::Unknown => write!(f, "was without memory when touched at offset {at}; register it again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(now: ObjectNow, expect: &str) {
        let origin = Origin::System { key: "/x".into(), offset: 0 };
        let record = Record { name: "a".into(), byte_size: 8192, origin };
        let text = Loss::new(&record, 4096, 8192, now).to_string();
        let rest =
            text.strip_prefix("shared memory region 'a' can no longer be used: its object '/x' was 8192 bytes when ");
        assert!(rest.is_some_and(|rest| rest.starts_with(expect)), "{text}");
        assert!(text.contains("touched at offset 4096") && text.contains("register it again"), "{text}");
    }

    #[test]
    fn the_text_names_the_region_both_sizes_the_offset_and_the_cure() {
        check(
            ObjectNow::Same { byte_size: 1024 },
            "registered and has 1024 now (touched at offset 4096); register it again once the object has its size back",
        );
        check(ObjectNow::Same { byte_size: 8192 }, "registered and has 8192 now, but no memory when it was touched");
        check(ObjectNow::Another, "registered and was cut short or without room");
        check(ObjectNow::Gone, "registered and was cut short or without room");
        check(ObjectNow::Unknown, "registered and was without memory");
    }
}
