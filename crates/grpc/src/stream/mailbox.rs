//! How do responses get from the threads that make them to the stream that sends them?

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use nerite_budget::{Account, Charge};
use nerite_locks::Mutex;
use nerite_request::Response;
use tokio::runtime;

use super::order::Order;

/// Responses that were made, and the waker of the stream.
pub(super) struct Mailbox {
    state: Mutex<State>,
    not_full: Condvar,
    pool_max: usize,
    account: Account,
    /// Bytes charged for responses that were made and not sent.
    charged: AtomicUsize,
}

#[derive(Default)]
struct State {
    queue: VecDeque<QueuedResponse>,
    /// Number of queued responses of each request. Counted only if the pool is bounded.
    pooled: HashMap<u64, usize>,
    waker: Option<Waker>,
    closed: bool,
}

struct QueuedResponse {
    number: u64,
    /// `None` for an end without tensors that is not sent.
    response: Option<Response>,
    last: bool,
}

/// If the bound is larger, responses are not counted, and no thread is blocked.
const POOL_COUNTED_MAX: usize = 1 << 20;

impl Mailbox {
    /// A mailbox that holds up to `pool_max` responses of each request.
    pub(super) fn new(pool_max: usize, account: &Account) -> Arc<Mailbox> {
        let (account, charged) = (account.clone(), AtomicUsize::new(0));
        Arc::new(Mailbox { state: Mutex::default(), not_full: Condvar::new(), pool_max, account, charged })
    }

    /// The sink for the responses of a request. `empty_final` says that an end without tensors is sent too. The request is charged until its last response.
    pub(super) fn sink(
        self: &Arc<Self>,
        number: u64,
        empty_final: bool,
        mut charge: Charge,
    ) -> impl FnMut(Response) + Send + 'static {
        let mailbox = Arc::clone(self);
        move |response| {
            let last = response.is_last();
            if last {
                charge.resize(0);
            }
            let silent = matches!(response, Response::End) && !empty_final;
            mailbox.post(QueuedResponse { number, response: (!silent).then_some(response), last });
        }
    }

    fn post(&self, queued: QueuedResponse) {
        let mut state = self.lock();
        if self.is_counted() {
            state = self.wait_until_not_full(state, queued.number);
            *state.pooled.entry(queued.number).or_default() += 1;
        }
        if state.closed {
            return;
        }
        if let Some(response) = &queued.response {
            let bytes = response.inline_bytes();
            self.charged.fetch_add(bytes, Ordering::Relaxed);
            self.account.add(bytes);
        }
        state.queue.push_back(queued);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Blocks the model's thread while too many responses of the request wait. Threads of the runtime are never blocked, because one of them has to send.
    fn wait_until_not_full<'a>(&self, mut state: MutexGuard<'a, State>, number: u64) -> MutexGuard<'a, State> {
        let full = |state: &State| !state.closed && state.pooled.get(&number).is_some_and(|n| *n >= self.pool_max);
        if full(&state) && runtime::Handle::try_current().is_err() {
            while full(&state) {
                state = self.not_full.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        state
    }

    /// Moves queued responses to `order`. Returns whether there were any.
    pub(super) fn collect(&self, order: &mut Order) -> bool {
        let queue = {
            let mut state = self.lock();
            if state.queue.is_empty() {
                return false;
            }
            state.waker = None;
            state.pooled.clear();
            mem::take(&mut state.queue)
        };
        if self.is_counted() {
            self.not_full.notify_all();
        }
        for QueuedResponse { number, response, last } in queue {
            order.arrived(number, response, last);
        }
        true
    }

    /// Call this when a response is sent, or is about to be.
    pub(super) fn sent(&self, response: &Response) {
        self.release(response.inline_bytes());
    }

    fn release(&self, bytes: usize) {
        let less = |charged: usize| Some(charged.saturating_sub(bytes));
        let before = self.charged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or_default();
        self.account.release(bytes.min(before));
    }

    /// Registers `cx` to be woken by the next response. Returns false if one is queued already. A stream calls this last before it sleeps, so a
    /// request that is answered at once wakes no task.
    pub(super) fn register(&self, cx: &mut Context<'_>) -> bool {
        let mut state = self.lock();
        if !state.queue.is_empty() {
            return false;
        }
        match &state.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            _ => state.waker = Some(cx.waker().clone()),
        }
        true
    }

    /// Closes the mailbox: it takes no more responses, and blocks no thread.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let queue = mem::take(&mut state.queue);
        drop(state);
        self.not_full.notify_all();
        drop(queue);
        self.release(usize::MAX);
    }

    fn is_counted(&self) -> bool {
        self.pool_max <= POOL_COUNTED_MAX
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Wake;
    use std::thread;

    use nerite_request::Recycled;

    use super::super::order::Item;
    use super::*;

    fn part() -> Response {
        Response::Part(Recycled::new())
    }

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn order() -> Order {
        let mut order = Order::new();
        order.admit(Arc::new(Item::default()));
        order
    }

    #[test]
    fn a_sleeping_stream_is_woken_once() {
        let (mailbox, mut order, counter) =
            (Mailbox::new(usize::MAX, &Account::unlimited()), order(), Arc::new(Counter::default()));
        let waker = Waker::from(Arc::clone(&counter));
        let mut cx = Context::from_waker(&waker);
        assert!(!mailbox.collect(&mut order) && mailbox.register(&mut cx));
        let mut sink = mailbox.sink(0, false, Charge::default());
        sink(part());
        sink(Response::Final(Recycled::new()));
        assert_eq!(counter.0.load(Ordering::Relaxed), 1);
        assert!(!mailbox.register(&mut cx) && mailbox.collect(&mut order));
        assert_eq!(std::iter::from_fn(|| order.next()).count(), 2);
    }

    #[track_caller]
    fn check_empty(empty_final: bool, sent: usize) {
        let (mailbox, mut order) = (Mailbox::new(usize::MAX, &Account::unlimited()), order());
        mailbox.sink(0, empty_final, Charge::default())(Response::End);
        assert!(mailbox.collect(&mut order));
        assert_eq!(std::iter::from_fn(|| order.next()).count(), sent);
        assert!(order.is_idle());
    }

    #[test]
    fn an_end_without_tensors_is_sent_if_requested() {
        check_empty(false, 0);
        check_empty(true, 1);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test may panic")]
    fn a_full_pool_blocks_the_model_until_the_stream_collects_or_ends() {
        let (mailbox, mut order) = (Mailbox::new(2, &Account::unlimited()), order());
        let model = thread::spawn({
            let mut sink = mailbox.sink(0, false, Charge::default());
            move || (0..5).for_each(|_| sink(part()))
        });
        let mut taken = 0;
        while taken < 4 {
            if mailbox.collect(&mut order) {
                let step = std::iter::from_fn(|| order.next()).count();
                assert!(step <= 2, "{step} responses in a pool of 2");
                taken += step;
            }
            thread::yield_now();
        }
        mailbox.close();
        assert!(model.join().is_ok());
    }
}
