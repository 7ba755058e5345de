//! To which trace of another system does a request belong?
//!
//! The format is [W3C Trace Context](https://www.w3.org/TR/trace-context/): the header `traceparent` is
//! `<version>-<trace id>-<span id>-<flags>` in hexadecimal digits, and `tracestate` is text that is passed on as it is.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use nerite_tensor::Name;

/// The header that names the trace and the span of the sender.
pub const TRACEPARENT: &str = "traceparent";
/// The header with additions of vendors.
pub const TRACESTATE: &str = "tracestate";

/// Bytes of a `traceparent` of version 00. Later versions may append to it.
const TRACEPARENT_BYTES: usize = 55;
/// A longer `tracestate` need not be passed on.
const TRACESTATE_BYTES_MAX: usize = 512;

/// A span, which may be the parent of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace that it is part of.
    pub trace_id: [u8; 16],
    /// The span.
    pub span_id: [u8; 8],
    /// What vendors added; may be empty.
    pub state: Name,
}

/// How the spans of a trace are numbered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanIds {
    /// The trace that they are part of.
    pub trace_id: [u8; 16],
    /// The client's span above them, if it named one.
    pub parent: Option<[u8; 8]>,
    /// What vendors added; may be empty.
    pub state: Name,
    /// All span ids are computed from this number, so none is stored.
    seed: u64,
}

impl TraceContext {
    /// Reads these headers. `None` if `traceparent` is malformed; a malformed `tracestate` is ignored.
    ///
    /// As in Triton, the flag that says whether the sender records its span has no effect.
    pub fn read(traceparent: &[u8], tracestate: Option<&[u8]>) -> Option<TraceContext> {
        let (known, rest) = traceparent.split_at_checked(TRACEPARENT_BYTES)?;
        let mut fields = known.split(|byte| *byte == b'-');
        let [version] = bytes::<1>(fields.next()?)?;
        let (trace_id, span_id) = (bytes::<16>(fields.next()?)?, bytes::<8>(fields.next()?)?);
        bytes::<1>(fields.next()?)?;
        let has_end = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => matches!(rest.first(), None | Some(b'-')),
        };
        let is_one = has_end && fields.next().is_none() && trace_id != [0; 16] && span_id != [0; 8];
        is_one.then(|| TraceContext { trace_id, span_id, state: tracestate.map(state).unwrap_or_default() })
    }

    /// The trace's number in hexadecimal digits.
    pub fn trace_id_text(&self) -> String {
        let mut text = String::with_capacity(2 * self.trace_id.len());
        digits(&mut text, &self.trace_id);
        text
    }

    /// The header for a request below this span. Its flag says that the span is recorded.
    pub fn traceparent(&self) -> String {
        let mut text = String::with_capacity(TRACEPARENT_BYTES);
        text.push_str("00-");
        digits(&mut text, &self.trace_id);
        text.push('-');
        digits(&mut text, &self.span_id);
        text.push_str("-01");
        text
    }
}

impl SpanIds {
    /// Numbers for the spans below `parent`, or for a new trace.
    pub fn below(parent: Option<TraceContext>) -> SpanIds {
        let [high, low, seed] = [random(), random(), random()];
        if let Some(TraceContext { trace_id, span_id, state }) = parent {
            return SpanIds { trace_id, parent: Some(span_id), state, seed };
        }
        let trace_id = (u128::from(high | 1) << 64 | u128::from(low)).to_be_bytes();
        SpanIds { trace_id, parent: None, state: Name::default(), seed }
    }

    /// The span of the whole trace.
    pub fn root(&self) -> [u8; 8] {
        self.number(0, 0)
    }

    /// The span of the request with this id.
    pub fn request(&self, id: u64) -> [u8; 8] {
        self.number(id, 0)
    }

    /// The span of a part of that request, counted from 1.
    pub fn part(&self, id: u64, part: u64) -> [u8; 8] {
        self.number(id, part)
    }

    /// The context for a request below the one with this id.
    pub fn context(&self, id: u64) -> TraceContext {
        TraceContext { trace_id: self.trace_id, span_id: self.request(id), state: self.state.clone() }
    }

    fn number(&self, id: u64, part: u64) -> [u8; 8] {
        let mixed = mixed(mixed(self.seed.wrapping_add(part)).wrapping_add(id));
        mixed.max(1).to_be_bytes()
    }
}

/// The finalizer of SplitMix64: different numbers give different results, which are spread over all 64-bit numbers.
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A number that is unique across processes. The keys of the hasher come from the system's randomness.
fn random() -> u64 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    KEYS.hash_one(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The bytes that these lower-case hexadecimal digits stand for.
fn bytes<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut found = [0; N];
    for (byte, [high, low]) in found.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(found)
}

fn digits(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
}

fn state(text: &[u8]) -> Name {
    let is_one = text.len() <= TRACESTATE_BYTES_MAX && text.iter().all(|byte| (b' '..=b'~').contains(byte));
    let text = std::str::from_utf8(text).ok().filter(|_| is_one);
    text.map(|text| Name::from(text.trim())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[track_caller]
    fn check(traceparent: &str, is_one: bool) {
        assert_eq!(TraceContext::read(traceparent.as_bytes(), None).is_some(), is_one, "{traceparent}");
    }

    #[test]
    fn a_traceparent_is_read_as_w3c_says() {
        check(PARENT, true);
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", true);
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff", true);
        check("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", true);
        check("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", true);
        check("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01more", false);
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", false);
        check("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false);
        check("00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false);
        check("00-0af7651916cd43dd8448eb211c80319-cb7ad6b7169203331-01", false);
        check("00-00000000000000000000000000000000-b7ad6b7169203331-01", false);
        check("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", false);
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0", false);
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", false);
        check("00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01", false);
        check("", false);
        check(&"0".repeat(1 << 20), false);
        check(&"-".repeat(55), false);
        check("00-äf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false);
    }

    #[test]
    fn what_is_read_is_told_again() {
        let context = TraceContext::read(PARENT.as_bytes(), Some(b"a=1,b=2 ")).expect("a context");
        assert_eq!((context.traceparent().as_str(), context.state.as_str()), (PARENT, "a=1,b=2"));
        let long = "a".repeat(513);
        for state in [long.as_bytes(), b"a=\n", b"\xff"] {
            assert_eq!(TraceContext::read(PARENT.as_bytes(), Some(state)).expect("a context").state, "");
        }
    }

    #[test]
    fn spans_have_numbers_of_their_own_below_the_clients() {
        let parent = TraceContext::read(PARENT.as_bytes(), None).expect("a context");
        let ids = SpanIds::below(Some(parent.clone()));
        assert_eq!((ids.trace_id, ids.parent), (parent.trace_id, Some(parent.span_id)));
        let own = SpanIds::below(None);
        assert_ne!(own.trace_id, SpanIds::below(None).trace_id);
        let mut numbers: Vec<_> = (0..100).flat_map(|id| (0..4).map(move |part| (id, part))).collect();
        let count = numbers.len();
        numbers.sort_by_key(|(id, part)| own.part(*id, *part));
        numbers.dedup_by_key(|(id, part)| own.part(*id, *part));
        assert_eq!(numbers.len(), count);
        assert_eq!((own.root(), own.context(7).span_id), (own.request(0), own.request(7)));
    }
}
