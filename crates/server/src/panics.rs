//! What does the log say of a panic?

use std::any::Any;
use std::panic::{self, PanicHookInfo};
use std::thread;

/// After this call a panic is one line of the log, whatever catches it. With `RUST_BACKTRACE` set, Rust's own report is printed as well.
pub fn install() {
    let everything = std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0");
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |panicked: &PanicHookInfo<'_>| {
        let place = panicked.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
        log::error!("{}", sentence(thread::current().name(), message(panicked.payload()), &place));
        if everything {
            default(panicked);
        }
    }));
}

/// What `panic!` was given; other payloads have no text.
fn message(payload: &dyn Any) -> &str {
    let literal = payload.downcast_ref::<&str>().copied();
    literal.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

fn sentence(thread: Option<&str>, message: &str, place: &str) -> String {
    format!("thread '{}' panicked at {place}: {message}", thread.unwrap_or("<unnamed>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(panicking: impl FnOnce() + panic::UnwindSafe, expect: &str) {
        let payload = panic::catch_unwind(panicking).expect_err("it panics");
        assert_eq!(message(&*payload), expect);
    }

    #[test]
    fn a_panic_is_logged_with_its_thread_its_place_and_its_message() {
        check(|| panic!("a literal"), "a literal");
        check(|| panic!("{} of {}", 1, 2), "1 of 2");
        check(|| panic::panic_any(7), "without a message");
        assert_eq!(sentence(Some("add_1"), "too much", "a.rs:7:9"), "thread 'add_1' panicked at a.rs:7:9: too much");
        assert_eq!(sentence(None, "x", "b.rs:1:1"), "thread '<unnamed>' panicked at b.rs:1:1: x");
    }
}
