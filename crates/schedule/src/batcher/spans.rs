//! In which order does a batch put its requests, so that few bytes are copied?
//!
//! Adjacent rows are read in place, without a copy. Requests arrive in any order. They are sorted by address if fewer bytes have to be copied then.

use super::queue::Waiting;

/// Puts the requests in the order in which most bytes are adjacent: their own order, or the order of the addresses of the largest input.
pub(super) fn arrange(batch: &mut Vec<Waiting>) {
    let Some(key) = batch.first().and_then(largest_input) else { return };
    if batch.len() < 2 || joined_bytes(batch.iter()) == all_bytes(batch) {
        return;
    }
    let mut by_address: Vec<&Waiting> = batch.iter().collect();
    by_address.sort_by_key(|one| one.arrival.spans.get(key).map(|span| (span.allocation, span.offset)));
    if joined_bytes(by_address.iter().copied()) > joined_bytes(batch.iter()) {
        *batch = by_address.into_iter().cloned().collect();
    }
}

fn largest_input(one: &Waiting) -> Option<usize> {
    one.arrival.spans.iter().enumerate().max_by_key(|(_, span)| span.len).map(|(at, _)| at)
}

fn all_bytes(batch: &[Waiting]) -> u64 {
    batch.iter().flat_map(|one| &one.arrival.spans).map(|span| span.len).sum()
}

/// The size of those inputs whose bytes are adjacent over the whole batch in this order. They are not copied.
fn joined_bytes<'a>(batch: impl Iterator<Item = &'a Waiting> + Clone) -> u64 {
    let Some(first) = batch.clone().next() else { return 0 };
    let spans = |at: usize| batch.clone().filter_map(move |one| one.arrival.spans.get(at));
    let joins = |at: &usize| {
        let all = batch.clone().count() == spans(*at).count();
        all && spans(*at).zip(spans(*at).skip(1)).all(|(one, next)| one.is_followed_by(next))
    };
    (0..first.arrival.spans.len()).filter(joins).map(|at| spans(at).map(|span| span.len).sum::<u64>()).sum()
}

#[cfg(test)]
mod tests {
    use super::super::queue::Queue;
    use super::*;
    use crate::event::{Arrival, Span, Ticket};

    /// Each request as its inputs' `(allocation, offset, len)`.
    #[track_caller]
    fn check(batch: &[&[(u64, u64, u64)]], expect: &[u64]) {
        let waiting = |(number, inputs): (usize, &&[(u64, u64, u64)])| {
            let spans = inputs.iter().map(|(allocation, offset, len)| Span {
                allocation: *allocation,
                offset: *offset,
                len: *len,
            });
            let spans = spans.collect();
            let mut queue = Queue::default();
            queue.push(Arrival { spans, ..Arrival::new(Ticket(number as u64), 1) }, 0);
            queue.take_first(1).remove(0)
        };
        let mut batch: Vec<Waiting> = batch.iter().enumerate().map(waiting).collect();
        arrange(&mut batch);
        let order: Vec<u64> = batch.iter().map(|one| one.arrival.ticket.0).collect();
        assert_eq!(order, expect);
    }

    #[test]
    fn requests_that_lie_end_to_end_are_put_in_the_order_of_their_addresses() {
        check(&[], &[]);
        check(&[&[(1, 0, 4)]], &[0]);
        check(&[&[(1, 0, 4)], &[(1, 4, 4)]], &[0, 1]);
        check(&[&[(1, 8, 4)], &[(1, 0, 8)], &[(1, 12, 4)]], &[1, 0, 2]);
        // The order in which the largest inputs are adjacent.
        check(&[&[(1, 4, 4), (2, 0, 64)], &[(1, 0, 4), (2, 64, 64)]], &[0, 1]);
        check(&[&[(1, 4, 4), (2, 64, 64)], &[(1, 0, 4), (2, 0, 64)]], &[1, 0]);
    }

    #[test]
    fn others_stay_as_they_came() {
        check(&[&[(1, 8, 4)], &[(1, 0, 4)]], &[0, 1]);
        check(&[&[(2, 4, 4)], &[(1, 0, 4)]], &[0, 1]);
        check(&[&[], &[]], &[0, 1]);
        check(&[&[(1, 4, 4)], &[]], &[0, 1]);
        // Two requests read the same bytes.
        check(&[&[(1, 4, 4)], &[(1, 0, 4)], &[(1, 0, 4)]], &[0, 1, 2]);
    }
}
