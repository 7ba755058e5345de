//! Does a segment of a path hold a model's identifier?
//!
//! With `--model-namespacing` a request may name a model by its repository as well: `/models/a::resnet`. The slashes are percent-encoded in a path.
//! As in Triton, names are not decoded. So a segment counts as an identifier only if its decoded text is one.

use nerite_api::Api;

/// The identifier in this segment. `None`: the segment is a name, and is not decoded.
pub fn identifier(api: &Api, segment: &str) -> Option<String> {
    // An identifier has slashes. In a segment they must be encoded.
    if !segment.contains('%') {
        return None;
    }
    decoded(segment).filter(|decoded| api.is_identifier(decoded))
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
}
