//! Which load begins next, and when does it wait for another?
//!
//! The operator limits the loads that run at a time: each takes a place. Only one load or unload of a model runs at a time. A load waits for its
//! place and its model together. If it took its model first and then waited for a place, it would keep other calls from that model. Clients take
//! turns, so a client with many loads delays only its own. Loads may take long, so while a client has several places, others get extra ones.
//!
//! A model may load other models while it is being loaded, and wait for them. It lends them its place, to one at a time. A load that would wait for
//! itself, directly or through others, is refused.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{MutexGuard, PoisonError};
use std::thread::{self, Thread};

use nerite_locks::Mutex;
use nerite_request::{Peer, Status};

/// The loads and unloads that run, and those that wait.
pub struct LoadQueue {
    state: Mutex<State>,
}

/// A load or an unload that may run. Drop lets the next one run.
pub struct Turn<'q> {
    queue: &'q LoadQueue,
    call: Call,
    place: Place,
}

/// A load or an unload.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Call {
    owner: Owner,
    model: String,
    /// The model whose load waits for this one.
    waiter: Option<String>,
}

/// A call that may not run yet.
#[derive(Debug)]
struct Waiting {
    call: Call,
    /// The thread that is notified when the call may run. No other thread is: a client may have hundreds of them here.
    thread: Thread,
}

/// Which place a call has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It needs none.
    None,
    Own,
    /// The place of its waiter.
    OfWaiter,
}

/// What takes turns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Owner {
    /// A client, with its loads.
    Client(Peer),
    /// The server, with its own loads.
    Server,
    /// Models that are being loaded, with the loads for which they wait.
    Models,
    /// All unloads, which are short and need no place.
    Unloads,
}

#[derive(Debug, Default)]
struct State {
    places: usize,
    /// Places that are taken.
    taken: usize,
    /// Models that are being loaded or unloaded.
    busy: HashSet<String>,
    /// The calls that wait, by number, in the order in which they arrived.
    waiting: BTreeMap<u64, Waiting>,
    /// The numbers of calls that may run and whose threads have not noticed it yet, and the places of these calls.
    granted: HashMap<u64, Place>,
    /// For each call with a waiter: the waiter, and the model that it waits for.
    waits: Vec<(String, String)>,
    /// Waiters whose place is lent.
    lenders: HashSet<String>,
    owners: HashMap<Owner, Calls>,
    last: u64,
}

/// The calls of one owner, as long as it has any.
#[derive(Debug, Default)]
struct Calls {
    waiting: usize,
    running: usize,
    /// How many have begun. A new owner starts with one less than the least of the other owners.
    begun: u64,
}

impl LoadQueue {
    /// A queue with `places` for loads, at least one.
    pub fn new(places: usize) -> LoadQueue {
        let state = State { places: places.max(1), ..State::default() };
        LoadQueue { state: Mutex::new(state) }
    }

    /// Waits until this model may be loaded for `peer`; `None` for the server itself. `waiter` is the model whose load waits for this one. Err: the
    /// load of `waiter` would wait for itself.
    pub fn load(&self, model: &str, peer: Option<&Peer>, waiter: Option<&str>) -> Result<Turn<'_>, Status> {
        let of_peer = || peer.cloned().map_or(Owner::Server, Owner::Client);
        let owner = if waiter.is_some() { Owner::Models } else { of_peer() };
        self.wait(Call { owner, model: model.to_owned(), waiter: waiter.map(str::to_owned) })
    }

    /// Waits until this model may be unloaded. `waiter` and the error are as in [`LoadQueue::load`].
    pub fn unload(&self, model: &str, waiter: Option<&str>) -> Result<Turn<'_>, Status> {
        self.wait(Call { owner: Owner::Unloads, model: model.to_owned(), waiter: waiter.map(str::to_owned) })
    }

    /// Returns the error that [`LoadQueue::load`] and [`LoadQueue::unload`] would return, without waiting.
    pub fn check(&self, model: &str, waiter: Option<&str>) -> Result<(), Status> {
        self.state().check(model, waiter)
    }

    fn wait(&self, call: Call) -> Result<Turn<'_>, Status> {
        let mut state = self.state();
        state.check(&call.model, call.waiter.as_deref())?;
        let number = state.line_up(call.clone());
        state.grant();
        drop(state);
        loop {
            if let Some(place) = self.state().granted.remove(&number) {
                return Ok(Turn { queue: self, call, place });
            }
            thread::park();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.end(&self.call, self.place);
        state.grant();
    }
}

