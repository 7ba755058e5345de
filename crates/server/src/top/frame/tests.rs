//! Does a look show what is there, within its terminal?

use std::time::{Duration, Instant};

use serde_json::json;

use super::super::gather::Page;
use super::*;

fn sample(at: Instant, success: u32, request_us: u32, page: Option<Page>) -> Sample {
    let text = format!(
        "nv_inference_request_success{{model=\"busy\",version=\"1\"}} {success}\n\
         nv_inference_request_duration_us{{model=\"busy\",version=\"1\"}} {request_us}\n\
         nerite_model_run_rows_total{{model=\"busy\",version=\"1\"}} {}\nnv_inference_exec_count{{model=\"busy\",version=\"1\"}} {success}\n\
         nerite_model_ready{{model=\"busy\",version=\"1\"}} 1\nnerite_model_ready{{model=\"idle\",version=\"1\"}} 0\n\
         nerite_copied_bytes_total{{reason=\"unaligned\"}} {}\nnerite_sessions 1\n",
        2 * success,
        1024 * success,
    );
    Sample { at, numbers: Numbers::read(&text), page }
}

fn page() -> Page {
    Page {
        visitor: json!({"version": "0.1.0", "you": "user 0"}),
        models: json!({"models": [{"name": "busy", "version": "1", "state": "READY"}, {"name": "off", "state": ""}]}),
        memory: json!({
            "regions": [{"name": "good_one", "key": "/k", "byte_size": 64, "session": 0, "owner": "user 7", "in_flight": 0, "state": "good", "is_stale": false},
                        {"name": "old\u{1b}[2J", "key": "/o", "byte_size": 64, "session": 3, "owner": "", "in_flight": 0, "state": "key unlinked", "is_stale": true}],
            "sessions": [{"session": 3, "command": "python3", "pid": 77, "uid": 7, "leases": 1, "lease_bytes": 4096, "in_flight": 2}],
        }),
    }
}

const WIDE: Size = Size { columns: 200, rows: usize::MAX };

#[track_caller]
fn check(lines: &[String], words: &[&str]) {
    let found =
        lines.iter().any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ").contains(&words.join(" ")));
    assert!(found, "{words:?}\n{}", lines.join("\n"));
}

fn looked(page: Option<Page>, size: Size) -> Vec<String> {
    let now = Instant::now();
    let before = sample(now, 100, 0, None);
    frame("http://h:1", Some(&before), &sample(now + Duration::from_secs(2), 300, 40_000, page), size)
}

#[test]
fn a_look_has_rates_states_and_who_holds_what() {
    let lines = looked(Some(page()), WIDE);
    check(&lines, &["nerite top http://h:1 nerite 0.1.0 you are user 0"]);
    check(&lines, &["requests/s 100 failures/s 0"]);
    check(&lines, &["copies/s unaligned 100 KiB"]);
    check(&lines, &["busy", "1 ready", "100", "0", "0", "2.0", "200 µs", "0 µs", "0 µs"]);
    check(&lines, &["off", "not loaded"]);
    check(&lines, &["old\\u{1b}[2J", "/o", "64 bytes", "session 3", "0", "key unlinked"]);
    check(&lines, &["3", "python3", "77", "7", "1", "4 KiB", "2"]);
    assert!(lines.iter().all(|line| !line.contains('\u{1b}')), "a name steers no terminal");
}

#[test]
fn models_of_two_repositories_have_a_row_each() {
    let entry = |repository: &str, state: &str| json!({"name": "same", "identifier": format!("/a/long/way/to/the/models/of/{repository}::same"), "version": "1", "state": state});
    let models = json!({"models": [entry("first", "READY"), entry("second", "LOADING")]});
    let lines = looked(Some(Page { models, ..page() }), WIDE);
    check(&lines, &["/a/long/way/to/the/models/of/first::same", "1 ready"]);
    check(&lines, &["…a/long/way/to/the/models/of/second::same", "1 loading"]);
}

