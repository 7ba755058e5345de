//! Which client makes a call, and what does the access log say about it?
//!
//! With `--log-access`, or `--log-verbose=2`, each request is one line of the log. The line is written when the last reference to the call's record
//! is dropped: its answer was made, or its client has gone.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use nerite_access::{Booking, OverQuota, Token};
use nerite_locks::Mutex;
use nerite_request::{Peer, Response, Status, TraceContext};
use nerite_watchdog::now_ns;

use crate::access::{self, Category, Protocol, Refused, Restriction};
use crate::codes;
use crate::logging::{LogFormat, LogSwitches};

/// The target of lines about requests. In JSON logs such a message consists of members of the object, and is no text.
pub const ACCESS_TARGET: &str = "nerite_access_line";
/// The most bytes of a name that a client chose.
pub(crate) const NAME_BYTES_MAX: usize = 128;

/// The client of a call, as far as it is known.
#[derive(Debug)]
pub(crate) struct Caller {
    /// Its token, if the server has tokens and the call needs one.
    pub token: Option<Arc<Token>>,
    /// The log line of the call, if it has one.
    pub line: Option<Line>,
    /// The bytes that are booked at the token for the message of the next request.
    booked: Booked,
    /// Bytes of that message that have arrived.
    arrived: AtomicU64,
}

/// Counts the bytes of a body that were booked at the client's token.
#[derive(Debug)]
pub struct BodyCounter(pub(crate) Arc<Caller>);

impl BodyCounter {
    /// Notes that bytes have arrived. If more arrived than were booked, the booking is extended, even beyond the token's quota.
    pub fn add(&self, bytes: usize) {
        self.0.note_arrived(bytes as u64);
    }
}

impl Caller {
    /// A client with nothing booked.
    pub(crate) fn new(token: Option<Arc<Token>>, line: Option<Line>) -> Caller {
        Caller { token, line, booked: Booked::default(), arrived: AtomicU64::new(0) }
    }

    /// The same client in its next request, for which bytes may have been booked.
    pub(crate) fn next(&self, token: Option<Arc<Token>>, line: Option<Line>) -> Caller {
        let booked = Booked::default();
        booked.set(self.booked.take());
        Caller { token, line, booked, arrived: AtomicU64::new(self.arrived.swap(0, Ordering::Relaxed)) }
    }

    /// Whether its token has a quota of bytes.
    pub(crate) fn books_bytes(&self) -> bool {
        self.token.as_ref().is_some_and(|token| token.limits_bytes())
    }

    /// The booking for the message of the next request.
    pub(crate) fn booking(&self) -> Booking {
        self.booked.get()
    }

    /// Books the bytes of a message that is about to arrive.
    pub(crate) fn book(&self, announced: Option<u64>) -> Result<(), OverQuota> {
        let Some(token) = &self.token else { return Ok(()) };
        self.end_booking();
        self.booked.set(token.book_bytes(announced, now_ns())?);
        Ok(())
    }

    /// Ends the booking of a message that was not read to its end or could not be parsed. The token pays for the bytes that arrived.
    fn end_booking(&self) {
        let (booking, arrived) = (self.booked.take(), self.arrived.swap(0, Ordering::Relaxed));
        if let Some(token) = self.token.as_ref().filter(|_| booking.time_ns > 0) {
            token.end_booking(booking, arrived, now_ns());
        }
    }

    fn note_arrived(&self, bytes: u64) {
        let arrived = self.arrived.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let booking = self.booking();
        let is_more = |token: &&Arc<Token>| booking.time_ns > 0 && token.time_of(arrived) > booking.time_ns;
        if let Some(token) = self.token.as_ref().filter(is_more) {
            self.booked.set(token.extend(booking, arrived, now_ns()));
        }
    }