impl State {
    fn line_up(&mut self, call: Call) -> u64 {
        // A new owner is next. It does not catch up with the calls of others that began before.
        let least = self.owners.values().map(|calls| calls.begun).min().unwrap_or(0);
        let new = || Calls { begun: least.saturating_sub(1), ..Calls::default() };
        self.owners.entry(call.owner.clone()).or_insert_with(new).waiting += 1;
        self.waits.extend(call.waiter.clone().map(|waiter| (waiter, call.model.clone())));
        self.last += 1;
        self.waiting.insert(self.last, Waiting { call, thread: thread::current() });
        self.last
    }

    /// Grants all calls that may run, and notifies their threads.
    fn grant(&mut self) {
        while let Some(number) = self.next() {
            let Some(Waiting { call, thread }) = self.waiting.remove(&number) else { return };
            let place = self.place(&call);
            let Call { owner, model, waiter } = call;
            self.taken += usize::from(place == Place::Own);
            self.lenders.extend(waiter.filter(|_| place == Place::OfWaiter));
            if let Some(calls) = self.owners.get_mut(&owner) {
                calls.waiting -= 1;
                calls.running += 1;
                calls.begun += 1;
            }
            self.busy.insert(model);
            self.granted.insert(number, place);
            thread.unpark();
        }
    }

    /// The call that may run next: the first one of the owner of which the fewest calls have begun.
    fn next(&self) -> Option<u64> {
        let free = self.waiting.iter().filter(|(_, waiting)| !self.busy.contains(&waiting.call.model));
        let may = free.filter_map(|(number, Waiting { call, .. })| {
            let calls = self.owners.get(&call.owner)?;
            (self.place(call) != Place::Own || self.has_place(calls)).then_some((calls.begun, *number))
        });
        may.min().map(|(_, number)| number)
    }

    /// The place that a call takes when it begins.
    fn place(&self, call: &Call) -> Place {
        let lends = |waiter: &String| self.busy.contains(waiter) && !self.lenders.contains(waiter);
        match &call.waiter {
            _ if call.owner == Owner::Unloads => Place::None,
            Some(waiter) if lends(waiter) => Place::OfWaiter,
            _ => Place::Own,
        }
    }

    /// Whether there is a place for one more load of the owner of these calls. While a client has several places, or the only one, an owner without a load
    /// gets an extra place. There are extra places until as many owners as there are places have a load, or two owners if there is one place.
    fn has_place(&self, calls: &Calls) -> bool {
        let has_several =
            |(owner, calls): (&Owner, &Calls)| matches!(owner, Owner::Client(_)) && calls.running >= self.places.min(2);
        let has_load =
            |(owner, calls): &(&Owner, &Calls)| matches!(owner, Owner::Client(_) | Owner::Server) && calls.running > 0;
        let is_extra = || {
            let owners = self.owners.iter().filter(has_load).count();
            calls.running == 0 && owners < self.places.max(2) && self.owners.iter().any(has_several)
        };
        self.taken < self.places || is_extra()
    }

    fn check(&self, model: &str, waiter: Option<&str>) -> Result<(), Status> {
        match waiter.filter(|waiter| self.waits_for(model, waiter)) {
            Some(waiter) => Err(Status::unavailable(waits_for_itself(model, waiter))),
            None => Ok(()),
        }
    }

    /// Whether the load of `model` waits for that of `other`, directly or through other models.
    fn waits_for(&self, model: &str, other: &str) -> bool {
        let (mut found, mut next) = (vec![model], 0);
        while let Some(&model) = found.get(next) {
            if model == other {
                return true;
            }
            next += 1;
            for (_, next_model) in self.waits.iter().filter(|(waiter, _)| waiter == model) {
                if !found.contains(&next_model.as_str()) {
                    found.push(next_model);
                }
            }
        }
        false
    }

