//! Are limits never exceeded, and does every instance run in the end?

use proptest::prelude::*;

use super::*;

/// `R4` is four of a shared R, `R4@0` four of the R of device 0.
fn needs(text: &str) -> Vec<(Resource, u32)> {
    let one = |word: &str| {
        let (what, device) = word.split_once('@').map_or((word, None), |(what, device)| (what, device.parse().ok()));
        let (name, count) = what.split_at(1);
        (Resource { name: name.to_owned(), device }, count.parse().expect("a count"))
    };
    text.split_whitespace().map(one).collect()
}

fn limits(text: &str) -> ResourceLimits {
    ResourceLimits(needs(text).into_iter().map(|(of, count)| ((of.name, of.device), count)).collect())
}

fn limiter(limit: &str, claims: &[&str]) -> (Limiter, Vec<Claimant>) {
    let mut limiter = Limiter::new(limits(limit));
    let add = |claim: &&str| limiter.add(Claim { needs: needs(claim), priority: 1 }).expect("it may run");
    let all = claims.iter().map(add).collect();
    (limiter, all)
}

/// Requests resources. Returns whether the claimant may run at once. Asserts that no other one may run because of this request.
fn runs_at_once(limiter: &mut Limiter, claimant: Claimant) -> bool {
    let granted = limiter.request(claimant);
    assert!(granted.iter().all(|one| *one == claimant));
    !granted.is_empty()
}

/// Each letter of `requests` is an instance that requests its resources. Checks which ones run.
#[track_caller]
fn check(limit: &str, claims: &[&str], requests: &str, expect: &str) {
    let (mut limiter, all) = limiter(limit, claims);
    let may_run = requests.chars().filter(|letter| runs_at_once(&mut limiter, all[*letter as usize - 'a' as usize]));
    assert_eq!(may_run.collect::<String>(), expect, "{claims:?} of {limit:?}");
}

#[test]
fn instances_run_together_as_far_as_resources_go() {
    check("", &["R4", "R4"], "ab", "a");
    check("", &["R4", "R2", "R2"], "bca", "bc");
    check("R8", &["R4", "R4", "R1"], "abc", "ab");
    check("", &["R1@0", "R1@1"], "ab", "ab");
    check("R1@0 R2", &["R1@0", "R2@1", "R2@1"], "abc", "ab");
    check("", &["", "", "R1"], "abc", "abc");
}

#[test]
fn a_waiting_instance_is_passed_by_those_that_need_other_resources() {
    check("R4 S4", &["R3", "R2", "S1", "R1"], "abcd", "ac");
}

#[track_caller]
fn check_refused(limit: &str, there: &[&str], claim: &str, expect: &str) {
    let (mut limiter, _) = limiter(limit, there);
    let refused = limiter.add(Claim { needs: needs(claim), priority: 1 });
    assert_eq!(refused.map_err(|error| error.to_string()), Err(expect.to_owned()));
}

#[test]
fn claims_that_could_never_run_are_refused() {
    let limited = |name, limit, needed| {
        format!(
            "Resource count for \"{name}\" is limited to {limit} which will prevent scheduling of one or more model instances, \
             the minimum required count is {needed}"
        )
    };
    check_refused("R3", &[], "R4", &limited("R", 3, 4));
    check_refused("R3@0", &[], "R4", &limited("R", 3, 4));
    check_refused("R3@0 R9", &[], "R4@0", &limited("R", 3, 4));
    check_refused("S10", &[], "R4", &limited("R", 0, 4));
    let kinds = "Resource \"R\" is present as both global and device-specific resource in the model configuration.";
    check_refused("", &[], "R1 R1@0", kinds);
    check_refused("", &["R1"], "R1@0", kinds);
}

#[test]
fn a_priority_of_two_runs_half_as_often() {
    let mut limiter = Limiter::new(ResourceLimits::default());
    let add =
        |limiter: &mut Limiter, priority| limiter.add(Claim { needs: needs("R1"), priority }).expect("it may run");
    let all = [add(&mut limiter, 1), add(&mut limiter, 2)];
    let mut runs = [0, 0];
    let mut running = all[0];
    assert!(runs_at_once(&mut limiter, all[0]) && !runs_at_once(&mut limiter, all[1]));
    for _ in 0..300 {
        runs[usize::from(running == all[1])] += 1;
        // It gives back what it has and requests it again.
        running = limiter.request(running)[0];
    }
    assert_eq!(runs, [200, 100]);
}

/// Two instances have run `before` times each when two others of `priority` are added. Then each requests resources again after each run. Checks how
/// many of 100 runs the new ones get.
#[track_caller]
fn check_newcomers(before: usize, priority: u32, expect: std::ops::RangeInclusive<usize>) {
    // One instance never runs, and one that needs another resource has run far more often.
    let (mut limiter, all) = limiter("R1 S1", &["R1", "R1", "R1", "S1"]);
    let runs = [(0, before), (1, before), (3, 10_000)];
    for (at, runs) in runs {
        for _ in 0..runs {
            assert!(runs_at_once(&mut limiter, all[at]));
            limiter.release(all[at]);
        }
    }
    assert!(runs_at_once(&mut limiter, all[0]) && !runs_at_once(&mut limiter, all[1]));
    let newcomers = [0, 1].map(|_| limiter.add(Claim { needs: needs("R1"), priority }).expect("it may run"));
    assert!(newcomers.iter().all(|newcomer| !runs_at_once(&mut limiter, *newcomer)));
    let (mut running, mut turns) = (all[0], 0);
    for _ in 0..100 {
        running = limiter.request(running)[0];
        turns += usize::from(newcomers.contains(&running));
    }
    assert!(expect.contains(&turns), "{turns} of 100, which should be {expect:?}");
}

