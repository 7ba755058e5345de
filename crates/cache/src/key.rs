//! When are two requests the same for the response cache?
//!
//! A key is a cryptographic hash, so no client can find two requests with the same key. Each part is preceded by its length or number, so the parts
//! cannot be confused.

use nerite_memory::{Buffer, Extent};
use nerite_request::{Parameter, Parameters, Sequence, SequenceId, SequenceOwner};
use nerite_tensor::Tensor;

use crate::limits::CHUNK_BYTES;

/// The key of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of the same request among those of this client only.
    pub fn of_client(&self, client: &str) -> Key {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0).update(client.as_bytes());
        Key(hasher.finalize().into())
    }
}

/// Makes the key of a request from its parts.
#[derive(Debug)]
pub struct KeyWriter(blake3::Hasher);

impl KeyWriter {
    /// The writer for a request to the model version of this generation.
    pub fn new(generation: u64) -> KeyWriter {
        let mut key = KeyWriter(blake3::Hasher::new());
        key.number(generation);
        key
    }

    /// Adds a number.
    pub fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    /// Adds a text.
    pub fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }

    /// Adds an input whose bytes lie on this host. `goes_on` is called from time to time. Once it returns false, the key must not be used.
    pub fn input(&mut self, input: &Tensor, goes_on: &dyn Fn() -> bool) {
        self.text(&input.name);
        self.text(input.datatype.name());
        self.number(input.shape.len() as u64);
        input.shape.iter().for_each(|dim| self.number(*dim as u64));
        self.number(input.data.len() as u64);
        self.bytes(&input.data, goes_on);
    }

    /// Adds the parameters of a request. Their order does not matter.
    pub fn parameters(&mut self, parameters: &Parameters) {
        let mut all: Vec<_> = parameters.iter().collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        self.number(all.len() as u64);
        for (name, value) in all {
            self.text(name);
            match value {
                Parameter::Bool(value) => self.numbers(0, u64::from(*value)),
                Parameter::Int(value) => self.numbers(1, *value as u64),
                Parameter::Double(value) => self.numbers(2, value.to_bits()),
                Parameter::String(value) => {
                    self.number(3);
                    self.text(value);
                }
            }
        }
    }

    /// Adds the sequence that a request belongs to: models without sequences may read it. The same id of two owners means two sequences.
    pub fn sequence(&mut self, sequence: &Sequence, owner: SequenceOwner) {
        match &sequence.id {
            SequenceId::None => self.number(0),
            SequenceId::Number(id) => self.numbers(1, *id),
            SequenceId::Text(id) => {
                self.number(2);
                self.text(id);
            }
        }
        if sequence.id != SequenceId::None {
            self.number(owner.number());
        }
        self.numbers(u64::from(sequence.start), u64::from(sequence.end));
    }

    /// The key of all that was added.
    pub fn finish(&self) -> Key {
        Key(self.0.finalize().into())
    }

    fn numbers(&mut self, one: u64, next: u64) {
        self.number(one);
        self.number(next);
    }

    fn bytes(&mut self, data: &Buffer, goes_on: &dyn Fn() -> bool) {
        // A hasher must not see bytes that change while it reads them: those of shared memory are copied first.
        let mut copy = vec![0; CHUNK_BYTES.min(data.len())];
        let mut at = 0;
        while at < data.len() && goes_on() {
            let len = CHUNK_BYTES.min(data.len() - at);
            let chunk = data.slice(Extent::new(at, len, data.len()).expect("it ends within the buffer"));
            if let Some(bytes) = chunk.private_bytes() {
                self.0.update(bytes);
            } else {
                let copied = &mut copy[..len];
                chunk.cells::<u8>().expect("bytes of this host").copy_to(copied);
                self.0.update(copied);
            }
            at += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use nerite_request::{Peer, SequenceScope};
    use nerite_tensor::DataType;

    use super::*;

    fn input(name: &str, datatype: DataType, shape: &[i64], data: &[u8]) -> Tensor {
        Tensor { name: name.into(), datatype, shape: shape.iter().copied().collect(), data: data.to_vec().into() }
    }

    fn key(inputs: &[Tensor]) -> Key {
        let mut key = KeyWriter::new(1);
        for input in inputs {
            key.input(input, &|| true);
        }
        key.finish()
    }

    #[track_caller]
    fn check(one: &[Tensor], other: &[Tensor], is_same: bool) {
        assert_eq!(key(one) == key(other), is_same, "{one:?} and {other:?}");
    }

    #[test]
    fn every_part_of_an_input_counts() {
        let a = || input("A", DataType::Int8, &[2, 1], &[1, 2]);
        check(&[a()], &[a()], true);
        check(&[a()], &[input("B", DataType::Int8, &[2, 1], &[1, 2])], false);
        check(&[a()], &[input("A", DataType::Uint8, &[2, 1], &[1, 2])], false);
        check(&[a()], &[input("A", DataType::Int8, &[1, 2], &[1, 2])], false);
        check(&[a()], &[input("A", DataType::Int8, &[2], &[1, 2])], false);
        check(&[a()], &[input("A", DataType::Int8, &[2, 1], &[1, 3])], false);
    }

    #[test]
    fn what_ends_one_part_cannot_begin_the_next() {
        let bytes = |name: &str, data: &[u8]| input(name, DataType::Bytes, &[1], data);
        check(&[bytes("A", b"xB"), bytes("C", b"")], &[bytes("A", b"x"), bytes("BC", b"")], false);
        check(&[bytes("A", b"x")], &[bytes("A", b"x"), bytes("", b"")], false);
        // An input whose bytes equal the hashed form of another input.
        let (one, next) = (bytes("A", b"x"), bytes("B", b"y"));
        let mut forged = b"x".to_vec();
        for part in [&1_u64.to_le_bytes()[..], b"B", &5_u64.to_le_bytes(), b"BYTES", &1_u64.to_le_bytes()] {
            forged.extend_from_slice(part);
        }
        forged.extend_from_slice(&1_u64.to_le_bytes());
        forged.extend_from_slice(&1_u64.to_le_bytes());
        forged.push(b'y');
        check(&[one, next], &[bytes("A", &forged)], false);
    }

    #[test]
    fn long_inputs_are_read_to_the_end() {
        let long = |last: u8| {
            let mut data = vec![7; 3 * CHUNK_BYTES + 5];
            data[3 * CHUNK_BYTES + 4] = last;
            input("A", DataType::Uint8, &[1], &data)
        };
        check(&[long(7)], &[long(7)], true);
        check(&[long(7)], &[long(8)], false);
    }

    #[test]
    fn who_asks_counts_where_it_must() {
        let key = KeyWriter::new(1).finish();
        assert_ne!(key, KeyWriter::new(2).finish());
        assert_ne!(key, key.of_client("user 1"));
        assert_ne!(key.of_client("user 1"), key.of_client("user 2"));
        assert_eq!(key.of_client("user 1"), key.of_client("user 1"));
    }

    #[test]
    fn the_owner_of_a_sequence_counts_where_there_is_one() {
        let of = |id: SequenceId, peer: Peer| {
            let mut key = KeyWriter::new(1);
            key.sequence(&Sequence { id, ..Sequence::default() }, SequenceScope::User.owner_of(&peer));
            key.finish()
        };
        let (one, other) = (|| Peer::User { uid: 4_000_000_001 }, || Peer::User { uid: 4_000_000_002 });
        for id in [SequenceId::Number(7), SequenceId::Text("7".into())] {
            assert_eq!(of(id.clone(), one()), of(id.clone(), one()));
            assert_ne!(of(id.clone(), one()), of(id, other()));
        }
        assert_eq!(of(SequenceId::None, one()), of(SequenceId::None, other()));
    }

    #[test]
    fn parameters_count_whatever_their_order() {
        let of = |list: &[(&str, Parameter)]| {
            let (mut parameters, mut key) = (Parameters::new(), KeyWriter::new(1));
            for (name, value) in list {
                parameters.insert(*name, value.clone());
            }
            key.parameters(&parameters);
            key.finish()
        };
        let (a, b) = (("a", Parameter::Int(1)), ("b", Parameter::String("1".into())));
        assert_eq!(of(&[a.clone(), b.clone()]), of(&[b.clone(), a.clone()]));
        assert_ne!(of(std::slice::from_ref(&a)), of(&[("a", Parameter::Bool(true))]));
        assert_ne!(of(&[]), of(&[a]));
    }
}