#[test]
fn a_model_that_could_not_be_loaded_says_why() {
    let entry = |name: &str, state: &str, reason: &str| json!({"name": name, "state": state, "reason": reason});
    let loading = json!({"name": "later", "version": "1", "state": "LOADING", "reason": "its weights are read"});
    let models = json!({"models": [entry("typo", "UNAVAILABLE", "no value 'TYPE_FLOAT32'\u{1b}"), entry("old", "UNAVAILABLE", "unloaded"), loading]});
    let lines = looked(Some(Page { models, ..page() }), WIDE);
    check(&lines, &["typo: no value 'TYPE_FLOAT32'\\u{1b}"]);
    assert!(!lines.iter().any(|line| line.contains("old: ") || line.contains("its weights are read")));
}

#[test]
fn without_a_page_it_says_what_is_missing() {
    let lines = looked(None, WIDE);
    check(&lines, &["idle", "not ready"]);
    check(&lines, &["is off (--ui) or has another port (--ui-port)"]);
}

#[test]
fn a_look_fits_its_terminal_and_says_what_it_leaves_out() {
    let mut many = page();
    let region = many.memory["regions"][0].clone();
    many.memory["regions"] = Value::Array(vec![region; 500]);
    for rows in [1, 5, 12, 24, 60] {
        let lines = looked(Some(many.clone()), Size { columns: 60, rows });
        assert!(
            lines.len() <= rows && lines.iter().all(|line| line.chars().count() < 60),
            "{rows}\n{}",
            lines.join("\n")
        );
        if rows >= 24 {
            assert!(lines.iter().any(|line| line.contains("more regions")), "{rows}\n{}", lines.join("\n"));
            check(&lines, &["python3"]);
        }
    }
}

#[test]
fn a_narrow_terminal_has_whole_numbers_and_names_that_say_they_are_cut() {
    let name = "a_model_with_a_name_of_more_than_forty_characters";
    let mut named = page();
    named.models["models"][0]["name"] = json!(name);
    named.memory["regions"][0]["state"] = json!("key unlinked: nobody new can open the object");
    let lines = looked(Some(named), Size { columns: 80, rows: 40 });
    let shown = lines.join("\n");
    assert!(lines.iter().all(|line| line.chars().count() < 80), "{shown}");
    check(&lines, &["MODEL", "STATE", "REQ/S", "FAIL/S", "WAITING", "ROWS/RUN", "MEAN", "QUEUE"]);
    assert!(lines.iter().any(|line| line.starts_with("a_model_with_a_") && line.contains('…')), "{shown}");
    check(&lines, &["busy", "ready", "100", "0", "0", "2.0", "200 µs", "0 µs"]);
    check(&lines, &["regions 0", "mapped 0 bytes"]);
    check(&lines, &["held for clients 0 bytes"]);
    check(&lines, &["memory 0 bytes of 0 bytes"]);
    let narrow = looked(Some(page()), Size { columns: 30, rows: 40 });
    assert!(narrow.iter().all(|line| line.chars().count() < 30), "{}", narrow.join("\n"));
    check(&narrow, &["busy", "1 ready", "100"]);
    check(&narrow, &["waiting 0"]);
    // A low terminal has its lines for the lists.
    let low = looked(Some(page()), Size { columns: 50, rows: 20 });
    check(&low, &["busy", "1 ready", "100"]);
    for (columns, rows) in [(40, 12), (20, 10), (20, 8)] {
        let lowest = looked(Some(page()), Size { columns, rows });
        assert!(lowest.len() <= rows);
        check(&lowest, &["busy", "1 ready"]);
    }
}

#[test]
fn of_an_identifier_the_end_is_kept() {
    assert_eq!(shortened("models_of_a_team::same", 9), "…am::same");
    assert_eq!(shortened("a_long_name", 7), "a_long…");
    assert_eq!(shortened("short", 5), "short");
    assert_eq!(fitted(vec![40, 10, 10], 46), [22, 10, 10]);
    assert_eq!(fitted(vec![40, 10, 10], 40), [16, 10, 10]);
    assert_eq!(fitted(vec![40, 10, 10], 39), [16, 10]);
    assert_eq!(fitted(vec![15], 3), [15]);
}
