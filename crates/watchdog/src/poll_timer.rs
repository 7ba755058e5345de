//! How is a poll timed, when may it run, and who is charged for its time?

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::ready;

use crate::fair::{Flow, Task};
use crate::slot::{begin_poll, end_poll, now_ns};
use crate::{FrontEnd, monitor};

thread_local! {
    /// The flow of the poll that runs on this thread.
    static CURRENT: RefCell<Option<Flow>> = const { RefCell::new(None) };
    /// Time of that poll that other flows were charged for.
    static CHARGED_NS: Cell<u64> = const { Cell::new(0) };
    /// Whether a poll runs on this thread.
    static IS_POLLING: Cell<bool> = const { Cell::new(false) };
}

/// As [`crate::watched`], for a task of a connection. Its polls wait while its peer uses more than its share and other tasks are ready.
pub fn fair<F: Future>(front_end: FrontEnd, flow: &Flow, future: F) -> impl Future<Output = F::Output> + use<F> {
    fair_unpin(front_end, flow, Box::pin(future))
}

/// As [`fair`], for a future that may be moved and so needs no box.
pub fn fair_unpin<F>(front_end: FrontEnd, flow: &Flow, mut future: F) -> impl Future<Output = F::Output> + use<F>
where
    F: Future + Unpin,
{
    let (mut task, mut shown) = (Task::of(flow), Some(flow.clone()));
    poll_fn(move |cx| {
        let now_ns = now_ns();
        ready!(task.poll_permission(cx, now_ns));
        let _timer = PollTimer::begin(front_end, now_ns, Some(&mut shown));
        Pin::new(&mut future).poll(cx)
    })
}

/// The flow that the current poll of this thread is charged to. `None` outside of a poll, and for the server's own tasks.
pub fn current_flow() -> Option<Flow> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// Whether a poll of a watched task runs on this thread. Other connections of the thread wait meanwhile.
pub fn is_polling() -> bool {
    IS_POLLING.try_with(Cell::get).unwrap_or(false)
}

/// Does `work`. Its time is charged to this flow, and not to that of the current poll.
pub fn charging<T>(flow: Option<&Flow>, work: impl FnOnce() -> T) -> T {
    let Some(flow) = flow else { return work() };
    let (begun_ns, before_ns) = (now_ns(), CHARGED_NS.get());
    let done = work();
    let ended_ns = now_ns();
    let spent_ns = ended_ns.saturating_sub(begun_ns);
    // Time that was charged to others during the work is not charged twice.
    let within_ns = CHARGED_NS.get().saturating_sub(before_ns);
    flow.charge(ended_ns, spent_ns.saturating_sub(within_ns));
    CHARGED_NS.set(before_ns + spent_ns);
    done
}

/// Times one poll of a watched task, until it is dropped.
pub(crate) struct PollTimer<'a> {
    /// Whether the poll is within another one, which is timed already.
    is_nested: bool,
    /// The caller's place of the flow that is charged. During the poll the flow is in `CURRENT`.
    flow: Option<&'a mut Option<Flow>>,
}

impl PollTimer<'_> {
    pub(crate) fn begin(front_end: FrontEnd, now_ns: u64, flow: Option<&mut Option<Flow>>) -> PollTimer<'_> {
        let is_nested = !begin_poll(front_end, now_ns);
        let mut flow = flow;
        if !is_nested {
            monitor::wake();
            let own = flow.as_mut().and_then(|flow| flow.take());
            // A thread that is ending has no thread-local state any more.
            let _ = CURRENT.try_with(|current| current.replace(own));
            let _ = CHARGED_NS.try_with(|charged| charged.set(0));
            let _ = IS_POLLING.try_with(|polling| polling.set(true));
        }
        PollTimer { is_nested, flow }
    }
}

impl Drop for PollTimer<'_> {
    fn drop(&mut self) {
        if self.is_nested {
            return;
        }
        let own = CURRENT.try_with(RefCell::take).ok().flatten();
        let _ = IS_POLLING.try_with(|polling| polling.set(false));
        let charged_ns = CHARGED_NS.try_with(Cell::take).unwrap_or(0);
        end_poll(|now_ns, wall_ns| {
            if let Some(flow) = &own {
                flow.charge(now_ns, wall_ns.saturating_sub(charged_ns));
            }
        });
        if let Some(flow) = &mut self.flow {
            **flow = own;
        }
    }
}
