//! How do a model's responses become events, one by one?

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use nerite_api::aside;
use nerite_budget::{Account, Charge, paid};
use nerite_request::{Cancel, InferResponse, Recycled, Response, Status};
use nerite_wire::json::{write_error, write_flat};
use tokio::sync::mpsc;

use crate::error_text::cut;
use crate::limits::INLINE_WORK_BYTES_MAX;

/// The content of a response.
pub type Content = Result<Recycled<InferResponse>, Status>;

/// The responses of one request as they arrive. Dropping this before the last response cancels the request.
#[derive(Debug)]
pub struct Events {
    /// That of the connection.
    account: Account,
    from: mpsc::UnboundedReceiver<(Response, Charge)>,
    cancel: Cancel,
    ended: bool,
    /// A response that is being written as text.
    writing: Option<Writing>,
}

struct Writing(Pin<Box<dyn Future<Output = Bytes> + Send>>);

impl std::fmt::Debug for Writing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Writing")
    }
}

impl Events {
    /// The responses of the request that `cancel` cancels. They arrive through `from`, each with the charge for its tensors.
    pub fn new(account: &Account, from: mpsc::UnboundedReceiver<(Response, Charge)>, cancel: Cancel) -> Events {
        Events { account: account.clone(), from, cancel, ended: false, writing: None }
    }

    /// The next response; `None` after the last.
    pub async fn next(&mut self) -> Option<(Response, Charge)> {
        poll_fn(|cx| self.poll_response(cx)).await
    }

    /// The next response with content: tensors, or an error.
    pub async fn next_content(&mut self) -> Option<(Content, Charge)> {
        poll_fn(|cx| self.poll_content(cx)).await
    }

    /// The next event's bytes; `None` after the last.
    pub fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.writing.is_none() {
            let Some((content, charge)) = ready!(self.poll_content(cx)) else { return Poll::Ready(None) };
            let account = self.account.clone();
            let framed = async move {
                let text = flat(&account, content, charge).await;
                text.map_or_else(|status| failed(&status), |(text, charge)| frame(text, charge))
            };
            self.writing = Some(Writing(Box::pin(framed)));
        }
        let Some(Writing(writing)) = &mut self.writing else { return Poll::Ready(None) };
        let event = ready!(writing.as_mut().poll(cx));
        self.writing = None;
        Poll::Ready(Some(event))
    }

    fn poll_response(&mut self, cx: &mut Context<'_>) -> Poll<Option<(Response, Charge)>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let next = ready!(self.from.poll_recv(cx));
        self.ended = next.as_ref().is_none_or(|(response, _)| response.is_last());
        Poll::Ready(next)
    }

    fn poll_content(&mut self, cx: &mut Context<'_>) -> Poll<Option<(Content, Charge)>> {
        while let Some((response, charge)) = ready!(self.poll_response(cx)) {
            if let Some(content) = response.into_content() {
                return Poll::Ready(Some((content, charge)));
            }
        }
        Poll::Ready(None)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if !self.ended {
            self.cancel.cancel();
        }
    }
}

/// Writes a response as JSON. `charge` is changed to the length of the JSON. A long response is written on another thread than a front thread.
pub async fn flat(account: &Account, content: Content, mut charge: Charge) -> Result<(Vec<u8>, Charge), Status> {
    let response = content?;
    let text = if response.head_bytes() + response.tensor_bytes() <= INLINE_WORK_BYTES_MAX {
        write_flat(&response)?
    } else {
        aside(account, move || write_flat(&response)).await??
    };
    charge.resize(text.len());
    Ok((text, charge))
}

/// An event with an error in place of a response.
pub fn failed(status: &Status) -> Bytes {
    frame(write_error(&cut(&status.message)), Charge::default())
}

/// One server-sent event. `charge` is held until the socket has taken its bytes.
pub fn frame(mut text: Vec<u8>, charge: Charge) -> Bytes {
    const BEFORE: &[u8] = b"data: ";
    const AFTER: &[u8] = b"\n\n";
    // The text is changed in place, because it may be long.
    text.reserve_exact(BEFORE.len() + AFTER.len());
    text.splice(..0, BEFORE.iter().copied());
    text.extend_from_slice(AFTER);
    paid(text.into(), charge)
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "only the test feeds it")]
    fn check(responses: Vec<Response>, texts: &[&str], cancelled: bool) {
        let (to, from) = mpsc::unbounded_channel();
        for response in responses {
            to.send((response, Charge::default())).expect("the other end is here");
        }
        let cancel = Cancel::new();
        let mut events = Events::new(&Account::unlimited(), from, cancel.clone());
        let mut cx = Context::from_waker(Waker::noop());
        let mut found = Vec::new();
        while let Poll::Ready(Some(event)) = events.poll_event(&mut cx) {
            found.push(String::from_utf8_lossy(&event).into_owned());
        }
        drop(events);
        assert_eq!(found, texts);
        assert_eq!(cancel.is_cancelled(), cancelled);
    }

    #[test]
    fn each_response_is_an_event_up_to_the_last_and_an_unfinished_request_is_cancelled() {
        let made = |model: &str| {
            Response::Part(
                InferResponse { model: model.into(), version: "1".into(), ..InferResponse::default() }.into(),
            )
        };
        let text = |model: &str| format!("data: {{\"model_name\":\"{model}\",\"model_version\":\"1\"}}\n\n");
        let last = || Response::End;
        check(vec![made("a"), made("b"), last()], &[&text("a"), &text("b")], false);
        check(vec![made("a")], &[&text("a")], true);
        let failed = Response::failed(Status::internal("no"));
        check(vec![made("a"), failed, made("late")], &[&text("a"), "data: {\"error\":\"no\"}\n\n"], false);
        check(vec![last()], &[], false);
    }
}
