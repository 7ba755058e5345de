//! How is a poll timed, and when may it run?

use std::future::{Future, poll_fn};
use std::task::ready;

use crate::fair::{Flow, Task};
use crate::slot::{begin_poll, end_poll, now_ns};
use crate::{FrontEnd, monitor};

/// As [`crate::watched`], for a task of a connection. Its polls wait while its peer uses more than its share and other tasks are ready.
pub fn fair<F: Future>(front_end: FrontEnd, flow: &Flow, future: F) -> impl Future<Output = F::Output> + use<F> {
    let mut future = Box::pin(future);
    let mut task = Task::of(flow);
    poll_fn(move |cx| {
        let now_ns = now_ns();
        ready!(task.poll_permission(cx, now_ns));
        let _timer = PollTimer::begin(front_end, now_ns, Some(task.flow()));
        future.as_mut().poll(cx)
    })
}

/// Times one poll of a watched task, until it is dropped.
pub(crate) struct PollTimer<'a> {
    /// Whether the poll is within another one, which is timed already.
    is_nested: bool,
    /// The flow that its time is charged to.
    flow: Option<&'a Flow>,
}

impl PollTimer<'_> {
    pub(crate) fn begin(front_end: FrontEnd, now_ns: u64, flow: Option<&Flow>) -> PollTimer<'_> {
        let is_nested = !begin_poll(front_end, now_ns);
        if !is_nested {
            monitor::wake();
        }
        PollTimer { is_nested, flow }
    }
}

impl Drop for PollTimer<'_> {
    fn drop(&mut self) {
        if self.is_nested {
            return;
        }
        end_poll(|now_ns, wall_ns| {
            if let Some(flow) = self.flow {
                flow.charge(now_ns, wall_ns);
            }
        });
    }
}