    fn end(&mut self, call: &Call, place: Place) {
        self.busy.remove(&call.model);
        self.taken -= usize::from(place == Place::Own);
        if let Some(waiter) = &call.waiter {
            let is_this = |(from, to): &(String, String)| from == waiter && *to == call.model;
            if let Some(at) = self.waits.iter().position(is_this) {
                self.waits.swap_remove(at);
            }
            if place == Place::OfWaiter {
                self.lenders.remove(waiter);
            }
        }
        let Some(calls) = self.owners.get_mut(&call.owner) else { return };
        calls.running -= 1;
        if calls.running == 0 && calls.waiting == 0 {
            self.owners.remove(&call.owner);
        }
    }
}

fn waits_for_itself(model: &str, waiter: &str) -> String {
    format!(
        "the load of model '{waiter}' waits for model '{model}', which waits for '{waiter}' itself; load or unload '{model}' when '{waiter}' is loaded"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `am` is a load of the model `m` by the client `a`, `-m` one by the server itself, `!m` an unload, and `m>n` a load of `n` for which that of
    /// `m` waits.
    fn call(text: &str) -> Call {
        if let Some((waiter, model)) = text.split_once('>') {
            return Call { owner: Owner::Models, model: model.to_owned(), waiter: Some(waiter.to_owned()) };
        }
        let (who, model) = text.split_at(1);
        let owner = match who {
            "!" => Owner::Unloads,
            "-" => Owner::Server,
            _ => Owner::Client(Peer::User { uid: who.bytes().next().map_or(0, u32::from) }),
        };
        Call { owner, model: model.to_owned(), waiter: None }
    }

    /// Queues `calls` and then ends `ends`, one after the other. Checks which calls begin, in this order.
    #[track_caller]
    fn check(places: usize, calls: &str, ends: &str, expect: &str) {
        let mut state = State { places, ..State::default() };
        let (mut names, mut begun) = (HashMap::new(), Vec::new());
        let mut places_of = HashMap::new();
        let mut grant = |state: &mut State, places_of: &mut HashMap<String, Place>, names: &HashMap<u64, &str>| {
            state.grant();
            let mut new: Vec<(u64, Place)> = state.granted.drain().collect();
            new.sort_unstable_by_key(|(number, _)| *number);
            places_of.extend(new.iter().map(|(number, place)| (names[number].to_owned(), *place)));
            begun.extend(new.iter().map(|(number, _)| names[number].to_owned()));
        };
        for one in calls.split_whitespace() {
            names.insert(state.line_up(call(one)), one);
            grant(&mut state, &mut places_of, &names);
        }
        for one in ends.split_whitespace() {
            state.end(&call(one), places_of[one]);
            grant(&mut state, &mut places_of, &names);
        }
        assert_eq!(begun.join(" "), expect, "{calls}, then {ends} end");
    }

    #[test]
    fn so_many_loads_run_as_there_are_places_and_one_of_each_model() {
        check(2, "am an ao", "", "am an");
        check(2, "am an ao", "an", "am an ao");
        check(2, "am am an", "", "am an");
        check(2, "am am an", "am", "am an am");
        // The server's own loads, such as those of the start.
        check(2, "-m -n -o ap", "", "-m -n");
    }

    #[test]
    fn clients_with_several_places_leave_extra_ones_for_others() {
        check(2, "am an bo bp", "", "am an bo");
        check(2, "am an -o", "", "am an -o");
        check(2, "am an bo cp", "", "am an bo");
        check(2, "am bn co", "", "am bn");
        check(1, "am an bo", "", "am bo");
        check(1, "am an bo cp", "", "am bo");
        check(4, "am an ao ap bq br cs", "", "am an ao ap bq cs");
        check(4, "am an bo bp cq cr ds et -u", "", "am an bo bp cq ds");
        check(4, "am an bo bp cq", "am", "am an bo bp cq");
        check(4, "am bn co dp eq", "", "am bn co dp");
        // The extra place is gone when the client has fewer than all places again.
        check(2, "am an bo ap", "am", "am an bo");
        check(2, "am an bo ap", "am an", "am an bo ap");
    }

    #[test]
    fn a_load_that_waits_for_a_place_keeps_nobody_from_its_model() {
        check(1, "am an bn", "", "am bn");
        check(1, "am an !n", "", "am !n");
        check(2, "am an bm bo", "", "am an bo");
    }

    #[test]
    fn clients_take_turns() {
        check(1, "am am am am bm bm", "am bm am bm am", "am bm am bm am am");
        // Unloads take turns with the clients.
        check(2, "am am am !m !m", "am !m am", "am !m am !m");
    }

    #[test]
    fn a_load_lends_its_place_to_one_for_which_it_waits_and_to_the_next_one_afterwards() {
        check(1, "am m>n n>o bp", "", "am m>n n>o bp");
        check(1, "-m m>n m>o", "", "-m m>n");
        check(1, "-m m>n m>o", "m>n", "-m m>n m>o");
        check(2, "-m m>n m>o m>p", "", "-m m>n m>o");
        // Only one load of a model runs at a time, whoever requested it.
        check(3, "-m -n m>n", "-n", "-m -n m>n");
        // A model whose process is started anew is not being loaded, so it has no place to lend.
        check(1, "-o m>n", "", "-o");
        check(1, "-o m>n", "-o", "-o m>n");
        // Its place is taken by the next one when both have ended.
        check(1, "-m m>n -o", "m>n", "-m m>n");
        check(1, "-m m>n -o", "m>n -m", "-m m>n -o");
    }

    #[test]
    fn a_load_that_would_wait_for_itself_is_refused() {
        let queue = LoadQueue::new(1);
        let turn = |model, waiter| queue.load(model, None, waiter).expect("it does not wait for itself");
        let refused = |model, waiter| queue.load(model, None, Some(waiter)).map(drop).expect_err("it waits for itself");
        let (a, b) = (turn("a", None), turn("b", Some("a")));
        let c = turn("c", Some("b"));
        for (model, waiter) in [("a", "a"), ("a", "b"), ("a", "c"), ("b", "c"), ("c", "c")] {
            let text = refused(model, waiter).message;
            assert!(text.starts_with(&format!("the load of model '{waiter}' waits for model '{model}'")), "{text}");
        }
        assert!(queue.unload("a", Some("c")).is_err());
        drop((c, b));
        drop(turn("c", Some("a")));
        drop(a);
        drop(turn("a", Some("b")));
        let state = queue.state();
        assert!(state.waits.is_empty() && state.lenders.is_empty() && state.taken == 0, "{state:?}");
    }

    #[test]
    #[ignore = "alone: counts context switches"]
    fn the_end_of_a_load_wakes_only_the_thread_of_the_next_one() {
        const LOADS: u64 = 64;
        let queue = LoadQueue::new(1);
        let first = queue.load("first", None, None);
        let switches = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").expect("Linux has it");
            let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            count.and_then(|count| count.trim().parse::<u64>().ok()).expect("a number")
        };
        let load = &|number: u64| drop(queue.load(&number.to_string(), None, None));
        let total: u64 = thread::scope(|scope| {
            let waits = (0..LOADS).map(|number| scope.spawn(move || (load(number), switches()).1));
            let waits: Vec<_> = waits.collect();
            while queue.state().waiting.len() < waits.len() {
                thread::yield_now();
            }
            drop(first);
            waits.into_iter().map(|waits| waits.join().expect("it gets its turn")).sum()
        });
        // If each end woke all threads that wait, there would be more than LOADS * LOADS / 2.
        assert!(total < 8 * LOADS, "{total} switches of {LOADS} threads");
    }

    #[test]
    fn a_turn_ends_when_it_is_dropped() {
        let queue = LoadQueue::new(1);
        let first = queue.load("m", None, None);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| drop(queue.load("m", Some(&Peer::User { uid: 1 }), None)));
            let unload = scope.spawn(|| drop(queue.unload("n", None)));
            unload.join().expect("nothing else is done with n");
            assert!(!second.is_finished());
            drop(first);
        });
        let state = queue.state();
        assert!(state.owners.is_empty() && state.busy.is_empty() && state.waiting.is_empty() && state.taken == 0);
    }
}
