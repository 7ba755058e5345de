//! Do tokens follow their file, and do quotas outlive it?

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::bookings::Booking;
use crate::scope::Scope;
use crate::token::Quota;

const S: u64 = 1_000_000_000;

/// Replaces a file, as editors and Kubernetes do.
fn put(path: &Path, text: &str) {
    let fresh = path.with_extension("new");
    fs::write(&fresh, text).unwrap();
    fs::rename(&fresh, path).unwrap();
}

fn token(name: &str, secret: &str, rest: &str) -> String {
    format!("[[token]]\nname = \"{name}\"\nsecret = \"{secret}\"\n{rest}\n")
}

#[test]
fn a_client_is_who_its_secret_says() {
    let tokens = Tokens::from_text(&(token("a", "one", "scopes = [\"infer\"]") + &token("b", "two", ""))).unwrap();
    let name = |header: Option<&[u8]>| tokens.find(header).map(|token| token.name().to_owned());
    assert_eq!(name(Some(b"Bearer one")).unwrap(), "a");
    assert_eq!(name(Some(b"bearer two")).unwrap(), "b");
    assert_eq!(name(None).unwrap(), "anonymous");
    for wrong in [&b"Bearer three"[..], b"Bearer", b"", b"one"] {
        assert_eq!(name(Some(wrong)), Err(Unknown));
    }
    assert_eq!(tokens.counters().unknown, 4);
}

#[test]
fn a_changed_file_is_in_force_and_a_broken_one_leaves_the_rules_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.toml");
    put(&path, &token("a", "one", "scopes = [\"infer\"]"));
    let tokens = Tokens::from_file(&path).unwrap();
    let old = tokens.find(Some(b"Bearer one")).unwrap();
    assert_eq!(tokens.renewed(&old), Ok(None));
    let mut seen = Seen { last: stamp(&path), read: stamp(&path), ..Seen::default() };
    let mut look_twice = || (0..2).for_each(|_| tokens.reload_if_changed(&path, &mut seen));
    look_twice();
    assert_eq!(tokens.renewed(&old), Ok(None), "the file did not change");
    put(&path, "[[token]]\nname = \"a\n");
    look_twice();
    look_twice();
    assert_eq!((tokens.counters().faults, tokens.counters().is_current), (1, false));
    assert!(tokens.find(Some(b"Bearer one")).is_ok());
    put(&path, &token("a", "one", "scopes = [\"read\"]"));
    look_twice();
    assert!(tokens.counters().is_current);
    let renewed = tokens.renewed(&old).unwrap().expect("another generation");
    assert!(renewed.has_any(&[Scope::Read]) && !renewed.has_any(&[Scope::Infer]));
    for broken_off in ["", "# tokens\n", "[anonymous]\nscopes = [\"infer\"]\n"] {
        put(&path, broken_off);
        look_twice();
        assert!(!tokens.counters().is_current && tokens.find(Some(b"Bearer one")).is_ok(), "{broken_off}");
    }
    assert_eq!(tokens.counters().faults, 4);
    put(&path, "token = []\n");
    look_twice();
    assert!(tokens.counters().is_current);
    assert_eq!(tokens.renewed(&old), Err(Unknown), "its token was taken away");
}

#[test]
fn a_file_that_says_nothing_is_a_fault_at_the_start_and_one_without_tokens_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.toml");
    let outcome = |text: &str| {
        put(&path, text);
        Tokens::from_file(&path).map(drop).map_err(|error| error.to_string())
    };
    let fault = format!("the tokens of '{}' have faults:\nthe file has no [[token]]; if nobody", path.display());
    for nothing in ["", "\n", "# all of them\n"] {
        let refused = outcome(nothing).unwrap_err();
        assert!(refused.starts_with(&fault), "{refused}");
    }
    assert_eq!(outcome("token = []\n"), Ok(()));
    assert_eq!(outcome("[anonymous]\nscopes = [\"infer\"]\n"), Ok(()));
}