    /// Notes bytes of tensors in the message of a request.
    pub(crate) fn note_bytes_in(&self, bytes: u64) {
        let booking = self.booked.take();
        self.token.iter().for_each(|token| token.note_bytes_in(booking, bytes, now_ns()));
        self.line.iter().for_each(|line| line.note_bytes_in(bytes));
    }

    /// Notes one response of an inference.
    pub(crate) fn note_response(&self, response: &Response) {
        let bytes = tensor_bytes(response);
        self.token.iter().for_each(|token| token.note_bytes_out(bytes, now_ns()));
        let Some(line) = &self.line else { return };
        line.note(|facts| facts.bytes_out += bytes);
        if response.is_last() {
            line.note_outcome(match response {
                Response::Failed { error, .. } => codes::grpc_status(error.code),
                _ => 0,
            });
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.end_booking();
    }
}

/// The [`Booking`] of a message. While the message arrives, only the task of its connection changes the booking.
#[derive(Debug, Default)]
struct Booked {
    number: AtomicU64,
    /// 0 if nothing is booked.
    time_ns: AtomicU64,
}

impl Booked {
    fn get(&self) -> Booking {
        Booking { number: self.number.load(Ordering::Relaxed), time_ns: self.time_ns.load(Ordering::Relaxed) }
    }

    fn set(&self, booking: Booking) {
        self.number.store(booking.number, Ordering::Relaxed);
        self.time_ns.store(booking.time_ns, Ordering::Relaxed);
    }

    fn take(&self) -> Booking {
        let time_ns = self.time_ns.swap(0, Ordering::Relaxed);
        Booking { number: self.number.swap(0, Ordering::Relaxed), time_ns }
    }
}

/// The front end through which a call arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum FrontEnd {
    Http,
    Grpc,
    Session,
    Metrics,
}

/// The line of one call. It is written when this is dropped.
#[derive(Debug)]
pub(crate) struct Line {
    log: Arc<LogSwitches>,
    front: FrontEnd,
    call: &'static str,
    /// The call that the client named: a method and a path, or an RPC. The text is shortened, and may be empty.
    named: String,
    peer: Peer,
    /// The client's header `x-forwarded-for`. Only the log uses it, because every client can send it. The text is shortened, and may be empty.
    forwarded_for: String,
    token: Option<Arc<Token>>,
    begun_ns: u64,
    facts: Mutex<CallFacts>,
}

/// The notes on a call while it is carried out.
#[derive(Clone, Debug, Default)]
struct CallFacts {
    model: String,
    version: String,
    id: String,
    status: Option<u32>,
    bytes_in: u64,
    bytes_out: u64,
    /// The trace that the request is part of, in hexadecimal digits. Empty if there is none.
    trace_id: String,
    queue_ns: Option<u64>,
    /// Whether each request of the call has a line of its own.
    is_silent: bool,
}

impl Line {
    /// Begins the line of a call.
    pub(crate) fn begin(
        log: &Arc<LogSwitches>,
        front: FrontEnd,
        call: Category,
        named: &str,
        peer: &Peer,
        token: Option<&Arc<Token>>,
    ) -> Line {
        Line {
            log: Arc::clone(log),
            front,
            call: call.name(),
            named: shortened(named),
            peer: peer.clone(),
            forwarded_for: String::new(),
            token: token.cloned(),
            begun_ns: now_ns(),
            facts: Mutex::default(),
        }
    }

    /// The same line with the header `x-forwarded-for` of the call.
    pub(crate) fn forwarded_for(mut self, header: Option<&[u8]>) -> Line {
        let bytes = header.map_or(&[][..], |header| &header[..header.len().min(NAME_BYTES_MAX)]);
        self.forwarded_for = shortened(&String::from_utf8_lossy(bytes));
        self
    }

    /// Notes that the call is this inference.
    pub(crate) fn note_request(&self, model: &str, version: &str, id: &str) {
        self.note(|facts| {
            (facts.model, facts.version, facts.id) = (shortened(model), shortened(version), shortened(id));
        });
    }

