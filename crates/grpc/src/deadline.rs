//! How long does a client wait for an answer?

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::HeaderMap;
use tokio::time::{Sleep, sleep};

use crate::failure::Failure;

/// The time at which the client stops waiting for an answer, if it has a limit.
pub(crate) struct Deadline(Option<Pin<Box<Sleep>>>);

impl Deadline {
    /// Reads the deadline from the call's metadata.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Deadline {
        let timeout = headers.get("grpc-timeout").and_then(|value| parse(value.as_bytes()));
        Deadline(timeout.map(|timeout| Box::pin(sleep(timeout))))
    }

    /// Ready once the deadline has passed.
    pub(crate) fn poll_passed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Some(sleep) => sleep.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }

    /// The result of `work`, or an error if the deadline passes first. The caller pins the work, so that this future does not contain it.
    pub(crate) async fn bound<T, W>(mut self, mut work: Pin<&mut W>) -> Result<T, Failure>
    where
        W: Future<Output = Result<T, Failure>>,
    {
        poll_fn(move |cx| match work.as_mut().poll(cx) {
            Poll::Ready(outcome) => Poll::Ready(outcome),
            Poll::Pending => self.poll_passed(cx).map(|()| Err(Failure::DEADLINE)),
        })
        .await
    }
}

/// Parses up to eight digits and a unit.
fn parse(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count = digits.iter().fold(0u64, |n, digit| n * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_hours(count),
        b'M' => Duration::from_mins(count),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<Duration>) {
        assert_eq!(parse(text.as_bytes()), expect, "{text}");
    }

    #[test]
    fn a_timeout_is_digits_and_a_unit() {
        check("1H", Some(Duration::from_hours(1)));
        check("2M", Some(Duration::from_mins(2)));
        check("0S", Some(Duration::ZERO));
        check("99999999m", Some(Duration::from_millis(99_999_999)));
        check("7u", Some(Duration::from_micros(7)));
        check("7n", Some(Duration::from_nanos(7)));
        for text in ["", "m", "5", "-1m", "123456789m", "5x", "5 m"] {
            check(text, None);
        }
    }
}