#[test]
fn a_file_that_is_being_written_is_taken_over_once_it_stands_still() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.toml");
    fs::write(&path, token("a", "one", "")).unwrap();
    let tokens = Tokens::from_file(&path).unwrap();
    let mut seen = Seen { last: stamp(&path), read: stamp(&path), ..Seen::default() };
    let mut reload_if_changed = || tokens.reload_if_changed(&path, &mut seen);
    let allows_model = || tokens.find(Some(b"Bearer two")).map(|token| token.allows_model("secret"));
    // Half of the file is written: the list of models is missing.
    fs::write(&path, token("b", "two", "scopes = [\"infer\"]")).unwrap();
    reload_if_changed();
    fs::write(&path, token("b", "two", "scopes = [\"infer\"]\nmodels = [\"echo\"]")).unwrap();
    reload_if_changed();
    assert_eq!(allows_model(), Err(Unknown), "it changed between the two looks");
    reload_if_changed();
    assert_eq!(allows_model(), Ok(false));
}

#[test]
fn a_file_that_cannot_be_read_is_looked_at_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.toml");
    fs::write(&path, token("a", "one", "")).unwrap();
    let tokens = Tokens::from_file(&path).unwrap();
    let first = stamp(&path);
    let mut seen = Seen { last: first, read: first, ..Seen::default() };
    fs::write(&path, vec![b'#'; FILE_BYTES_MAX as usize + 1]).unwrap();
    (0..4).for_each(|_| tokens.reload_if_changed(&path, &mut seen));
    assert_eq!((tokens.counters().faults, tokens.counters().is_current), (1, false), "said once");
    assert_eq!(seen.read, first, "what could not be read counts as not read");
    assert!(tokens.find(Some(b"Bearer one")).is_ok());
}

#[test]
fn a_fifo_in_the_place_of_the_file_stops_no_look() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.toml");
    put(&path, &token("a", "one", ""));
    let tokens = Tokens::from_file(&path).unwrap();
    let mut seen = Seen { last: stamp(&path), read: stamp(&path), ..Seen::default() };
    fs::remove_file(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    (0..3).for_each(|_| tokens.reload_if_changed(&path, &mut seen));
    assert!(!tokens.counters().is_current && tokens.find(Some(b"Bearer one")).is_ok());
    put(&path, &token("b", "two", ""));
    (0..2).for_each(|_| tokens.reload_if_changed(&path, &mut seen));
    assert!(tokens.counters().is_current && tokens.find(Some(b"Bearer two")).is_ok());
    assert!(tokens.find(Some(b"Bearer one")).is_err(), "its token was taken away");
}

impl PartialEq for Token {
    fn eq(&self, other: &Token) -> bool {
        std::ptr::eq(self, other)
    }
}

#[test]
fn a_missing_or_large_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.toml");
    assert!(matches!(Tokens::from_file(&path), Err(FileError::Unreadable { .. })));
    assert!(matches!(Tokens::from_file(folder.path()), Err(FileError::Unreadable { .. })));
    fs::write(&path, vec![b'#'; FILE_BYTES_MAX as usize + 1]).unwrap();
    let error = Tokens::from_file(&path).unwrap_err().to_string();
    assert!(error.contains("it has 1048577 bytes"), "{error}");
}

#[test]
fn secrets_that_others_can_read_are_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.toml");
    fs::write(&path, "").unwrap();
    let warns = |mode: u32, plain: bool| {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        warning(&path, &fs::metadata(&path).unwrap(), plain).is_some()
    };
    assert_eq!(
        [warns(0o600, true), warns(0o640, true), warns(0o604, true), warns(0o644, false)],
        [false, true, true, false]
    );
}

#[test]
fn quotas_are_the_tokens_own_and_outlive_a_new_file() {
    let rules = "requests_per_second = 10\nburst = 2";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.toml");
    put(&path, &(token("a", "one", rules) + &token("b", "two", rules)));
    let tokens = Tokens::from_file(&path).unwrap();
    let of = |secret: &str| tokens.find(Some(format!("Bearer {secret}").as_bytes())).unwrap();
    let (a, b) = (of("one"), of("two"));
    assert_eq!([a.take_request(Booking::default(), S), a.take_request(Booking::default(), S)], [Ok(()), Ok(())]);
    let over = a.take_request(Booking::default(), S).unwrap_err();
    assert_eq!((over.quota, over.wait_ns), (Quota::Requests, S / 10));
    assert_eq!(
        over.to_string(),
        "the quota of token 'a' is used up: 10 requests per second, at most 2 at once; try again in 100 ms"
    );
    assert_eq!(b.take_request(Booking::default(), S), Ok(()), "another token's");
    put(&path, &(token("a", "one", rules) + "# changed\n"));
    let mut seen = Seen::default();
    (0..2).for_each(|_| tokens.reload_if_changed(&path, &mut seen));
    assert!(of("one").take_request(Booking::default(), S).is_err(), "a new file is no new quota");
    let counts = &tokens.counters().tokens;
    let a = counts.iter().find(|counts| counts.name == "a").unwrap();
    assert_eq!((a.passed, a.limited), (2, 2));
    assert!(counts.iter().all(|counts| counts.name != "b"), "what is not in the file is not shown");
}

