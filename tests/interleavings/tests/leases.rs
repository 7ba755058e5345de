//! Do leases keep their rules in whatever order threads run?

use std::sync::Arc;

use nerite_shm::{Account, LeaseCounts, LeaseLimits, LeaseName, Pools};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;

const ORDERS: usize = 10_000;
const PAGE: u64 = 4096;

fn in_many_orders(threads: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(threads.clone(), ORDERS);
    shuttle::check_pct(threads, ORDERS, 3);
}

fn pools(pages: u64, of_session: u64) -> Arc<Pools> {
    Pools::new(LeaseLimits { bytes_max: pages * PAGE, session_bytes_max: of_session * PAGE })
}

fn borrow(account: &Account) -> Option<LeaseName> {
    account.borrow(PAGE).ok().map(|borrowed| borrowed.lease.name())
}

/// What others hold of a lease, by the number of the lending in which they found it.
#[derive(Default)]
struct Holders {
    lending: AtomicU64,
    held: Mutex<Vec<u64>>,
}

#[test]
fn a_lease_that_somebody_uses_is_not_lent_again() {
    in_many_orders(|| {
        let (pools, holders) = (pools(8, 8), Arc::new(Holders::default()));
        let account = pools.open();
        let name = borrow(&account).expect("there is room");
        let users: Vec<_> = (0..2)
            .map(|_| {
                let (pools, holders) = (Arc::clone(&pools), Arc::clone(&holders));
                thread::spawn(move || use_by_name(&pools, &holders, name))
            })
            .collect();
        for _ in 0..2 {
            account.give_back(&name.to_string()).expect("it is lent");
            let ended = holders.lending.fetch_add(1, Ordering::SeqCst);
            // Somebody's use of it leaves no choice but a fresh one.
            if borrow(&account) != Some(name) {
                break;
            }
            let held = holders.held.lock().expect("no panic");
            assert!(held.iter().all(|lending| *lending > ended), "lent while it was in use");
        }
        users.into_iter().for_each(|one| one.join().expect("no panic"));
        drop(account);
        assert_eq!(pools.counts(), LeaseCounts::default());
    });
}

fn use_by_name(pools: &Arc<Pools>, holders: &Holders, name: LeaseName) {
    let before = holders.lending.load(Ordering::SeqCst);
    let Some(lease) = pools.find(&name.to_string()) else { return };
    let input = lease.buffer(lease.locate(0, 4).expect("four bytes of a page"));
    drop(lease);
    // Found in the lending that was when it was asked for, or in a later one; only what is certain is written down.
    if holders.lending.load(Ordering::SeqCst) != before {
        return;
    }
    holders.held.lock().expect("no panic").push(before);
    thread::yield_now();
    assert_eq!(input.read_u32(0), Some(0));
    holders.held.lock().expect("no panic").retain(|lending| *lending != before);
    drop(input);
}

#[test]
fn a_session_that_ends_leaves_nothing_whatever_others_do() {
    in_many_orders(|| {
        let pools = pools(8, 8);
        let account = pools.open();
        let name = borrow(&account).expect("there is room");
        let threads = [
            {
                let pools = Arc::clone(&pools);
                thread::spawn(move || drop(pools.find(&name.to_string())))
            },
            {
                let account = Arc::clone(&account);
                // An output that a model asks a place for while the session ends.
                thread::spawn(move || {
                    if let Ok(borrowed) = account.borrow(PAGE) {
                        account.cancel(borrowed);
                    }
                })
            },
            {
                let (pools, account) = (Arc::clone(&pools), Arc::clone(&account));
                thread::spawn(move || {
                    let _ = account.give_back(&name.to_string());
                    pools.trim(0);
                })
            },
        ];
        account.close();
        assert!(account.borrow(PAGE).is_err());
        threads.into_iter().for_each(|one| one.join().expect("no panic"));
        assert!(pools.find(&name.to_string()).is_none());
        drop(account);
        assert_eq!(pools.counts(), LeaseCounts::default());
    });
}