    /// Notes this many bytes of tensors in the message of the request.
    pub(crate) fn note_bytes_in(&self, bytes: u64) {
        self.note(|facts| facts.bytes_in += bytes);
    }

    /// Notes the trace that the request is part of.
    pub(crate) fn note_trace(&self, context: &TraceContext) {
        self.note(|facts| facts.trace_id = context.trace_id_text());
    }

    /// Notes how long the request waited in the queue of its model.
    pub(crate) fn note_queue(&self, ns: u64) {
        self.note(|facts| facts.queue_ns = Some(ns));
    }

    /// Notes the outcome of an inference as a gRPC status. Over HTTP the answer has a status of its own.
    pub(crate) fn note_outcome(&self, code: u32) {
        if self.front != FrontEnd::Http {
            self.note(|facts| facts.status = facts.status.or(Some(code)));
        }
    }

    /// Notes the outcome of the call as a status of its protocol.
    pub(crate) fn note_status(&self, status: u32) {
        self.note(|facts| facts.status = facts.status.or(Some(status)));
    }

    /// Notes that each request of the call has a line of its own.
    pub(crate) fn silence(&self) {
        self.note(|facts| facts.is_silent = true);
    }

    /// A new line for the next request of the same call.
    pub(crate) fn next(&self) -> Line {
        let Line { log, front, call, named, peer, forwarded_for, token, .. } = self;
        let (log, named, peer, token) = (Arc::clone(log), named.clone(), peer.clone(), token.clone());
        let trace_id = self.facts.lock().unwrap_or_else(PoisonError::into_inner).trace_id.clone();
        let facts = Mutex::new(CallFacts { trace_id, ..CallFacts::default() });
        let (forwarded_for, begun_ns) = (forwarded_for.clone(), now_ns());
        Line { log, front: *front, call, named, peer, forwarded_for, token, begun_ns, facts }
    }

    fn note(&self, change: impl FnOnce(&mut CallFacts)) {
        change(&mut self.facts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn text(&self, facts: &CallFacts, is_json: bool, now_ns: u64) -> String {
        let CallFacts { model, version, id, status, bytes_in, bytes_out, trace_id, queue_ns, .. } = facts;
        let mut fields = Fields { is_json, out: String::with_capacity(192) };
        fields.word("protocol", self.front.name());
        fields.word("peer", &self.peer.to_string());
        if !self.forwarded_for.is_empty() {
            fields.word("forwarded_for", &self.forwarded_for);
        }
        fields.word("token", self.token.as_ref().map_or("-", |token| token.name()));
        fields.word("call", self.call);
        for (name, value) in [("model", model), ("version", version), ("request_id", id)] {
            if !value.is_empty() {
                fields.word(name, value);
            }
        }
        if let Some(status) = status {
            fields.number("status", u64::from(*status));
        }
        fields.number("bytes_in", *bytes_in);
        fields.number("bytes_out", *bytes_out);
        fields.number("us", now_ns.saturating_sub(self.begun_ns) / 1000);
        if let Some(queue_ns) = queue_ns {
            fields.number("queue_us", queue_ns / 1000);
        }
        if !trace_id.is_empty() {
            fields.word("trace_id", trace_id);
        }
        // Last, because it is the longest.
        if !self.named.is_empty() {
            fields.word("request", &self.named);
        }
        fields.out
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let facts = std::mem::take(&mut *self.facts.lock().unwrap_or_else(PoisonError::into_inner));
        if !facts.is_silent {
            let is_json = self.log.format() == LogFormat::Json;
            log::info!(target: ACCESS_TARGET, "{}", self.text(&facts, is_json, now_ns()));
        }
    }
}

impl FrontEnd {
    /// Whether a call of `category` has the header that the operator requires for it, if one is required.
    pub(crate) fn check<'h>(
        self,
        restrictions: &[Restriction],
        category: Category,
        header: impl Fn(&str) -> Option<&'h [u8]>,
    ) -> Result<(), Status> {
        match self {
            FrontEnd::Http => access::check(restrictions, Protocol::Http, category, header),
            FrontEnd::Grpc => access::check(restrictions, Protocol::Grpc, category, header),
            FrontEnd::Session => access::check_any(restrictions, category, header),
            FrontEnd::Metrics => Ok(()),
        }
    }

    /// Whether the server learns only from the message of such a call if it changes settings.
    pub(crate) fn hides_changes(self, call: Category) -> bool {
        self == FrontEnd::Grpc && matches!(call, Category::Trace | Category::Logging)
    }

    /// The status of a refusal in this protocol.
    pub(crate) fn status_of(self, refused: &Refused) -> u32 {
        match self {
            FrontEnd::Http | FrontEnd::Metrics => u32::from(refused.http_status()),
            FrontEnd::Grpc | FrontEnd::Session => codes::grpc_status(refused.status.code),
        }
    }

    fn name(self) -> &'static str {
        match self {
            FrontEnd::Http => "http",
            FrontEnd::Grpc => "grpc",
            FrontEnd::Session => "session",
            FrontEnd::Metrics => "metrics",
        }
    }
}

