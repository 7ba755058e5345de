//! Do clients get their shares, and is no request lost?

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::*;

/// `arrivals` lists requests: a letter for the peer, a digit for the flow, and its rows after a `*`. A `.` takes the first request. The rest are
/// taken at the end. `expect` is the order in which they are taken: `a0#2` is the second request of `a0`.
#[track_caller]
fn check(arrivals: &str, expect: &str) {
    let (mut order, mut names, mut counts, mut taken) =
        (FairOrder::default(), HashMap::new(), HashMap::<&str, u32>::new(), Vec::new());
    for (number, word) in arrivals.split_whitespace().enumerate() {
        if word == "." {
            taken.extend(order.take_first());
            continue;
        }
        let (kind, rows) = word.split_once('*').unwrap_or((word, "1"));
        let (peer, flow) = kind.split_at(1);
        let client = Client { peer: peer.as_bytes()[0].into(), flow: flow.parse().expect("a flow") };
        let (ticket, count) = (Ticket(number as u64), counts.entry(kind).or_default());
        *count += 1;
        names.insert(ticket, format!("{kind}#{count}"));
        order.push(client, ticket, number as u64, rows.parse().expect("rows"), 0);
    }
    taken.extend(std::iter::from_fn(|| order.take_first()));
    let taken: Vec<_> = taken.iter().map(|ticket| names[ticket].as_str()).collect();
    assert_eq!(taken.join(" "), expect, "{arrivals}");
    assert!(
        order.is_empty() && order.turns.order.is_empty() && order.turns.virtual_time == 0,
        "{arrivals}: something is left"
    );
}

#[test]
fn one_client_is_served_in_the_order_of_arrival() {
    check("a0 a0 . a0 . . a0 a0", "a0#1 a0#2 a0#3 a0#4 a0#5");
    check("a0*8 a0 a0*3 . a0", "a0#1 a0#2 a0#3 a0#4");
}

#[test]
fn clients_with_one_request_each_are_served_in_the_order_of_arrival() {
    check("a0 b0 a1 c0*8 d0 . b1", "a0#1 b0#1 c0#1 d0#1 a1#1 b1#1");
    check("a0 b0*8 c0 . a0 . b0 . c0 d0", "a0#1 b0#1 c0#1 a0#2 b0#2 c0#2 d0#1");
    check("a0 a1 a2 . a0 . a1 a3 . a2", "a0#1 a1#1 a2#1 a0#2 a1#2 a3#1 a2#2");
}

#[test]
fn a_peer_that_floods_does_not_delay_another_one() {
    check("a0 a0 a0 a0 a0 b0", "a0#1 b0#1 a0#2 a0#3 a0#4 a0#5");
    check("a0 a0 a0 a0 a0 . b0 b0", "a0#1 a0#2 b0#1 a0#3 b0#2 a0#4 a0#5");
    // Nor does it get more turns by connections.
    check("a0 a1 a2 a3 a4 . b0", "a0#1 a1#1 b0#1 a2#1 a3#1 a4#1");
    check("a0 a0 a1 a1 a2 a2 b0 b0", "a0#1 b0#1 a1#1 b0#2 a2#1 a0#2 a1#2 a2#2");
}

#[test]
fn connections_of_a_peer_share_its_turns() {
    check("a0 a0 a0 a0 . a1 a1", "a0#1 a0#2 a1#1 a0#3 a1#2 a0#4");
    check("a0 a0 a0 b0 b0 b0 a1", "a0#1 b0#1 a1#1 b0#2 a0#2 b0#3 a0#3");
}

#[test]
fn shares_are_counted_in_rows() {
    check("a0*4 a0*4 b0 b0 b0 b0 b0", "a0#1 b0#1 b0#2 b0#3 b0#4 a0#2 b0#5");
    check("a0*4 a0*4 a1 a1 a1 a1 a1", "a0#1 a1#1 a1#2 a1#3 a1#4 a0#2 a1#5");
}

