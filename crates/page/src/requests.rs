//! Which requests were made recently, and where did their time go?

use std::sync::Arc;

use nerite_api::{Api, RecentNote, RecentRequest};
use nerite_request::{Peer, Status};
use nerite_wire::json::Writer;

/// The requests after this number that the visitor may see, as JSON, oldest first. Each call continues the recording
/// for a few seconds.
pub fn write(api: &Api, after: u64) -> Result<Vec<u8>, Status> {
    Ok(write_seen(api.peer(), &api.recent_requests(after)?, RecentRequest::age_ms))
}

fn write_seen(visitor: &Peer, seen: &[Arc<RecentRequest>], age_ms: fn(&RecentRequest) -> u64) -> Vec<u8> {
    let notes: usize = seen.iter().map(|request| request.notes.len()).sum();
    let mut out = Writer::with_capacity(128 + 128 * seen.len() + 64 * notes);
    out.object(|out| {
        out.key("seen_by").string(visitor.to_string().as_bytes());
        out.key("is_operator").bool(visitor.is_operator());
        out.key("requests").array(|out| seen.iter().for_each(|request| write_request(out, request, age_ms(request))));
    });
    out.into_bytes()
}

fn write_request(out: &mut Writer, request: &RecentRequest, age_ms: u64) {
    out.object(|out| {
        out.key("number").unsigned(request.number);
        out.key("client").string(request.owner.to_string().as_bytes());
        out.key("request_id").string(request.request_id.as_bytes());
        out.key("age_ms").unsigned(age_ms);
        out.key("is_shortened").bool(request.is_shortened);
        out.key("notes").array(|out| request.notes.iter().for_each(|note| write_note(out, note, request.begun_ns)));
    });
}

/// A note in the form of the page's own traces. Its times are in ns from the first note.
fn write_note(out: &mut Writer, note: &RecentNote, begun_ns: u64) {
    out.object(|out| match note {
        RecentNote::Begin { id, parent, model, version } => {
            out.key("id").unsigned(*id);
            out.key("parent").unsigned(*parent);
            out.key("model").string(model.as_bytes());
            out.key("version").string(version.as_bytes());
        }
        RecentNote::Passed { id, point, ns } => {
            out.key("id").unsigned(*id);
            out.key("point").string(point.as_bytes());
            out.key("ns").unsigned(ns.saturating_sub(begun_ns));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_its_client_and_its_notes_from_the_first_of_them() {
        let point = |point, ns| RecentNote::Passed { id: 7, point, ns };
        let begin = RecentNote::Begin { id: 7, parent: 0, model: "m".into(), version: "1".into() };
        let request = RecentRequest {
            number: 3,
            owner: Peer::User { uid: 12 },
            begun_ns: 1000,
            ended_ns: 4_000_000,
            request_id: "<b>".into(),
            notes: vec![point("HTTP_RECV_START", 1000), begin, point("REQUEST_END", 4_000_000)],
            is_shortened: false,
        };
        let text = write_seen(&Peer::User { uid: 0 }, &[Arc::new(request)], |_| 5);
        let expect = r#"{"seen_by":"user 0","is_operator":true,"requests":[{"number":3,"client":"user 12","request_id":"<b>","age_ms":5,"is_shortened":false,"notes":[{"id":7,"point":"HTTP_RECV_START","ns":0},{"id":7,"parent":0,"model":"m","version":"1"},{"id":7,"point":"REQUEST_END","ns":3999000}]}]}"#;
        assert_eq!(String::from_utf8(text).expect("UTF-8"), expect);
    }
}
