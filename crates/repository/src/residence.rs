//! Which model is unloaded when another needs its room, in control mode `demand`?
//!
//! A model takes as much room as its files, or as the memory that it was measured to have, if that is more. A client that used a model lately *holds* it. Each holder has an equal share of the room. A model may be
//! unloaded for a client only if each of its other holders has more than its share. So a client that asks for many models in turn replaces its own,
//! and never those of a client that keeps within its share. Among the models that may be unloaded, the least recently used one is first.

use std::collections::{BTreeMap, BTreeSet};

/// How long a client holds a model after it used it last.
pub const HOLD_US: u64 = 10 * 60 * 1_000_000;

/// The most clients that can hold one model. Further clients use it without holding it.
pub const HOLDERS_MAX: usize = 1024;

/// The loaded models, and the clients that use them. `P` identifies a client.
#[derive(Clone, Debug)]
pub struct Residence<P> {
    /// The most bytes that all models may take. `None`: there is no limit.
    bytes_max: Option<u64>,
    models: BTreeMap<String, Resident<P>>,
}

#[derive(Clone, Debug)]
struct Resident<P> {
    /// The bytes of its files.
    bytes: u64,
    /// The bytes of its memory. 0 until they are measured.
    measured_bytes: u64,
    is_pinned: bool,
    /// The models that it is made of, if it was loaded with a configuration or files that a client sent. A request could not load it again.
    sent: Option<BTreeSet<String>>,
    used_us: u64,
    /// The clients that used it, with the time of their last use.
    users: BTreeMap<P, u64>,
}

/// Whether there is room for a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vacancy {
    /// There is room.
    Fits,
    /// This model must be unloaded first. After that the caller calls again, because there may still be too little room.
    Evict(String),
    /// The models that may leave have requests in flight.
    Busy,
    /// The other models stay, or are held by clients that keep within their shares.
    Held {
        /// The share of each client, in bytes.
        share: u64,
    },
    /// There is no room even if all models that may leave are unloaded.
    TooLarge {
        /// The room beside the models that stay.
        bytes_max: u64,
    },
}

impl<P: Ord + Clone> Residence<P> {
    /// No model is loaded.
    pub fn new(bytes_max: Option<u64>) -> Residence<P> {
        Residence { bytes_max, models: BTreeMap::new() }
    }

    /// Notes that a model was loaded. A pinned model is never evicted.
    pub fn loaded(&mut self, model: &str, bytes: u64, is_pinned: bool, now_us: u64) {
        let new = Resident { bytes, measured_bytes: 0, is_pinned, sent: None, used_us: now_us, users: BTreeMap::new() };
        let known = self.models.entry(model.to_owned()).or_insert(new);
        known.bytes = bytes;
        known.is_pinned |= is_pinned;
    }

    /// Notes that a loaded model has this much memory now.
    pub fn measured(&mut self, model: &str, bytes: u64) {
        if let Some(known) = self.models.get_mut(model) {
            known.measured_bytes = bytes;
        }
    }

    /// Whether there is a limit.
    pub fn is_limited(&self) -> bool {
        self.bytes_max.is_some()
    }

    /// Whether the model was noted as loaded, and not as unloaded since.
    pub fn knows(&self, model: &str) -> bool {
        self.models.contains_key(model)
    }

    /// Notes whether a loaded model has a configuration or files that a client sent. If so, `parts` are the models that it is made of. Neither the
    /// model nor its parts are evicted until it is unloaded, or loaded from its repository.
    pub fn sent(&mut self, model: &str, parts: Option<BTreeSet<String>>) {
        if let Some(known) = self.models.get_mut(model) {
            known.sent = parts;
        }
    }

    /// Notes that a model was unloaded.
    pub fn unloaded(&mut self, model: &str) {
        self.models.remove(model);
    }

    /// Notes that a client uses a model. False if the model is not noted as loaded.
    pub fn used(&mut self, model: &str, by: &P, now_us: u64) -> bool {
        let Some(known) = self.models.get_mut(model) else { return false };
        known.used_us = now_us;
        if let Some(last) = known.users.get_mut(by) {
            *last = now_us;
        } else {
            known.users.retain(|_, last| is_held(*last, now_us));
            if known.users.len() < HOLDERS_MAX {
                known.users.insert(by.clone(), now_us);
            }
        }
        true
    }

