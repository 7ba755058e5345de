//! Which model or region does a percent-encoded segment of a path name?
//!
//! Triton does not decode names, but its clients and browsers encode them: the path for a model `a b` has the segment `a%20b`. So a segment is decoded
//! only if no model has the encoded name, and a model has the decoded one. With `--model-namespacing` a request may name a model by its repository as
//! well: `/models/a::resnet`, with the slashes encoded. The name of a region is always decoded, because clients choose it: inferences and gRPC name the
//! region without the encoding.

use std::borrow::Cow;

use nerite_api::{Api, on_disk};

/// The decoded segment, if it names a model that takes requests, or is an identifier. `None`: the segment is a name as it is.
pub fn identifier(api: &Api, segment: &str) -> Option<String> {
    if !segment.contains('%') {
        return None;
    }
    decoded(segment).filter(|name| api.is_identifier(name) || api.serves(name) && !api.serves(segment))
}

/// As [`identifier`], also for a model that is not loaded. Reads the repositories, on another thread.
pub async fn in_repository(api: &Api, segment: &str) -> Option<String> {
    if !segment.contains('%') {
        return None;
    }
    let (reader, encoded, name) = (api.clone(), segment.to_owned(), decoded(segment)?);
    let found = on_disk(api.account(), move || {
        (reader.has_directory(&name) && !reader.has_directory(&encoded)).then_some(name)
    })
    .await;
    found.ok().flatten()
}

/// The name of a region. A segment whose encoding is invalid is the name as it is.
pub fn region(segment: &str) -> Cow<'_, str> {
    if !segment.contains('%') {
        return Cow::Borrowed(segment);
    }
    decoded(segment).map_or(Cow::Borrowed(segment), Cow::Owned)
}

/// The text without percent-encoding. `None`: the encoding is invalid, or the result is not UTF-8.
fn decoded(segment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => digit(rest.next()?)? * 16 + digit(rest.next()?)?,
            plain => plain,
        });
    }
    String::from_utf8(bytes).ok()
}

fn digit(hexadecimal: u8) -> Option<u8> {
    char::from(hexadecimal).to_digit(16)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(segment: &str, expect: Option<&str>) {
        assert_eq!(decoded(segment).as_deref(), expect, "{segment}");
    }

    #[test]
    fn a_segment_is_decoded_or_is_none() {
        check("%2Fa%2fb%3A%3Am", Some("/a/b::m"));
        check("%2Fgr%C3%B6%C3%9Fe::m", Some("/größe::m"));
        check("plain", Some("plain"));
        for wrong in ["%", "%2", "%2G", "a%-1b", "%+2", "%FF"] {
            check(wrong, None);
        }
    }

    #[test]
    fn the_name_of_a_region_is_decoded_once() {
        for (segment, name) in
            [("r", "r"), ("a%20b", "a b"), ("a%2520b", "a%20b"), ("a%2Fb", "a/b"), ("5%", "5%"), ("%FF", "%FF")]
        {
            assert_eq!(region(segment), name, "{segment}");
        }
    }
}
