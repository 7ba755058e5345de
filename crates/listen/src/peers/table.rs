//! Which connection goes when a newcomer finds no place?
//!
//! The connections of a peer stand in a row. One that is looked at and in use goes to the row's end, so the front is mostly
//! where connections stand that nobody has used for long.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nerite_request::Peer;

use super::Seat;
use super::admit::{ConnectionLimits, Full, Taken, admit};
use crate::limits::{LOOKS_PER_PEER_MAX, PEERS_LOOKED_AT_MAX};

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: HashMap<Peer, BTreeMap<u64, Entry>>,
    /// The peers by the number of their connections.
    by_size: BTreeSet<(usize, Peer)>,
    all: usize,
    operators: usize,
    /// Connections that lost their places and are still open, in all and by peer.
    leaving: usize,
    leaving_by: HashMap<Peer, usize>,
    last: u64,
}

#[derive(Debug)]
struct Entry {
    seat: Arc<Seat>,
    /// Its requests when it was last looked at.
    requests: u32,
}

impl Table {
    /// A seat for one more connection of `payer`, and the one that lost its place for it.
    pub(super) fn admit(
        &mut self,
        limits: &ConnectionLimits,
        payer: Peer,
    ) -> Result<(Arc<Seat>, Option<Arc<Seat>>), Full> {
        let own = self.rows.get(&payer).map_or(0, BTreeMap::len);
        let taken = Taken { all: self.all, operators: self.operators, own };
        let shed = match admit(limits, taken, &payer) {
            Ok(()) => None,
            Err(full) => Some(self.shed(limits, taken, &payer, full)?),
        };
        Ok((self.insert(payer), shed))
    }

    /// Connections, and peers who have them.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.all, self.rows.len())
    }

    /// Connections that lost their places and are still open.
    pub(super) fn leaving(&self) -> usize {
        self.leaving
    }

    /// A connection has ended.
    pub(super) fn release(&mut self, seat: &Seat) {
        if seat.taken.load(Ordering::Relaxed) {
            self.leaving -= 1;
            if let Some(left) = self.leaving_by.get_mut(&seat.payer) {
                *left -= 1;
                if *left == 0 {
                    self.leaving_by.remove(&seat.payer);
                }
            }
        } else {
            self.remove(seat);
        }
    }

    /// Takes a seat out, if it is still in.
    fn remove(&mut self, seat: &Seat) {
        let number = seat.number.load(Ordering::Relaxed);
        let Some(row) = self.rows.get_mut(&seat.payer) else { return };
        // Numbers are never used twice, so a seat that lost its place finds nothing here.
        if row.remove(&number).is_none() {
            return;
        }
        let left = row.len();
        if left == 0 {
            self.rows.remove(&seat.payer);
        }
        self.resize(&seat.payer, left + 1, left);
    }

    fn insert(&mut self, payer: Peer) -> Arc<Seat> {
        self.last += 1;
        let seat = Arc::new(Seat::new(payer.clone(), self.last));
        let row = self.rows.entry(payer.clone()).or_default();
        row.insert(self.last, Entry { seat: Arc::clone(&seat), requests: 0 });
        let size = row.len();
        self.resize(&payer, size - 1, size);
        seat
    }

    fn resize(&mut self, payer: &Peer, from: usize, to: usize) {
        self.by_size.remove(&(from, payer.clone()));
        if to > 0 {
            self.by_size.insert((to, payer.clone()));
        }
        self.all = self.all + to - from;
        if payer.is_operator() {
            self.operators = self.operators + to - from;
        }
    }

    /// Takes an idle connection out, so that `payer` may have its place. There was none before for the reason `full`.
    fn shed(
        &mut self,
        limits: &ConnectionLimits,
        taken: Taken,
        payer: &Peer,
        mut full: Full,
    ) -> Result<Arc<Seat>, Full> {
        let of_whom: Vec<Peer> = match &mut full {
            Full::Peer { closing, .. } => {
                let leaving = self.leaving_by.get(payer).copied().unwrap_or_default();
                if leaving >= limits.leaving_per_peer_max() {
                    // Else one peer could have everybody wait until its connections are closed.
                    *closing = leaving;
                    return Err(full);
                }
                vec![payer.clone()]
            }
            Full::All { .. } => {
                // A place of the other side may not help: each has its reserve.
                let helps = |whose: &&Peer| admit(limits, without(taken, payer, whose), payer).is_ok();
                let largest_first = self.by_size.iter().rev().map(|(_, whose)| whose);
                largest_first.filter(helps).take(PEERS_LOOKED_AT_MAX).cloned().collect()
            }
        };
        let seat = of_whom.iter().find_map(|whose| self.idle_of(whose)).ok_or(full)?;
        self.remove(&seat);
        self.leaving += 1;
        *self.leaving_by.entry(seat.payer.clone()).or_default() += 1;
        seat.at_once.store(self.leaving > limits.lingering_max(), Ordering::Relaxed);
        seat.taken.store(true, Ordering::Release);
        Ok(seat)
    }

    /// The first idle connection in a peer's row, before all one that was not used since the last look.
    fn idle_of(&mut self, whose: &Peer) -> Option<Arc<Seat>> {
        let row = self.rows.get_mut(whose)?;
        let mut used = Vec::new();
        let mut unused = None;
        for (number, entry) in row.iter_mut().take(LOOKS_PER_PEER_MAX) {
            let now = entry.seat.progress.snapshot();
            if entry.seat.progress.is_idle() && now.requests == entry.requests {
                unused = Some(Arc::clone(&entry.seat));
                break;
            }
            entry.requests = now.requests;
            used.push(*number);
        }
        let second_choice =
            || used.iter().filter_map(|number| row.get(number)).find(|entry| entry.seat.progress.is_idle());
        let found = unused.or_else(|| second_choice().map(|entry| Arc::clone(&entry.seat)));
        for number in used {
            let Some(entry) = row.remove(&number) else { continue };
            self.last += 1;
            entry.seat.number.store(self.last, Ordering::Relaxed);
            row.insert(self.last, entry);
        }
        found
    }
}

/// What `payer` would find if `whose` had one connection less.
fn without(taken: Taken, payer: &Peer, whose: &Peer) -> Taken {
    Taken {
        all: taken.all - 1,
        operators: taken.operators - usize::from(whose.is_operator()),
        own: taken.own - usize::from(whose == payer),
    }
}