#[test]
fn newcomers_without_end_starve_nobody() {
    check("a0 a0 a0 b0 . c0 . d0 . e0 . f0", "a0#1 b0#1 a0#2 c0#1 d0#1 a0#3 e0#1 f0#1");
    check("a0 a0 a1 . a2 . a3 . a4 .", "a0#1 a1#1 a0#2 a2#1 a3#1 a4#1");
}

#[test]
fn an_older_request_that_comes_later_goes_first_in_its_flow() {
    let mut order = FairOrder::default();
    order.push(Client::default(), Ticket(5), 5, 1, 1);
    order.advance(1);
    let (_, is_changed) = order.push(Client::default(), Ticket(3), 3, 1, 1);
    assert!(is_changed);
    assert_eq!([order.take_first(), order.take_first()], [Some(Ticket(3)), Some(Ticket(5))]);
}

#[test]
fn a_removed_request_gives_its_turn_back_but_not_that_of_a_larger_one() {
    let client = |peer| Client { peer, flow: 0 };
    let mut order = FairOrder::default();
    // Peer 1 gets a turn of one row and one of eight. Then the request with one row is removed.
    let (small, _) = order.push(client(1), Ticket(1), 1, 1, 0);
    order.push(client(1), Ticket(2), 2, 8, 0);
    order.remove(small, 0);
    order.push(client(1), Ticket(3), 3, 1, 0);
    for number in 4..=8 {
        order.push(client(2), Ticket(number), number, 1, 0);
    }
    let taken: Vec<u64> = std::iter::from_fn(|| order.take_first()).map(|ticket| ticket.0).collect();
    assert_eq!(taken, [2, 4, 5, 6, 7, 8, 3]);
}

/// A request arrives, the first one is taken, one is removed, one is looked at, or the prefix begins again.
#[derive(Clone, Debug)]
enum Step {
    Push { peer: u64, flow: u64, rows: u32 },
    Take,
    Remove(usize),
    Look,
    Restart,
}

fn steps(rows_max: u32) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u64..4, 0u64..3, 1..=rows_max).prop_map(|(peer, flow, rows)| Step::Push { peer, flow, rows }),
        3 => Just(Step::Take),
        2 => any::<usize>().prop_map(Step::Remove),
        4 => Just(Step::Look),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..120)
}

/// The order, and what a test expects of it.
#[derive(Default)]
struct Known {
    order: FairOrder,
    waiting: BTreeMap<u64, (Place, Client)>,
    prefix: u64,
    looked_at: Vec<u64>,
    pushed: u64,
}

impl Known {
    fn apply(&mut self, step: &Step) -> Option<u64> {
        let mut changed = false;
        let taken = match *step {
            Step::Push { peer, flow, rows } => {
                self.pushed += 1;
                let (number, client) = (self.pushed, Client { peer, flow });
                let (place, covered) = self.order.push(client, Ticket(number), number, rows, self.prefix);
                self.waiting.insert(number, (place, client));
                changed = covered;
                None
            }
            Step::Take => {
                let taken = self.order.take_first().map(|ticket| ticket.0);
                if let Some(number) = taken {
                    self.waiting.remove(&number);
                }
                self.restart();
                taken
            }
            Step::Remove(at) if !self.waiting.is_empty() => {
                let number = *self.waiting.keys().nth(at % self.waiting.len()).expect("it waits");
                let (place, _) = self.waiting.remove(&number).expect("it waits");
                changed = self.order.remove(place, self.prefix);
                None
            }
            Step::Look => {
                let next = self.order.next(self.prefix);
                self.order.advance(self.prefix);
                self.looked_at.extend(next.map(|ticket| ticket.0));
                None
            }
            Step::Restart | Step::Remove(_) => {
                self.restart();
                None
            }
        };
        let found = self.listed(self.looked_at.len());
        assert_eq!(changed, found != self.looked_at, "{step:?}: the prefix was {:?}, is {found:?}", self.looked_at);
        if changed {
            self.restart();
        }
        taken
    }

