//! How long is a body, and where does its JSON end?

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap};
use nerite_compress::{InflateError, compressed_bytes_max};
use nerite_request::Status;
use nerite_wire::json::{check_json_size, check_raw_size};

use super::JSON_LENGTH;
use crate::encoding::{Encoding, request_encoding};
use crate::limits::INFER_BODY_BYTES_MAX;
use crate::receive::Expected;
use crate::reply::Failure;

/// How the body of an inference is divided, by its headers.
#[derive(Clone, Copy, Debug)]
pub struct Framing {
    /// The compression of the body.
    pub encoding: Option<Encoding>,
    /// The bytes that the client declared; `None` for a chunked body.
    declared: Option<u64>,
    /// Bytes of JSON, after inflating. `None` if no header gives them: then the whole body is JSON.
    json: Option<u64>,
    /// The most bytes of the JSON, of a raw body, and of an inflated body.
    pub bytes_max: u64,
}

impl Framing {
    /// Reads from `headers` how a body of `declared` bytes is divided. Impossible lengths are refused here, before a byte is read.
    pub fn of(headers: &HeaderMap, declared: Option<u64>, bytes_max: u64) -> Result<Framing, Failure> {
        let value = |name| headers.get(name).map(http::HeaderValue::as_bytes);
        let encoding = request_encoding(value(CONTENT_ENCODING))
            .map_err(|status| Failure { lists_encodings: true, ..Failure::plain(status) })?;
        if encoding.is_none() && headers.contains_key(CONTENT_LENGTH) {
            check_content_length(declared).map_err(|status| Failure { close: true, ..Failure::plain(status) })?;
        }
        let json = value(JSON_LENGTH).map(parse_json_length).transpose().map_err(Failure::plain)?;
        let framing = Framing { encoding, declared, json: None, bytes_max };
        let framing = match json {
            None => framing,
            Some(json) => Framing { json: Some(in_range(json, framing.known_len())?), ..framing },
        };
        framing.check_sizes()?;
        Ok(framing)
    }

    /// The length of the inflated body, if it is known before it is read.
    fn known_len(&self) -> Option<u64> {
        if self.encoding.is_none() { self.declared } else { None }
    }

    fn check_sizes(&self) -> Result<(), Failure> {
        let len = self.known_len();
        match self.json.or(len) {
            Some(0) => check_raw_size(len.unwrap_or_default(), self.bytes_max).map_err(Failure::from),
            Some(json) => check_json_size(json, self.bytes_max).map_err(Failure::from),
            None => Ok(()),
        }
    }

    /// Where the binary part begins, in the inflated body.
    pub fn tail_at(&self) -> Option<usize> {
        self.json.map(|json| json as usize)
    }

    /// The facts that `receive` needs.
    pub fn expected(&self) -> Expected {
        let Framing { encoding, declared, json, bytes_max } = *self;
        if encoding.is_some() {
            return Expected {
                declared,
                tail_at: None,
                bytes_max: compressed_bytes_max(bytes_max),
                too_large: inflates_too_far,
            };
        }
        match json {
            None => Expected { declared, tail_at: None, bytes_max, too_large: json_too_large },
            Some(0) => Expected { declared, tail_at: Some(0), bytes_max, too_large: raw_too_large },
            Some(_) => Expected {
                declared,
                tail_at: self.tail_at(),
                bytes_max: INFER_BODY_BYTES_MAX,
                too_large: |size, _| length_out_of_range(size),
            },
        }
    }

    /// Bytes of JSON in a body of `len` bytes; 0 for a raw one.
    pub fn json_len(&self, len: usize) -> Result<usize, Failure> {
        match self.json {
            None => Ok(len),
            Some(json) => Ok(in_range(json as i64, Some(len as u64))? as usize),
        }
    }
}

/// Refuses a length that Triton refuses, because it stores the length in 32 bits.
fn check_content_length(declared: Option<u64>) -> Result<(), Status> {
    match declared {
        Some(size) if size > INFER_BODY_BYTES_MAX => Err(length_out_of_range(size)),
        _ => Ok(()),
    }
}

fn length_out_of_range(size: u64) -> Status {
    Status::invalid(format!(
        "Unable to parse Content-Length, value is out of range [ {}, {} ], got: {size}",
        i32::MIN,
        i32::MAX
    ))
}

fn parse_json_length(text: &[u8]) -> Result<i64, Status> {
    let text = String::from_utf8_lossy(text);
    let digits = text.trim();
    let name = "Inference-Header-Content-Length";
    let bare = digits.strip_prefix(['-', '+']).unwrap_or(digits);
    if bare.is_empty() || !bare.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Status::invalid(format!("Unable to parse {name}, got: {text}")));
    }
    digits.parse::<i32>().map(i64::from).map_err(|_| {
        Status::invalid(format!(
            "Unable to parse {name}, value is out of range [ {}, {} ], got: {text}",
            i32::MIN,
            i32::MAX
        ))
    })
}

