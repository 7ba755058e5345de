//! How is a poll timed, when may it run, and who is charged for its time?

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::task::{Context, Poll, ready};

use crate::fair::{Flow, Task};
use crate::slot::{begin_poll, busy_for, end_poll, now_ns, waited_of};
use crate::stall::STALL_NS;
use crate::thread_time::{thread_cpu_ns, thread_ready_ns};
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
    let (mut polls, mut future) = (FairPolls::new(front_end, flow), Box::pin(future));
    poll_fn(move |cx| polls.poll(cx, |cx| future.as_mut().poll(cx)))
}

/// The polls of a task of a connection, as those of [`fair`]. For a task that needs no box for its future.
pub struct FairPolls {
    front_end: FrontEnd,
    task: Task,
    flow: Option<Flow>,
}

impl FairPolls {
    /// The polls of a new task.
    pub fn new(front_end: FrontEnd, flow: &Flow) -> FairPolls {
        FairPolls { front_end, task: Task::of(flow), flow: Some(flow.clone()) }
    }

    /// Does `poll` if the task may run now. Otherwise the task is woken when it may.
    pub fn poll<T>(&mut self, cx: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let now_ns = now_ns();
        ready!(self.task.poll_permission(cx, now_ns));
        let _timer = PollTimer::begin(self.front_end, now_ns, Some(&mut self.flow));
        poll(cx)
    }
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
    charge(flow, now_ns(), begun_ns, before_ns);
    done
}

/// Charges this flow for work that began at `begun_ns`, when others were charged for `before_ns` of the poll.
fn charge(flow: &Flow, ended_ns: u64, begun_ns: u64, before_ns: u64) {
    let spent_ns = ended_ns.saturating_sub(begun_ns);
    // Time that was charged to others during the work is not charged twice.
    let own_ns = spent_ns.saturating_sub(CHARGED_NS.get().saturating_sub(before_ns));
    flow.charge(ended_ns, own_ns);
    CHARGED_NS.set(before_ns + spent_ns);
    if own_ns >= STALL_NS && is_polling() {
        flow.note_wait(ended_ns, waited_of(own_ns));
    }
}

/// When work began, for [`Started::ended_late`].
#[derive(Clone, Copy, Debug)]
pub struct Started {
    begun_ns: u64,
    /// Time of the poll that other flows were charged for before.
    before_ns: u64,
}

impl Started {
    /// Work that began on this thread at `begun_ns`, a time of [`now_ns`].
    pub fn at(begun_ns: u64) -> Started {
        Started { begun_ns, before_ns: CHARGED_NS.try_with(Cell::get).unwrap_or(0) }
    }

    /// Work that began with this thread's poll. `None` if the poll took less than [`STALL_NS`] so far, or if no poll runs here.
    pub fn with_late_poll() -> Option<Started> {
        let spent_ns = u64::try_from(busy_for().as_nanos()).unwrap_or(u64::MAX);
        (spent_ns >= STALL_NS).then(|| Started { begun_ns: now_ns().saturating_sub(spent_ns), before_ns: 0 })
    }

    /// Notes that the work has ended and took long. This flow is charged for it, or the current poll's as always if it is `None`. If the thread waited
    /// long, the peer is marked now, and not only when the poll ends: the poll may do the same again and again. Does nothing outside of a poll.
    #[cold]
    pub fn ended_late(self, flow: Option<&Flow>) {
        if !is_polling() {
            return;
        }
        let Started { begun_ns, before_ns } = self;
        let ended_ns = now_ns();
        if let Some(flow) = flow {
            return charge(flow, ended_ns, begun_ns, before_ns);
        }
        let own_ns = ended_ns.saturating_sub(begun_ns).saturating_sub(CHARGED_NS.get().saturating_sub(before_ns));
        if let Some(flow) = current_flow() {
            flow.note_wait(ended_ns, waited_of(own_ns));
        }
    }
}

/// Does `work` for this flow's request on a thread that serves no connection. If the thread waits long, the flow's peer is marked, or stays marked.
pub fn noting_waits<T>(flow: &Flow, work: impl FnOnce() -> T) -> T {
    let used_ns = || thread_cpu_ns() + thread_ready_ns();
    let (begun_ns, used_before_ns) = (now_ns(), used_ns());
    let done = work();
    let (ended_ns, used_ns) = (now_ns(), used_ns().saturating_sub(used_before_ns));
    flow.note_wait(ended_ns, ended_ns.saturating_sub(begun_ns).saturating_sub(used_ns));
    done
}

/// Times one poll of a watched task, until it is dropped.
pub(crate) struct PollTimer<'a> {
    /// Whether the poll is within another one, which is timed already.
    is_nested: bool,
    /// Whether the poll is of a background task.
    is_background: bool,
    /// The caller's place of the flow that is charged. During the poll the flow is in `CURRENT`.
    flow: Option<&'a mut Option<Flow>>,
}

impl PollTimer<'_> {
    pub(crate) fn begin(front_end: FrontEnd, now_ns: u64, flow: Option<&mut Option<Flow>>) -> PollTimer<'_> {
        PollTimer::begin_any(front_end, now_ns, flow, false)
    }

    /// Begins a poll of one of the server's background tasks, which does not wake the watchdog's thread.
    pub(crate) fn begin_background(now_ns: u64) -> PollTimer<'static> {
        PollTimer::begin_any(FrontEnd::Server, now_ns, None, true)
    }

    fn begin_any(
        front_end: FrontEnd,
        now_ns: u64,
        flow: Option<&mut Option<Flow>>,
        is_background: bool,
    ) -> PollTimer<'_> {
        let is_nested = !begin_poll(front_end, now_ns);
        let mut flow = flow;
        if !is_nested {
            if !is_background {
                monitor::wake();
            }
            let own = flow.as_mut().and_then(|flow| flow.take());
            // A thread that is ending has no thread-local state any more.
            let _ = CURRENT.try_with(|current| current.replace(own));
            let _ = CHARGED_NS.try_with(|charged| charged.set(0));
            let _ = IS_POLLING.try_with(|polling| polling.set(true));
        }
        PollTimer { is_nested, is_background, flow }
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
        end_poll(self.is_background, |now_ns, wall_ns, used_ns| {
            if let Some(flow) = &own {
                let own_ns = wall_ns.saturating_sub(charged_ns);
                flow.charge(now_ns, own_ns);
                flow.note_wait(now_ns, own_ns.saturating_sub(used_ns));
            }
        });
        if let Some(flow) = &mut self.flow {
            **flow = own;
        }
    }
}