#[test]
fn a_new_instance_does_not_win_every_turn() {
    check_newcomers(0, 1, 48..=52);
    check_newcomers(1000, 1, 48..=52);
    check_newcomers(1000, 2, 31..=37);
    check_newcomers(1000, 4, 18..=24);
}

#[test]
fn an_instance_that_declines_has_not_run() {
    let (mut limiter, all) = limiter("", &["R4", "R4", "R2", "R2"]);
    assert!([true, false, false, false] == [0, 1, 2, 3].map(|at| runs_at_once(&mut limiter, all[at])));
    assert_eq!((limiter.decline(all[2]), limiter.waiting()), (Vec::new(), 2));
    assert_eq!((limiter.release(all[0]), limiter.has(all[1])), (vec![all[1]], true));
    assert_eq!(limiter.decline(all[1]), [all[3]], "it does not need what it was granted");
    limiter.release(all[3]);
    assert!(runs_at_once(&mut limiter, all[0]) && !runs_at_once(&mut limiter, all[1]));
    assert_eq!(limiter.request(all[0]), [all[1]], "it has run less often");
    let (mut limiter, all) = self::limiter("", &["R4", "R4", "R2", "R2"]);
    assert!([3, 0, 2].map(|at| runs_at_once(&mut limiter, all[at])) == [true, false, false]);
    assert_eq!(limiter.decline(all[0]), [all[2]], "it kept the one behind it from what is there");
}

#[test]
fn the_resource_map_is_that_of_triton() {
    let (mut limiter, all) = limiter("", &["R4", "R3", "S2@1", "T1@1"]);
    let shown = |r| {
        format!(
            "\nMax Resource Map===>\n\tDevice: GLOBAL\n\t\tResource: R\t Count: {r}\n\tDevice: 1\n\t\tResource: S\t Count: 2\n\t\tResource: T\t Count: 1\n"
        )
    };
    assert_eq!(limiter.resource_map(), shown(4));
    limiter.remove(all[0]);
    assert_eq!(limiter.resource_map(), shown(3));
}

#[test]
fn a_removed_instance_gives_back_its_resources() {
    let (mut limiter, all) = limiter("", &["R4", "R4", "R2"]);
    assert!([true, false, false] == [0, 1, 2].map(|at| runs_at_once(&mut limiter, all[at])));
    assert_eq!(limiter.release(all[1]), [], "it does not wait any more, and the next needs what is used");
    assert_eq!(limiter.remove(all[0]), [all[2]]);
    assert_eq!((limiter.waiting(), limiter.request(all[0])), (0, Vec::new()));
}

proptest! {
    #[test]
    fn no_more_is_used_than_there_is_and_everybody_runs_in_the_end(
        claims in prop::collection::vec((1u32..5, 0u32..5, 0u32..4), 1..8),
        events in prop::collection::vec(0usize..16, 0..200),
    ) {
        let mut limiter = Limiter::new(limits("R5 S4"));
        let resource = |name: &str| Resource { name: name.into(), device: None };
        let add = |(r, s, priority): &(u32, u32, u32)| {
            let needs = vec![(resource("R"), *r), (resource("S"), *s)];
            limiter.add(Claim { needs, priority: *priority }).expect("there is enough")
        };
        let all: Vec<Claimant> = claims.iter().map(add).collect();
        let (mut running, mut waiting) = (BTreeSet::new(), BTreeSet::new());
        let place = |claimant: Claimant| all.iter().position(|one| *one == claimant).expect("known");
        let mut step = |at: usize, running: &mut BTreeSet<usize>, waiting: &mut BTreeSet<usize>| {
            if running.remove(&at) {
                for granted in limiter.release(all[at]) {
                    assert!(waiting.remove(&place(granted)) && running.insert(place(granted)));
                }
            } else if !waiting.contains(&at) {
                let set = if runs_at_once(&mut limiter, all[at]) { &mut *running } else { &mut *waiting };
                assert!(set.insert(at));
            }
            let (r, s) = running.iter().fold((0, 0), |(r, s), at: &usize| (r + claims[*at].0, s + claims[*at].1));
            assert!(r <= 5 && s <= 4, "{running:?}");
            assert!(waiting.is_empty() || !running.is_empty(), "somebody waits for nobody");
        };
        for event in events {
            step(event % claims.len(), &mut running, &mut waiting);
        }
        for _ in 0..claims.len() * 2 {
            if let Some(at) = running.first().copied() {
                step(at, &mut running, &mut waiting);
            }
        }
        prop_assert!(waiting.is_empty() && running.is_empty());
    }
}