#[test]
fn bytes_that_came_are_owed() {
    let tokens = Tokens::from_text(&token("a", "one", "bytes_per_second = 1000")).unwrap();
    let a = tokens.find(Some(b"Bearer one")).unwrap();
    assert_eq!(a.take_request(Booking::default(), S), Ok(()));
    a.note_bytes_in(Booking::default(), 1500, S);
    a.note_bytes_out(500, S);
    assert_eq!(a.take_request(Booking::default(), S).unwrap_err().quota, Quota::Bytes);
    assert!(a.take_request(Booking::default(), 2 * S).is_err());
    assert_eq!(a.take_request(Booking::default(), 2 * S + S / 1000), Ok(()));
    let counts = a.counts();
    assert_eq!((counts.bytes_in, counts.bytes_out, counts.limited), (1500, 500, 2));
}

#[test]
fn bytes_that_are_announced_are_booked_and_what_does_not_come_is_returned() {
    let tokens = Tokens::from_text(&token("a", "one", "bytes_per_second = 1000")).unwrap();
    let a = tokens.find(Some(b"Bearer one")).unwrap();
    let booked: Vec<_> = (0..20).map(|_| a.book_bytes(Some(4_000_000), S)).collect();
    assert_eq!(booked.iter().filter(|booked| booked.is_ok()).count(), 1, "one that is too large, if nothing is owed");
    let over = booked.last().unwrap().clone().unwrap_err();
    assert!(over.wait_ns <= 3601 * S, "{over}");
    let first = *booked[0].as_ref().unwrap();
    assert_eq!(a.take_request(first, S), Ok(()), "what is booked for the request itself is no debt");
    assert!(a.take_request(Booking::default(), S).is_err());
    a.end_booking(first, 400, S);
    assert!(a.book_bytes(Some(601), S).is_err());
    let rest = a.book_bytes(Some(600), S).unwrap();
    a.note_bytes_in(rest, 0, S);
    assert!(a.book_bytes(Some(600), S).is_ok(), "nothing came");
    let counts = a.counts();
    assert_eq!((counts.bytes_in, counts.limited), (0, 21));
}

#[test]
fn a_token_reaches_its_models_and_without_a_list_all() {
    let tokens =
        Tokens::from_text(&(token("a", "one", "models = [\"d*\", \"echo\"]") + &token("b", "two", ""))).unwrap();
    let (a, b) = (tokens.find(Some(b"Bearer one")).unwrap(), tokens.find(Some(b"Bearer two")).unwrap());
    assert_eq!(["digits", "echo", "echo2"].map(|model| a.allows_model(model)), [true, true, false]);
    assert!(b.allows_model("anything"));
}

#[test]
fn bookings_that_are_held_are_no_saved_up_quota() {
    let tokens = Tokens::from_text(&token("a", "one", "bytes_per_second = 1000\nbytes_burst = 1000")).unwrap();
    let a = tokens.find(Some(b"Bearer one")).unwrap();
    // One large body is announced each second, as soon as the bucket is full again, and none of them comes.
    let held: Vec<_> = (1..=10).map(|second| a.book_bytes(Some(1000), second * S).unwrap()).collect();
    let now_ns = 11 * S;
    // Each is given up, and another message of this size is tried at once.
    let passed = held.into_iter().filter(|booking| {
        a.end_booking(*booking, 0, now_ns);
        a.book_bytes(Some(1000), now_ns).map(|booking| a.note_bytes_in(booking, 1000, now_ns)).is_ok()
    });
    assert_eq!(passed.count(), 1, "the burst is one message");
}