/// Checks that the JSON ends inside the body. Returns its length.
fn in_range(json: i64, body_len: Option<u64>) -> Result<u64, Failure> {
    let fits = u64::try_from(json).ok().filter(|json| body_len.is_none_or(|len| *json <= len));
    fits.ok_or_else(|| {
        let len = body_len.map_or_else(String::new, |len| len.to_string());
        Failure::plain(Status::invalid(format!("inference header size should be in range (0, {len}), got: {json}")))
    })
}

fn json_too_large(size: u64, bytes_max: u64) -> Status {
    check_json_size(size, bytes_max).err().unwrap_or_else(|| length_out_of_range(size))
}

fn raw_too_large(size: u64, bytes_max: u64) -> Status {
    check_raw_size(size, bytes_max).err().unwrap_or_else(|| length_out_of_range(size))
}

fn inflates_too_far(_: u64, twice_max: u64) -> Status {
    Status::invalid(InflateError::TooLarge { bytes_max: twice_max / 2 }.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http::HeaderName;

    use super::*;

    const MAX: u64 = 1000;

    fn framing(headers: &[(HeaderName, &str)], declared: Option<u64>) -> Result<Framing, Failure> {
        let mut map = HeaderMap::new();
        if let Some(len) = declared {
            map.insert(CONTENT_LENGTH, len.into());
        }
        map.extend(headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())));
        Framing::of(&map, declared, MAX)
    }

    #[track_caller]
    fn check(json: Option<&str>, declared: u64, json_len: usize) {
        let headers: Vec<_> = json.into_iter().map(|json| (JSON_LENGTH, json)).collect();
        let framing = framing(&headers, Some(declared)).unwrap();
        assert_eq!(framing.json_len(declared as usize).unwrap(), json_len);
    }

    #[track_caller]
    fn refuse(json: Option<&str>, declared: u64, text: &str) {
        let headers: Vec<_> = json.into_iter().map(|json| (JSON_LENGTH, json)).collect();
        assert_eq!(framing(&headers, Some(declared)).unwrap_err().status.message, text);
    }

    #[test]
    fn the_json_ends_where_the_header_says_or_at_the_end() {
        check(None, 10, 10);
        check(None, 0, 0);
        check(Some("4"), 10, 4);
        check(Some("10"), 10, 10);
        check(Some("0"), 10, 0);
        check(Some("4"), 2_000_000_000, 4);
    }

    #[test]
    fn a_length_that_cannot_be_is_refused() {
        refuse(Some("x"), 10, "Unable to parse Inference-Header-Content-Length, got: x");
        refuse(Some("4x"), 10, "Unable to parse Inference-Header-Content-Length, got: 4x");
        let range = "value is out of range [ -2147483648, 2147483647 ], got:";
        refuse(Some("2147483648"), 10, &format!("Unable to parse Inference-Header-Content-Length, {range} 2147483648"));
        refuse(Some("-1"), 10, "inference header size should be in range (0, 10), got: -1");
        refuse(Some("11"), 10, "inference header size should be in range (0, 10), got: 11");
        refuse(Some("4"), 2_147_483_648, &format!("Unable to parse Content-Length, {range} 2147483648"));
    }

    #[test]
    fn sizes_are_limited_but_for_binary_tensors() {
        let hint = "Use --http-max-input-size to increase the limit.";
        let json =
            format!("request JSON size of 1001 bytes exceeds the maximum allowed input size of 1000 bytes. {hint}");
        refuse(None, 1001, &json);
        refuse(Some("1001"), 2000, &json);
        let raw = format!(
            "Raw input has a byte_size (1001 bytes) that exceeds the maximum allowed value of 1000 bytes. {hint}"
        );
        refuse(Some("0"), 1001, &raw);
        assert_eq!(framing(&[(JSON_LENGTH, "4")], None).unwrap().expected().bytes_max, INFER_BODY_BYTES_MAX);
        assert_eq!(framing(&[], None).unwrap().expected().bytes_max, MAX);
    }

    #[test]
    fn lengths_of_a_compressed_body_are_those_of_the_inflated_one() {
        let framing = framing(&[(CONTENT_ENCODING, "gzip"), (JSON_LENGTH, "900")], Some(20)).unwrap();
        assert_eq!(framing.json_len(901).unwrap(), 900);
        let failure = framing.json_len(899).unwrap_err();
        assert_eq!(failure.status.message, "inference header size should be in range (0, 899), got: 900");
    }
}
