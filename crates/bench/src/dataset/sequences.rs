//! Which request of which sequence comes next?

use nerite_client::{Parameter, Request};

use crate::options::Sequence;
use crate::random::Random;

/// Requests of a sequence, if neither the user nor the data says how many.
const LEN: usize = 20;

/// A request's place in its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequenced {
    pub(crate) id: u64,
    pub(crate) is_start: bool,
    pub(crate) is_end: bool,
}

impl Sequenced {
    /// This request as a part of the sequence.
    pub(crate) fn part_of(self, request: &Request) -> Request {
        let request = request.clone().parameter("sequence_id", Parameter::Int(self.id as i64));
        let request = request.parameter("sequence_start", Parameter::Bool(self.is_start));
        request.parameter("sequence_end", Parameter::Bool(self.is_end))
    }
}

/// All sequences of a measurement.
#[derive(Debug)]
pub(crate) struct Sequences {
    options: Sequence,
    /// The first step and the number of steps of each stream of the data.
    streams: Vec<(usize, usize)>,
    is_given: bool,
    random: Random,
    begun: u64,
}

/// The sequence under way of one worker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slot {
    id: u64,
    stream: usize,
    sent: usize,
    len: usize,
}

impl Sequences {
    pub(crate) fn new(options: Sequence, streams: Vec<(usize, usize)>, is_given: bool) -> Sequences {
        Sequences { options, streams, is_given, random: Random::new(1), begun: 0 }
    }

    /// The next request of a worker's sequence, or the first one of a new sequence: the step, and the place.
    pub(crate) fn next(&mut self, slot: &mut Slot) -> (usize, Sequenced) {
        if slot.sent == slot.len {
            *slot = self.begin();
        }
        let (first, steps) = self.streams.get(slot.stream).copied().unwrap_or((0, 1));
        let at = first + slot.sent % steps;
        slot.sent += 1;
        (at, Sequenced { id: slot.id, is_start: slot.sent == 1, is_end: slot.sent == slot.len })
    }

    /// The place of a request that is a sequence by itself.
    pub(crate) fn alone(&mut self) -> Sequenced {
        Sequenced { id: self.begin().id, is_start: true, is_end: true }
    }

    fn begin(&mut self) -> Slot {
        let Sequence { first_id, end_id, .. } = self.options;
        let ids = end_id.map_or(u64::MAX - first_id, |end| end - first_id);
        let stream = self.begun as usize % self.streams.len().max(1);
        let slot = Slot { id: first_id + self.begun % ids, stream, sent: 0, len: self.len(stream) };
        self.begun += 1;
        slot
    }

    fn len(&mut self, stream: usize) -> usize {
        if let (true, None) = (self.is_given, self.options.len) {
            return self.streams.get(stream).map_or(1, |(_, steps)| *steps);
        }
        let len = self.options.len.unwrap_or(LEN) as f64;
        let varied = len * (1.0 + self.options.variation / 100.0 * (2.0 * self.random.fraction() - 1.0));
        varied.round().max(1.0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_starts_and_ends_and_the_next_one_has_another_id() {
        let options = Sequence { len: Some(2), variation: 0.0, ..Sequence::default() };
        let mut all = Sequences::new(options, vec![(0, 1)], false);
        let mut slot = Slot::default();
        let found: Vec<_> = (0..3).map(|_| all.next(&mut slot)).collect();
        let place = |id, is_start, is_end| (0, Sequenced { id, is_start, is_end });
        assert_eq!(found, [place(1, true, false), place(1, false, true), place(2, true, false)]);
    }

    #[test]
    fn ids_begin_anew_at_their_end_and_given_data_has_the_length() {
        let options = Sequence { first_id: 5, end_id: Some(7), ..Sequence::default() };
        let mut all = Sequences::new(options, vec![(0, 1), (1, 2)], true);
        let mut slots = [Slot::default(); 3];
        let found: Vec<_> =
            slots.iter_mut().map(|slot| all.next(slot)).map(|(at, one)| (at, one.id, one.is_end)).collect();
        assert_eq!(found, [(0, 5, true), (1, 6, false), (0, 5, true)]);
    }
}