    fn restart(&mut self) {
        self.prefix += 1;
        self.looked_at.clear();
    }

    /// The first requests. They are read through another prefix, and the prefix of the test is restored.
    fn listed(&mut self, count: usize) -> Vec<u64> {
        let before = Looks::of(&mut self.order);
        let look = |_| {
            let next = self.order.next(u64::MAX);
            self.order.advance(u64::MAX);
            next.map(|ticket| ticket.0)
        };
        let listed = (0..count).map_while(look).collect();
        before.restore(&mut self.order);
        listed
    }
}

/// How far each list of turns and each flow of an order was looked at.
struct Looks(Vec<LookedAt<Tag>>, Vec<LookedAt<u64>>);

impl Looks {
    fn of(order: &mut FairOrder) -> Looks {
        let of_turns = order.peers.values().map(|peer| peer.turns.looked_at);
        let of_flows = order.peers.values().flat_map(|peer| peer.flows.values()).map(|flow| flow.looked_at);
        Looks(std::iter::once(order.turns.looked_at).chain(of_turns).collect(), of_flows.collect())
    }

    fn restore(self, order: &mut FairOrder) {
        order.turns.looked_at = self.0[0];
        order.peers.values_mut().zip(&self.0[1..]).for_each(|(peer, looked_at)| peer.turns.looked_at = *looked_at);
        let flows = order.peers.values_mut().flat_map(|peer| peer.flows.values_mut());
        flows.zip(self.1).for_each(|(flow, looked_at)| flow.looked_at = looked_at);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn each_request_is_taken_once_in_the_order_of_its_flow_as_the_prefix_showed(steps in steps(4)) {
        let (mut known, mut last) = (Known::default(), HashMap::new());
        let takes = std::iter::repeat_n(&Step::Take, steps.len());
        for step in steps.iter().chain(takes) {
            let all = known.waiting.clone();
            let first = known.listed(1);
            let taken = known.apply(step);
            if matches!(step, Step::Take) {
                prop_assert_eq!(taken.into_iter().collect::<Vec<_>>(), first);
                prop_assert_eq!(taken.is_none(), all.is_empty());
            }
            if let Some(number) = taken {
                let (_, client) = all[&number];
                prop_assert!(last.insert(client, number) < Some(number), "{:?} is not in order", client);
            }
        }
        prop_assert!(known.waiting.is_empty() && known.order.is_empty() && known.order.turns.order.is_empty());
    }

    #[test]
    fn a_newcomer_waits_for_two_requests_of_each_other_peer_and_of_each_other_flow(steps in steps(1), is_new_peer: bool) {
        let mut known = Known::default();
        for step in &steps {
            known.apply(step);
        }
        let client = Client { peer: if is_new_peer { 9 } else { 0 }, flow: 9 };
        let own = known.pushed + 1;
        known.apply(&Step::Push { peer: client.peer, flow: client.flow, rows: 1 });
        let (mut of_peers, mut of_flows) = (HashMap::new(), HashMap::new());
        loop {
            let all = known.waiting.clone();
            let taken = known.apply(&Step::Take).expect("the newcomer waits");
            if taken == own {
                break;
            }
            let (_, ahead) = all[&taken];
            *of_peers.entry(ahead.peer).or_insert(0) += 1;
            *of_flows.entry(ahead).or_insert(0) += 1;
            // The others go on sending.
            known.apply(&Step::Push { peer: ahead.peer, flow: ahead.flow, rows: 1 });
        }
        if is_new_peer {
            prop_assert!(of_peers.values().all(|count| *count <= 2), "{:?}", of_peers);
        }
        prop_assert!(of_flows.iter().all(|(ahead, count)| ahead.peer != client.peer || *count <= 2), "{:?}", of_flows);
    }
}
