//! What goes on around a poll?

use std::future::{Future, poll_fn};
use std::task::ready;

use crate::fair::{Flow, Task};
use crate::slot::{begin_poll, end_poll, now_ns};
use crate::{FrontEnd, patrol};

/// As [`crate::watched`], for a task of a connection: its polls wait while its peer uses more than its share and others are ready.
pub fn fair<F: Future>(front_end: FrontEnd, flow: &Flow, future: F) -> impl Future<Output = F::Output> + use<F> {
    let mut future = Box::pin(future);
    let mut task = Task::of(flow);
    poll_fn(move |cx| {
        let now_ns = now_ns();
        ready!(task.poll_turn(cx, now_ns));
        let _turn = Turn::begin(front_end, now_ns, Some(task.flow()));
        future.as_mut().poll(cx)
    })
}

/// One poll of a watched task, until it is dropped.
pub(crate) struct Turn<'a> {
    /// Whether it is a poll within another, which is timed already.
    inner: bool,
    /// Whom its time is charged to.
    flow: Option<&'a Flow>,
}

impl Turn<'_> {
    pub(crate) fn begin(front_end: FrontEnd, now_ns: u64, flow: Option<&Flow>) -> Turn<'_> {
        let inner = !begin_poll(front_end, now_ns);
        if !inner {
            patrol::wake();
        }
        Turn { inner, flow }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.inner {
            return;
        }
        end_poll(|now_ns, wall_ns| {
            if let Some(flow) = self.flow {
                flow.charge(now_ns, wall_ns);
            }
        });
    }
}
