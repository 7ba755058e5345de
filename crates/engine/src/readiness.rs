//! Is a model version ready, if its instances can say that they are not?
//!
//! One check serves all clients that request a check while it runs, so each instance has one check at a time. If instances have not answered after
//! [`READINESS_MAX`], the version is not ready for the clients that wait. Neither is it for new clients, until all instances have answered.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use nerite_backend::{Readiness, ReadinessDone};
use nerite_locks::Mutex;
use nerite_request::Status;

use crate::limits::READINESS_MAX;
use crate::timer::{Wake, now_us, timer};

/// The readiness checks of one model version.
pub(crate) struct ReadinessChecks {
    model: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of completed checks.
    over: u64,
    /// The check in progress: its deadline in µs, and the number of instances that have not answered.
    pending: Option<(u64, usize)>,
    /// The first reason in that check why the version is not ready.
    fault: Option<Status>,
    /// [`Readiness::processes`] of all instances when that check began.
    processes: u64,
    /// The fault that the last check found, and [`Readiness::processes`] of all instances when it began.
    last: Option<(Status, u64)>,
    is_timed: bool,
    numbers: u64,
    wakers: BTreeMap<u64, Waker>,
}

/// The future result of a readiness check. Dropping it ends the wait.
pub struct ReadinessAnswer {
    checks: Arc<ReadinessChecks>,
    round: u64,
    number: u64,
}

impl ReadinessAnswer {
    /// The model whose version is checked.
    pub fn model(&self) -> &str {
        &self.checks.model
    }
}

impl ReadinessChecks {
    pub(crate) fn new(model: &str) -> Arc<ReadinessChecks> {
        Arc::new(ReadinessChecks { model: model.to_owned(), state: Mutex::default() })
    }

    /// Checks these instances, unless a check is in progress. `processes`: [`Readiness::processes`] of all of them.
    pub(crate) fn check(self: &Arc<Self>, instances: Vec<Arc<dyn Readiness>>, processes: u64) -> ReadinessAnswer {
        let mut state = self.lock();
        state.numbers += 1;
        let answer = ReadinessAnswer { checks: Arc::clone(self), round: state.over, number: state.numbers };
        if state.pending.is_some() {
            return answer;
        }
        let due_us = now_us() + READINESS_MAX.as_micros() as u64;
        (state.pending, state.fault, state.processes) = (Some((due_us, instances.len())), None, processes);
        let is_timed = std::mem::replace(&mut state.is_timed, true);
        drop(state);
        if !is_timed {
            self.set_timer(due_us);
        }
        for instance in instances {
            let checks = Arc::clone(self);
            instance.check(Box::new(move |answer| checks.note_answer(answer.err())));
        }
        answer
    }

    /// The fault that the last check found, unless a process was started after it, which was not checked. `processes` is as for a check.
    pub(crate) fn last(&self, processes: u64) -> Option<Status> {
        self.lock().last.as_ref().filter(|(_, then)| *then == processes).map(|(fault, _)| fault.clone())
    }

    fn note_answer(&self, fault: Option<Status>) {
        let mut state = self.lock();
        state.fault = state.fault.take().or(fault);
        let Some((_, left)) = &mut state.pending else { return };
        *left -= 1;
        if *left > 0 {
            return;
        }
        (state.pending, state.over) = (None, state.over + 1);
        let fault = state.fault.take();
        if state.last.as_ref().map(|(last, _)| last) != fault.as_ref() {
            match &fault {
                Some(fault) => log::warn!("model '{}' is not ready: {}", self.model, fault.message),
                None => log::info!("model '{}' is ready again", self.model),
            }
        }
        state.last = fault.map(|fault| (fault, state.processes));
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_values().for_each(Waker::wake);
    }

    fn set_timer(self: &Arc<Self>, due_us: u64) {
        let whom = Arc::downgrade(self);
        if let Err(error) = timer().wake_at(due_us, whom) {
            self.lock().is_timed = false;
            log::error!("no thread for the clock of model '{}': {error}; raise the limit on threads", self.model);
        }
    }