    /// Notes that a model is used for an unknown client.
    pub fn touched(&mut self, model: &str, now_us: u64) {
        if let Some(known) = self.models.get_mut(model) {
            known.used_us = now_us;
        }
    }

    /// Whether there is room for this model and its parts, of `bytes` bytes together, which these clients request. A model that may be unloaded for
    /// one of the clients may be unloaded, unless it is a part. An earlier generation of the model itself, which may still be ending, takes no room
    /// here.
    pub fn vacancy(
        &self,
        model: &str,
        parts: &BTreeSet<String>,
        bytes: u64,
        clients: &BTreeSet<P>,
        now_us: u64,
        is_busy: impl Fn(&str) -> bool,
    ) -> Vacancy {
        let Some(bytes_max) = self.bytes_max else { return Vacancy::Fits };
        let parts_of_sent: BTreeSet<&String> =
            self.models.values().filter_map(|one| one.sent.as_ref()).flatten().collect();
        let stays = |(name, other): &(&String, &Resident<P>)| {
            other.is_pinned || other.sent.is_some() || parts_of_sent.contains(name)
        };
        let (staying, others): (Vec<_>, Vec<_>) =
            self.models.iter().filter(|(name, _)| *name != model).partition(stays);
        // `bytes` includes the files of all parts. So loaded parts count here without their files.
        let sum = |models: &[(&String, &Resident<P>)]| -> u64 {
            let room = |(name, other): &(&String, &Resident<P>)| {
                other.room() - if parts.contains(*name) { other.bytes } else { 0 }
            };
            models.iter().map(room).sum()
        };
        let bytes_max = bytes_max.saturating_sub(sum(&staying));
        if bytes > bytes_max {
            return Vacancy::TooLarge { bytes_max };
        }
        if sum(&others) + bytes <= bytes_max {
            return Vacancy::Fits;
        }
        let rule = Rule::new(held(&others, now_us), clients, bytes_max);
        let may_leave =
            |(name, other): &(&String, &Resident<P>)| !parts.contains(*name) && rule.may_leave(other, now_us);
        let mut leaving: Vec<_> = others.into_iter().filter(may_leave).collect();
        leaving.sort_by_key(|(name, other)| (other.used_us, *name));
        match leaving.iter().find(|(name, _)| !is_busy(name)) {
            Some((name, _)) => Vacancy::Evict((*name).clone()),
            None if leaving.is_empty() => Vacancy::Held { share: rule.share() },
            None => Vacancy::Busy,
        }
    }

    /// The bytes of all loaded models.
    pub fn bytes(&self) -> u64 {
        self.models.values().map(Resident::room).sum()
    }

    /// How many models are loaded.
    pub fn count(&self) -> usize {
        self.models.len()
    }
}

impl<P> Resident<P> {
    /// The bytes that it takes.
    fn room(&self) -> u64 {
        self.bytes.max(self.measured_bytes)
    }
}

/// The rule for which models may be evicted for some clients.
struct Rule<'a, P> {
    held: BTreeMap<&'a P, u64>,
    clients: &'a BTreeSet<P>,
    /// The share for a client that holds models, and the share for a client that holds none. `None`: no such client requests the model.
    share_of_holder: Option<u64>,
    share_of_newcomer: Option<u64>,
}

impl<'a, P: Ord> Rule<'a, P> {
    fn new(held: BTreeMap<&'a P, u64>, clients: &'a BTreeSet<P>, bytes_max: u64) -> Rule<'a, P> {
        let holders = held.len() as u64;
        let is_holder = |client: &P| held.contains_key(client);
        let share_of_holder = clients.iter().any(is_holder).then(|| bytes_max / holders.max(1));
        let share_of_newcomer = clients.iter().any(|client| !is_holder(client)).then(|| bytes_max / (holders + 1));
        Rule { held, clients, share_of_holder, share_of_newcomer }
    }

    fn may_leave(&self, model: &Resident<P>, now_us: u64) -> bool {
        // The clients that protect it, because they keep within that share. A client may replace a model that only it protects.
        let kept = |share: u64| {
            let users = model.users.iter().filter(|(_, last)| is_held(**last, now_us)).map(|(user, _)| user);
            users.filter(move |user| self.held.get(user).is_none_or(|bytes| *bytes <= share))
        };
        let for_newcomer = self.share_of_newcomer.is_some_and(|share| kept(share).next().is_none());
        let for_holder = self.share_of_holder.is_some_and(|share| {
            let mut kept = kept(share);
            kept.next().is_none_or(|first| self.clients.contains(first) && kept.next().is_none())
        });
        for_newcomer || for_holder
    }

    /// The larger of the two shares.
    fn share(&self) -> u64 {
        self.share_of_holder.max(self.share_of_newcomer).unwrap_or_default()
    }
}

