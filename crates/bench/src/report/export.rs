//! What does the file of all requests hold, in perf_analyzer's form?
//!
//! Contents of tensors are left out: `request_inputs` is empty, and so is each element of `response_outputs`.

use std::fmt::Write as _;

use super::number::general;
use crate::results::{Level, Point, Record, Records};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// JSON in one line. The text is written by hand: a tree of values of a million requests would take gigabytes.
pub(crate) fn requests(points: &[Point]) -> String {
    let mut out = String::from("{\"experiments\":[");
    for (index, point) in points.iter().enumerate() {
        out += if index > 0 { "," } else { "" };
        experiment(&mut out, point);
    }
    let _ = write!(out, "],\"version\":\"{VERSION}\",\"service_kind\":\"triton\",\"endpoint\":\"\"}}");
    out
}

fn experiment(out: &mut String, point: &Point) {
    let (mode, value) = match point.level {
        Level::Concurrency(clients) => ("concurrency", clients.to_string()),
        Level::Rate(rate) | Level::Intervals(rate) => ("request_rate", general(rate)),
    };
    let _ = write!(out, "{{\"experiment\":{{\"mode\":\"{mode}\",\"value\":{value}}},\"requests\":[");
    let none = Records::default();
    let records = point.records.as_ref().unwrap_or(&none);
    let mut rest = records.responses_ns.as_slice();
    for (index, record) in records.requests.iter().enumerate() {
        let (responses, later) = rest.split_at(rest.len().min(record.responses as usize));
        rest = later;
        out.push_str(if index > 0 { "," } else { "" });
        request(out, record, responses);
    }
    out.push_str("],\"window_boundaries\":");
    numbers(out, &records.windows_ns);
    out.push('}');
}

fn request(out: &mut String, record: &Record, responses: &[u64]) {
    let _ = write!(out, "{{\"timestamp\":{}", record.start_ns);
    if record.sequence_id != 0 {
        let _ = write!(out, ",\"sequence_id\":{}", record.sequence_id);
    }
    out.push_str(",\"request_inputs\":{},\"response_timestamps\":");
    numbers(out, responses);
    out.push_str(",\"response_outputs\":[");
    out.push_str(&vec!["{}"; responses.len()].join(","));
    out.push_str("]}");
}

fn numbers(out: &mut String, numbers: &[u64]) {
    out.push('[');
    for (index, number) in numbers.iter().enumerate() {
        let _ = write!(out, "{}{number}", if index > 0 { "," } else { "" });
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[track_caller]
    fn check(level: Level, records: Records, experiment: &str) {
        let point = Point { level, records: Some(records), ..samples::point(1, 100.0) };
        let expect = format!(
            "{{\"experiments\":[{experiment}],\"version\":\"{VERSION}\",\"service_kind\":\"triton\",\"endpoint\":\"\"}}"
        );
        assert_eq!(requests(&[point]), expect);
    }

    #[test]
    fn each_request_has_the_times_of_its_responses() {
        let requests = vec![
            Record { start_ns: 1_796_044_478_126_805_244, sequence_id: 0, responses: 2 },
            Record { start_ns: 1_796_044_478_129_859_759, sequence_id: 7, responses: 1 },
            Record { start_ns: 1_796_044_478_139_859_759, sequence_id: 0, responses: 0 },
        ];
        let responses_ns = vec![1_796_044_478_129_371_354, 1_796_044_478_129_798_418, 1_796_044_478_130_849_138];
        let windows_ns = vec![1_796_044_478_126_205_513, 1_796_044_478_366_946_519];
        check(
            Level::Concurrency(4),
            Records { requests, responses_ns, windows_ns },
            "{\"experiment\":{\"mode\":\"concurrency\",\"value\":4},\"requests\":[\
             {\"timestamp\":1796044478126805244,\"request_inputs\":{},\
             \"response_timestamps\":[1796044478129371354,1796044478129798418],\"response_outputs\":[{},{}]},\
             {\"timestamp\":1796044478129859759,\"sequence_id\":7,\"request_inputs\":{},\
             \"response_timestamps\":[1796044478130849138],\"response_outputs\":[{}]},\
             {\"timestamp\":1796044478139859759,\"request_inputs\":{},\"response_timestamps\":[],\"response_outputs\":[]}],\
             \"window_boundaries\":[1796044478126205513,1796044478366946519]}",
        );
    }

    #[test]
    fn a_rate_is_a_mode_of_its_own() {
        let empty = "\"requests\":[],\"window_boundaries\":[]}";
        check(
            Level::Rate(50.5),
            Records::default(),
            &format!("{{\"experiment\":{{\"mode\":\"request_rate\",\"value\":50.5}},{empty}"),
        );
        check(
            Level::Intervals(400.0),
            Records::default(),
            &format!("{{\"experiment\":{{\"mode\":\"request_rate\",\"value\":400}},{empty}"),
        );
    }

    #[test]
    fn nothing_was_measured() {
        assert_eq!(
            requests(&[]),
            format!("{{\"experiments\":[],\"version\":\"{VERSION}\",\"service_kind\":\"triton\",\"endpoint\":\"\"}}")
        );
    }
}