    fn too_late(&self) -> Status {
        let text = format!(
            "Timed out waiting for user-defined is_ready() response (model '{}' had {} s)",
            self.model,
            READINESS_MAX.as_secs()
        );
        Status::unavailable(text)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for ReadinessChecks {
    /// The timer has one entry, which may belong to an earlier check.
    fn wake(self: Arc<Self>) {
        let mut state = self.lock();
        match state.pending {
            Some((due_us, _)) if due_us > now_us() => {
                drop(state);
                self.set_timer(due_us);
            }
            Some(_) => {
                state.is_timed = false;
                let fault = self.too_late();
                if state.last.as_ref().map(|(last, _)| last) != Some(&fault) {
                    log::warn!("model '{}' is not ready: {}", self.model, fault.message);
                }
                state.last = Some((fault, state.processes));
                let wakers = std::mem::take(&mut state.wakers);
                drop(state);
                wakers.into_values().for_each(Waker::wake);
            }
            None => state.is_timed = false,
        }
    }
}

impl Future for ReadinessAnswer {
    type Output = Result<(), Status>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.checks.lock();
        match state.pending {
            Some((due_us, _)) if state.over == self.round => {
                if due_us <= now_us() {
                    return Poll::Ready(Err(self.checks.too_late()));
                }
                state.wakers.insert(self.number, cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(state.last.as_ref().map_or(Ok(()), |(fault, _)| Err(fault.clone()))),
        }
    }
}

impl ReadinessAnswer {
    /// Calls `done` with the answer: before this returns, or later on the thread that gets the answer.
    pub(crate) fn then(self, done: ReadinessDone) {
        Arc::new(Callback(Mutex::new(Some((self, done))))).poll();
    }
}

/// An answer that a callback waits for.
struct Callback(Mutex<Option<(ReadinessAnswer, ReadinessDone)>>);

impl Callback {
    fn poll(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((answer, _)) = &mut *waiting else { return };
        let Poll::Ready(answer) = Pin::new(answer).poll(&mut Context::from_waker(&waker)) else { return };
        let done = waiting.take();
        drop(waiting);
        if let Some((_, done)) = done {
            done(answer);
        }
    }
}

impl std::task::Wake for Callback {
    fn wake(self: Arc<Self>) {
        self.poll();
    }
}

impl Drop for ReadinessAnswer {
    fn drop(&mut self) {
        self.checks.lock().wakers.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An instance that answers when the test says so.
    #[derive(Default)]
    struct Slow {
        waiting: Mutex<Vec<ReadinessDone>>,
    }

    impl Slow {
        fn waiting(&self) -> MutexGuard<'_, Vec<ReadinessDone>> {
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn answer(&self, answer: Result<(), Status>) {
            let done = self.waiting().pop().expect("it was asked");
            done(answer);
        }
    }

    impl Readiness for Slow {
        fn check(self: Arc<Self>, done: ReadinessDone) {
            self.waiting().push(done);
        }

        fn fault(&self) -> Option<Status> {
            None
        }
    }

    fn poll(answer: &mut ReadinessAnswer) -> Option<Result<(), Status>> {
        match Pin::new(answer).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        }
    }

    #[test]
    fn concurrent_checks_ask_each_instance_once() {
        let (checks, slow) = (ReadinessChecks::new("m"), [Arc::new(Slow::default()), Arc::new(Slow::default())]);
        let check = || checks.check(slow.iter().map(|one| Arc::clone(one) as _).collect(), 2);
        let mut answers: Vec<ReadinessAnswer> = (0..1000).map(|_| check()).collect();
        assert!(answers.iter_mut().all(|answer| poll(answer).is_none()));
        assert_eq!(slow.each_ref().map(|one| one.waiting().len()), [1, 1]);
        assert_eq!(checks.lock().wakers.len(), 1000);
        answers.truncate(10);
        assert_eq!(checks.lock().wakers.len(), 10, "who has gone is not remembered");
        slow[0].answer(Ok(()));
        assert!(answers.iter_mut().all(|answer| poll(answer).is_none()), "the other has not answered");
        let no = Status::unavailable("no");
        slow[1].answer(Err(no.clone()));
        assert!(answers.iter_mut().all(|answer| poll(answer) == Some(Err(no.clone()))));
        assert_eq!((checks.last(3), checks.last(2)), (None, Some(no)), "a new process was not asked");
        let mut next = check();
        for one in &slow {
            one.answer(Ok(()));
        }
        assert_eq!((poll(&mut next), checks.last(2)), (Some(Ok(())), None));
    }

    #[test]
    fn a_callback_gets_the_answer_once() {
        let (checks, slow) = (ReadinessChecks::new("m"), Arc::new(Slow::default()));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let check = || {
            let heard = Arc::clone(&heard);
            let done = move |answer| heard.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
            checks.check(vec![Arc::clone(&slow) as _], 1).then(Box::new(done));
        };
        let taken = || std::mem::take(&mut *heard.lock().unwrap_or_else(PoisonError::into_inner));
        (0..3).for_each(|_| check());
        assert!(taken().is_empty());
        let no = Status::unavailable("no");
        slow.answer(Err(no.clone()));
        assert_eq!(taken(), vec![Err(no); 3]);
        assert!(checks.lock().wakers.is_empty());
        check();
        slow.answer(Ok(()));
        assert_eq!(taken(), [Ok(())]);
        check();
        checks.lock().pending = Some((now_us(), 1));
        Arc::clone(&checks).wake();
        assert_eq!(taken(), [Err(checks.too_late())]);
        // The late answer is for no client, because none waits any more.
        slow.answer(Ok(()));
        assert!(taken().is_empty());
    }

    #[test]
    fn an_instance_that_does_not_answer_is_not_ready_and_not_asked_again() {
        let (checks, slow) = (ReadinessChecks::new("m"), Arc::new(Slow::default()));
        let check = || checks.check(vec![Arc::clone(&slow) as _], 1);
        let mut first = check();
        assert_eq!(poll(&mut first), None);
        checks.lock().pending = Some((now_us(), 1));
        Arc::clone(&checks).wake();
        let too_late = Some(Err(checks.too_late()));
        assert_eq!((poll(&mut first), poll(&mut check())), (too_late.clone(), too_late));
        assert_eq!(slow.waiting().len(), 1);
        slow.answer(Ok(()));
        let mut next = check();
        assert_eq!(poll(&mut next), None);
        slow.answer(Ok(()));
        assert_eq!(poll(&mut next), Some(Ok(())));
    }
}