/// The bytes that each client holds.
fn held<'a, P: Ord>(models: &[(&String, &'a Resident<P>)], now_us: u64) -> BTreeMap<&'a P, u64> {
    let mut held: BTreeMap<&P, u64> = BTreeMap::new();
    for (_, model) in models {
        for (user, _) in model.users.iter().filter(|(_, last)| is_held(**last, now_us)) {
            *held.entry(user).or_default() += model.room();
        }
    }
    held
}

fn is_held(last_us: u64, now_us: u64) -> bool {
    now_us.saturating_sub(last_us) < HOLD_US
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A residence of 10 bytes after these events, one µs apart: `model=bytes` is loaded, `model!bytes` is loaded and pinned, `model~bytes` is measured, `model+part` was sent and is
    /// made of another model, `model-` is loaded from its repository, `client:model` uses it, `model` is unloaded.
    fn after(events: &str) -> (Residence<char>, u64) {
        let mut residence = Residence::new(Some(10));
        let mut now_us = 0;
        for event in events.split_whitespace() {
            now_us += 1;
            if let Some((model, bytes)) = event.split_once(['=', '!']) {
                residence.loaded(model, bytes.parse().expect("bytes are a number"), event.contains('!'), now_us);
            } else if let Some((model, bytes)) = event.split_once('~') {
                residence.measured(model, bytes.parse().expect("bytes are a number"));
            } else if let Some((model, part)) = event.split_once('+') {
                residence.sent(model, Some(BTreeSet::from([part.to_owned()])));
            } else if let Some(model) = event.strip_suffix('-') {
                residence.sent(model, None);
            } else if let Some((client, model)) = event.split_once(':') {
                assert!(residence.used(model, &first(client), now_us), "{event}");
            } else {
                residence.unloaded(event);
            }
        }
        (residence, now_us + 1)
    }

    fn first(word: &str) -> char {
        word.chars().next().expect("an event names a client")
    }

    #[track_caller]
    fn check(events: &str, client: char, bytes: u64, expect: &Vacancy) {
        check_for("new", events, &[client], bytes, expect);
    }

    #[track_caller]
    fn check_for(model: &str, events: &str, clients: &[char], bytes: u64, expect: &Vacancy) {
        check_with_parts(model, &[], events, clients, bytes, expect);
    }

    #[track_caller]
    fn check_with_parts(model: &str, parts: &[&str], events: &str, clients: &[char], bytes: u64, expect: &Vacancy) {
        let (residence, now_us) = after(events);
        let parts = parts.iter().map(|part| (*part).to_owned()).collect();
        let clients = clients.iter().copied().collect();
        let found = residence.vacancy(model, &parts, bytes, &clients, now_us, |model| model.starts_with("busy"));
        assert_eq!(&found, expect, "{events}");
    }

    fn evict(model: &str) -> Vacancy {
        Vacancy::Evict(model.to_owned())
    }

    #[test]
    fn the_one_that_was_used_least_recently_leaves() {
        check("", 'a', 10, &Vacancy::Fits);
        check("x=4 y=4", 'a', 2, &Vacancy::Fits);
        check("x=4 y=4 a:x a:y", 'a', 4, &evict("x"));
        check("x=4 y=4 a:x a:y a:x", 'a', 4, &evict("y"));
        check("x=4 y=4 x", 'a', 4, &Vacancy::Fits);
    }

    #[test]
    fn a_model_takes_the_room_that_it_was_measured_to_need() {
        check("x=1 y=1 a:x a:y", 'a', 8, &Vacancy::Fits);
        check("x=1 x~5 y=1 a:x a:y", 'a', 4, &Vacancy::Fits);
        check("x=1 x~5 y=1 a:x a:y", 'a', 5, &evict("x"));
        check("x=1 y=1 y~9 x~9 a:x a:y", 'a', 1, &evict("x"));
        // A model counts at least with its files, which are read again for a further instance.
        check("x=6 x~1 a:x", 'a', 5, &evict("x"));
        // The measured memory is forgotten when the model is unloaded.
        check("x=1 x~9 x x=1 a:x", 'a', 9, &Vacancy::Fits);
        check("p!1 p~7", 'a', 4, &Vacancy::TooLarge { bytes_max: 3 });
        // If the measured memory of a client's models exceeds its share, they may be unloaded for others.
        check("x=1 x~9 b:x", 'a', 5, &evict("x"));
        check("x=1 x~5 b:x", 'a', 6, &Vacancy::Held { share: 5 });
        // A loaded part is counted with its files in `bytes`. Its further memory counts as well.
        check_with_parts("new", &["x"], "x=1 x~4 a:x y=4 a:y", &['a'], 3, &Vacancy::Fits);
        check_with_parts("new", &["x"], "x=1 x~4 a:x y=4 a:y", &['a'], 4, &evict("y"));
    }

    #[test]
    fn pinned_models_stay_and_take_room() {
        check("p!6 x=4 a:x", 'a', 4, &evict("x"));
        check("p!6 x=4 a:x", 'a', 5, &Vacancy::TooLarge { bytes_max: 4 });
        check("p!6", 'a', 11, &Vacancy::TooLarge { bytes_max: 4 });
    }

    #[test]
    fn models_that_were_sent_stay_with_their_parts() {
        check("s=6 s+ x=4 a:s a:x", 'a', 4, &evict("x"));
        check("s=6 s+ x=4 a:s a:x", 'a', 5, &Vacancy::TooLarge { bytes_max: 4 });
        check("s=1 s+part part=5 x=4 a:s a:part a:x", 'a', 4, &evict("x"));
        check("s=1 s+part part=5 x=4 a:s a:part a:x", 'a', 5, &Vacancy::TooLarge { bytes_max: 4 });
        // The model and its parts stay until the model is unloaded, or loaded from the repository.
        check("s=1 s+part part=5 x=4 a:s a:part a:x s", 'a', 5, &evict("part"));
        check("s=1 s+part part=5 x=4 a:s a:part a:x s-", 'a', 4, &evict("s"));
    }

    #[test]
    fn a_model_with_requests_in_flight_does_not_leave() {
        check("busy=4 y=4 a:busy a:y", 'a', 4, &evict("y"));
        check("busy1=4 busy2=4 a:busy1 a:busy2", 'a', 4, &Vacancy::Busy);
    }

    #[test]
    fn what_is_known_of_a_model_itself_takes_no_room_from_it() {
        // The model is requested again while it is being unloaded. It needs its room only once.
        check_for("busy", "busy=6", &['a'], 6, &Vacancy::Fits);
        check_for("busy", "busy=6 y=4 a:busy a:y", &['a'], 6, &Vacancy::Fits);
        check_for("busy", "busy=6 y=4 a:busy a:y", &['a'], 8, &evict("y"));
        check_for("new", "busy=6 y=4 a:busy a:y", &['a'], 8, &evict("y"));
        check_for("p", "p!6 x=4 a:x", &['a'], 8, &evict("x"));
        // It does not count as held by its clients.
        check_for("x", "x=6 b:x y=4 b:y", &['a'], 8, &Vacancy::Held { share: 5 });
    }

    #[test]
    fn a_part_that_is_up_is_room_that_its_ensemble_has() {
        check_with_parts("new", &["x"], "x=4 a:x y=4 a:y", &['a'], 7, &evict("y"));
        check_with_parts("new", &["x"], "x=4 a:x y=3 a:y", &['a'], 7, &Vacancy::Fits);
        check_with_parts("new", &["x", "y"], "x=4 a:x y=4 a:y", &['a'], 11, &Vacancy::TooLarge { bytes_max: 10 });
        check_with_parts("new", &["p"], "p!6 y=4 a:y", &['a'], 7, &evict("y"));
        // The part counts as held by its clients.
        check_with_parts("new", &["x"], "x=4 b:x y=4 b:y", &['a'], 7, &evict("y"));
    }

    #[test]
    fn a_model_that_several_ask_for_has_the_rights_of_each() {
        // A model that b holds may be unloaded for b, but not for a.
        check_for("new", "v=5 b:v", &['a'], 6, &Vacancy::Held { share: 5 });
        check_for("new", "v=5 b:v", &['a', 'b'], 6, &evict("v"));
        check_for("new", "v=4 w=4 b:v a:w", &['a', 'b'], 6, &evict("v"));
        // Two clients within their shares hold the model. It may be unloaded for neither of them.
        check_for("new", "v=5 a:v b:v", &['a', 'b'], 6, &Vacancy::Held { share: 5 });
        check_for("new", "v=5 b:v", &['a', 'c'], 6, &Vacancy::Held { share: 5 });
        // For a alone, only the busy model that a holds may be unloaded.
        check_for("new", "busy=5 w=5 a:busy b:w", &['a'], 5, &Vacancy::Busy);
        check_for("new", "busy=5 w=5 a:busy b:w", &['a', 'b'], 5, &evict("w"));
        check_for("new", "v=4 w=6 b:v b:w", &[], 6, &Vacancy::Held { share: 0 });
    }

    #[test]
    fn a_model_that_is_touched_is_nobodys_but_not_the_oldest() {
        let (mut residence, now_us) = after("x=4 y=4");
        residence.touched("x", now_us);
        residence.touched("unknown", now_us);
        assert_eq!(
            residence.vacancy("new", &BTreeSet::new(), 4, &BTreeSet::from(['a']), now_us + 1, |_| false),
            evict("y")
        );
    }

    #[test]
    fn a_client_within_its_share_keeps_its_models() {
        // b has 5 of 10 for two clients; a asks for more and more.
        check("v=5 b:v x=3 a:x", 'a', 3, &evict("x"));
        // This is so even if a uses the model that b holds.
        check("v=5 b:v a:v x=3 a:x", 'a', 3, &evict("x"));
        check("v=5 b:v a:v", 'a', 6, &Vacancy::Held { share: 5 });
        // Models of a client with more than its share are unloaded.
        check("v=3 w=3 u=3 b:v b:w b:u", 'a', 3, &evict("v"));
        check("v=3 w=3 u=3 b:v b:w b:u v x=3 a:x", 'a', 3, &evict("w"));
        check("w=3 u=2 b:w b:u x=3 a:x", 'a', 3, &evict("x"));
    }

    #[test]
    fn who_asks_for_models_in_turn_never_takes_those_of_another() {
        let mut residence = Residence::new(Some(10));
        residence.loaded("theirs", 5, false, 0);
        residence.used("theirs", &'b', 0);
        for (now_us, turn) in (1..).zip(0..1000) {
            let model = format!("mine{}", turn % 7);
            loop {
                match residence.vacancy(&model, &BTreeSet::new(), 2, &BTreeSet::from(['a']), now_us, |_| false) {
                    Vacancy::Fits => break,
                    Vacancy::Evict(model) => {
                        assert_ne!(model, "theirs");
                        residence.unloaded(&model);
                    }
                    other => panic!("{other:?}"),
                }
            }
            residence.loaded(&model, 2, false, now_us);
            residence.used(&model, &'a', now_us);
        }
    }

    #[test]
    fn what_was_not_used_for_long_is_nobodys() {
        let (mut residence, now_us) = after("v=5 w=5 b:v b:w");
        residence.used("w", &'b', now_us + HOLD_US);
        assert_eq!(
            residence.vacancy("new", &BTreeSet::new(), 5, &BTreeSet::from(['a']), now_us + HOLD_US, |_| false),
            evict("v")
        );
    }

    #[test]
    fn the_holders_of_a_model_are_bounded() {
        let mut residence = Residence::new(Some(10));
        residence.loaded("x", 1, false, 0);
        for client in 0..2 * HOLDERS_MAX {
            assert!(residence.used("x", &client, 1));
        }
        assert_eq!(residence.models.get("x").map(|model| model.users.len()), Some(HOLDERS_MAX));
        // Clients whose last use was long ago are removed to make room.
        assert!(residence.used("x", &usize::MAX, 1 + HOLD_US));
        assert_eq!(residence.models.get("x").map(|model| model.users.len()), Some(1));
    }

    #[test]
    fn without_a_limit_everything_fits() {
        let mut residence: Residence<char> = Residence::new(None);
        residence.loaded("x", u64::MAX / 2, false, 0);
        assert_eq!(
            residence.vacancy("new", &BTreeSet::new(), u64::MAX / 2, &BTreeSet::from(['a']), 0, |_| false),
            Vacancy::Fits
        );
        assert_eq!((residence.bytes(), residence.count()), (u64::MAX / 2, 1));
    }
}
