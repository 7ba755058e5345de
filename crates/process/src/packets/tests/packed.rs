//! Is a packed answer decoded correctly, and is an invalid one harmless?

use super::*;

#[test]
fn the_packed_answer_to_a_batch() {
    let mut read = Said::read(&packed_golden("executed")).unwrap();
    let [held, let_go, unmapped] =
        [read.held().collect(), read.let_go().collect(), read.unmapped().collect::<Vec<_>>()];
    assert_eq!((held, let_go, unmapped), (vec![6], vec![7, 8], vec![10]));
    assert!(read.lost().eq([(5, 4096)]) && read.error().is_none() && read.need().is_none());
    let [out, none] =
        [tensor("OUT", DataType::Fp32, &[2, 3], at(5, 128), 24), tensor("NONE", DataType::Uint8, &[0], None, 0)];
    let mut responses = read.take_responses().unwrap();
    let [first, second, third] = std::array::from_fn(|_| responses.next().unwrap());
    assert!(first.outputs().eq([&out, &none].map(as_read).map(Some)) && first.parameters().is_none());
    assert!(second.outputs().eq([Some(as_read(&out))]));
    assert_eq!(second.parameters().unwrap().get("key"), Some(&Parameter::String("value".into())));
    assert_eq!(third.error(), Some(Status::new(nerite_request::Code::NotFound, "gone")));
    assert!(responses.next().is_none() && read.take_responses().is_none());
}

/// A model's code can write any bytes to the channel. If a packed answer is cut or changed anywhere, reading it ends,
/// and it yields no output that is not in the packet.
#[test]
fn a_packed_answer_that_makes_no_sense_is_read_to_its_end() {
    let whole = packed_golden("executed");
    let count = |packet: &[u8]| {
        let mut read = Said::read(packet).ok()?;
        let responses = read.take_responses()?;
        Some(responses.map(|one| one.outputs().flatten().count()).collect::<Vec<_>>())
    };
    assert_eq!(count(&whole), Some(vec![2, 1, 0]));
    for len in 0..whole.len() {
        let found = count(&whole[..len]).unwrap_or_default();
        assert!(found.len() <= 3 && found.iter().sum::<usize>() <= 3, "{len}: {found:?}");
    }
    for at in 0..whole.len() {
        for value in [0, 1, 2, 0x7f, 0xff] {
            let mut changed = whole.clone();
            changed[at] = value;
            let found = count(&changed).unwrap_or_default();
            assert!(found.len() <= 3 && found.iter().sum::<usize>() <= 5, "{at} = {value}: {found:?}");
        }
    }
    // Counts larger than the packet allocate no memory.
    let huge = [2u32, u32::MAX, 0, 1, u32::MAX, u32::MAX, u32::MAX, u32::MAX].map(u32::to_le_bytes);
    assert_eq!(count(huge.as_flattened()), Some(vec![]));
}