/// Named values, as words or as members of a JSON object.
struct Fields {
    is_json: bool,
    out: String,
}

impl Fields {
    fn word(&mut self, name: &str, value: &str) {
        self.name(name);
        let is_plain = value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-:/".contains(&byte));
        if is_plain && !self.is_json {
            self.out.push_str(value);
        } else {
            quote(value, &mut self.out);
        }
    }

    fn number(&mut self, name: &str, value: u64) {
        self.name(name);
        let _ = write!(self.out, "{value}");
    }

    fn name(&mut self, name: &str) {
        if self.is_json {
            let _ = write!(self.out, "{}\"{name}\":", if self.out.is_empty() { "" } else { "," });
        } else {
            let _ = write!(self.out, "{}{name}=", if self.out.is_empty() { "access: " } else { " " });
        }
    }
}

/// Writes a text as a string of JSON. All characters but printable ASCII are escaped.
fn quote(value: &str, out: &mut String) {
    out.push('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

/// Bytes of the tensors in the message with this response.
fn tensor_bytes(response: &Response) -> u64 {
    match response {
        Response::Part(tensors) | Response::Final(tensors) => {
            let carried = tensors.outputs.iter().filter(|output| !output.placed);
            carried.map(|output| output.data.len() as u64).sum()
        }
        Response::End | Response::Failed { .. } => 0,
    }
}

fn shortened(name: &str) -> String {
    cut(name, NAME_BYTES_MAX).to_owned()
}

/// The beginning of a text.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use nerite_request::setting::LogSettings;

    use super::*;

    fn line(front: FrontEnd) -> Line {
        let settings = LogSettings {
            file: String::new(),
            info: false,
            warning: false,
            error: false,
            verbose_level: 0,
            format: "default".into(),
        };
        let named = if front == FrontEnd::Http { "POST /v2/models/a/infer" } else { "" };
        let log = Arc::new(LogSwitches::new(settings));
        Line::begin(&log, front, Category::Inference, named, &Peer::User { uid: 7 }, None)
    }

    #[test]
    fn each_front_end_asks_for_the_headers_of_its_own_protocol_and_sessions_for_one_of_any() {
        let rule = |protocol, header: &str| Restriction {
            protocol,
            category: Category::Inference,
            header: header.into(),
            value: "yes".into(),
        };
        let rules = [rule(Protocol::Http, "by-http"), rule(Protocol::Grpc, "by-grpc")];
        let fronts = [FrontEnd::Http, FrontEnd::Grpc, FrontEnd::Session, FrontEnd::Metrics];
        for (given, passes) in [
            ("by-http", [true, false, true, true]),
            ("by-grpc", [false, true, true, true]),
            ("none", [false, false, false, true]),
        ] {
            let header = |name: &str| (name == given).then_some(&b"yes"[..]);
            let passed = fronts.map(|front| front.check(&rules, Category::Inference, header).is_ok());
            assert_eq!(passed, passes, "{given}");
            assert!(fronts.map(|front| front.check(&rules, Category::Health, header).is_ok()) == [true; 4]);
        }
    }

    #[track_caller]
    fn check(line: &Line, is_json: bool, expect: &str) {
        let facts = line.facts.lock().expect("nobody panicked").clone();
        assert_eq!(line.text(&facts, is_json, line.begun_ns + 5_999), expect);
    }

    #[test]
    fn a_line_says_who_asked_what_and_what_came_of_it() {
        let line = line(FrontEnd::Grpc);
        check(&line, false, "access: protocol=grpc peer=\"user 7\" token=- call=inference bytes_in=0 bytes_out=0 us=5");
        line.note_request("digits", "", "a\n\"b\" é😀");
        line.note_bytes_in(64);
        line.note(|facts| facts.bytes_out += 8);
        line.note_outcome(0);
        line.note_status(13);
        let parent = format!("00-{}-00f067aa0ba902b7-01", "4bf9".repeat(8));
        line.note_trace(&TraceContext::read(parent.as_bytes(), None).expect("a header"));
        line.note_queue(2_999);
        check(
            &line,
            false,
            "access: protocol=grpc peer=\"user 7\" token=- call=inference model=digits request_id=\"a\\u000a\\\"b\\\" \\u00e9\\ud83d\\ude00\" \
             status=0 bytes_in=64 bytes_out=8 us=5 queue_us=2 trace_id=4bf94bf94bf94bf94bf94bf94bf94bf9",
        );
        check(
            &line,
            true,
            "\"protocol\":\"grpc\",\"peer\":\"user 7\",\"token\":\"-\",\"call\":\"inference\",\"model\":\"digits\",\
             \"request_id\":\"a\\u000a\\\"b\\\" \\u00e9\\ud83d\\ude00\",\"status\":0,\"bytes_in\":64,\"bytes_out\":8,\"us\":5,\"queue_us\":2,\
             \"trace_id\":\"4bf94bf94bf94bf94bf94bf94bf94bf9\"",
        );
    }

    #[test]
    fn the_header_of_a_proxy_is_cut_and_escaped() {
        let with = |header: &[u8]| line(FrontEnd::Grpc).forwarded_for(Some(header)).next();
        check(
            &with(b"203.0.113.7, \"x\"\n\xff"),
            false,
            "access: protocol=grpc peer=\"user 7\" forwarded_for=\"203.0.113.7, \\\"x\\\"\\u000a\\ufffd\" token=- call=inference \
             bytes_in=0 bytes_out=0 us=5",
        );
        assert!(with(&[0xff; 10_000]).forwarded_for.len() <= NAME_BYTES_MAX);
        assert!(with(b"").forwarded_for.is_empty());
    }

    #[test]
    fn names_are_cut_and_over_http_the_answer_has_the_status() {
        let line = line(FrontEnd::Http);
        line.note_request(&"é".repeat(100), "1", "");
        line.note_outcome(5);
        line.note_status(404);
        let facts = line.facts.lock().expect("nobody panicked").clone();
        assert_eq!((facts.model.len(), facts.status), (NAME_BYTES_MAX, Some(404)));
        assert!(line.text(&facts, false, line.begun_ns).ends_with(" us=0 request=\"POST /v2/models/a/infer\""));
        let long = Line::begin(&line.log, FrontEnd::Http, Category::Inference, &"é".repeat(10_000), &line.peer, None);
        assert_eq!(
            (long.named.len(), long.named.capacity(), long.next().named.len()),
            (NAME_BYTES_MAX, NAME_BYTES_MAX, NAME_BYTES_MAX)
        );
    }
}