#[test]
fn quotas_hold_and_no_byte_of_them_is_lost() {
    in_many_orders(|| {
        let pools = pools(3, 2);
        let sessions: Vec<_> = (0..3)
            .map(|_| {
                let pools = Arc::clone(&pools);
                thread::spawn(move || {
                    let account = pools.open();
                    for _ in 0..2 {
                        let name = borrow(&account);
                        assert!(pools.counts().bytes <= 3 * PAGE && account.used().1 <= 2 * PAGE);
                        if let Some(name) = name {
                            account.give_back(&name.to_string()).expect("it is lent");
                        }
                    }
                })
            })
            .collect();
        sessions.into_iter().for_each(|one| one.join().expect("no panic"));
        let account = pools.open();
        assert!(account.borrow(2 * PAGE).is_ok(), "all of it is free again");
        drop(account);
        assert_eq!(pools.counts().bytes, 0);
    });
}

#[test]
fn a_lease_is_forgotten_once_and_never_lent_afterwards() {
    in_many_orders(|| {
        let pools = pools(4, 4);
        let account = pools.open();
        let trimming = {
            let pools = Arc::clone(&pools);
            thread::spawn(move || {
                pools.trim(0);
                pools.trim(0);
            })
        };
        let (mut forgotten, mut fresh) = (Vec::new(), 0u64);
        for _ in 0..3 {
            let borrowed = account.borrow(PAGE).expect("there is room");
            fresh += u64::from(borrowed.descriptor.is_some());
            let name = borrowed.lease.name();
            drop(borrowed);
            // The session tells its client before the answer that lends.
            forgotten.extend(account.take_forgotten());
            assert!(!forgotten.contains(&name), "lent after it was forgotten");
            account.give_back(&name.to_string()).expect("it is lent");
        }
        trimming.join().expect("no panic");
        forgotten.extend(account.take_forgotten());
        let names: std::collections::HashSet<_> = forgotten.iter().collect();
        assert_eq!(names.len(), forgotten.len(), "told twice");
        assert_eq!(fresh, forgotten.len() as u64 + account.used().0, "each lease is there or was told of");
    });
}

#[test]
fn nothing_stays_lent_for_a_request_that_was_abandoned_but_what_the_client_keeps() {
    in_many_orders(|| {
        let pools = pools(8, 8);
        let account = pools.open();
        // What a response named before: the client has it.
        let kept = account.place(PAGE, 1).expect("there is room").name().to_string();
        let model = {
            let account = Arc::clone(&account);
            // Two outputs of the request: one that a response names, one whose response is lost before it was written.
            thread::spawn(move || {
                let named = account.place(PAGE, 1).map(|lease| lease.name().to_string());
                if let Ok(lost) = account.place(PAGE, 1) {
                    account.recall(&lost.name().to_string());
                }
                named
            })
        };
        let other = {
            let account = Arc::clone(&account);
            thread::spawn(move || account.place(PAGE, 2).expect("nobody gave it up").name().to_string())
        };
        account.abandon(1, std::slice::from_ref(&kept));
        let (named, other) = (model.join().expect("no panic"), other.join().expect("no panic"));
        assert!(account.find(&kept).is_some() && account.find(&other).is_some());
        assert!(account.place(PAGE, 1).is_err());
        if let Ok(named) = named {
            // It came back, and may be lent for the other request by now.
            assert!(named == other || account.find(&named).is_none());
            assert_eq!(account.give_back(&named).is_ok(), named == other);
        }
        drop(account);
        assert_eq!(pools.counts(), LeaseCounts::default());
    });
}

#[test]
fn the_client_gets_each_descriptor_once() {
    in_many_orders(|| {
        let pools = pools(8, 8);
        let account = pools.open();
        let names: Vec<_> = (0..2).map(|_| account.place(PAGE, 0).expect("there is room").name().to_string()).collect();
        let got = Arc::new(AtomicU64::new(0));
        let model = {
            let (account, got, name) = (Arc::clone(&account), Arc::clone(&got), names[0].clone());
            // The other response was lost: what it named comes back unseen, or as something the client has.
            thread::spawn(move || {
                account.recall(&name);
                got.fetch_add(
                    u64::from(account.borrow(PAGE).is_ok_and(|borrowed| borrowed.descriptor.is_some())),
                    Ordering::SeqCst,
                );
            })
        };
        let mut had = 0;
        for name in names.iter().chain(&names) {
            had += u64::from(account.fetch(name).is_ok_and(|borrowed| borrowed.descriptor.is_some()));
        }
        model.join().expect("no panic");
        let sent = had + got.load(Ordering::SeqCst);
        assert!((2..=3).contains(&sent), "{sent}: one for each lease the client can use, and none twice");
        drop(account);
        assert_eq!(pools.counts(), LeaseCounts::default());
    });
}
