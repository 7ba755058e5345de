//! Which classes of an output have the highest values?

use nerite_memory::{GrowableBuffer, MemoryReservation, NoMemory};
use nerite_request::{Output, Status};
use nerite_tensor::{DataType, Shape, strings};

/// Outputs with more elements than this are not sorted for a client.
const ELEMENTS_MAX: usize = 1_000_000;
/// The bytes of an element during the sort: 8 for its value, 8 for its index, and 8 for the buffer of the sort, which is half as long as the list.
const ELEMENT_BYTES: usize = 24;
/// For fewer elements no memory is reserved.
const RESERVED_ELEMENTS_MIN: usize = 64 << 10;

/// Turns an output into its `classes` best values per row, as Triton writes them: `value:index` or `value:index:label`.
/// The result is a BYTES tensor of shape `[rows, k]`, or `[k]` for a model without batch dimension.
pub fn classify(output: &Output, classes: u64, batching: bool, labels: &[String]) -> Result<Output, Status> {
    let refused = || {
        Status::invalid(format!("class result not available for output due to unsupported type '{}'", output.datatype))
    };
    let short = |short: NoMemory| Status::no_memory(format_args!("the classes of output '{}'", output.name), short);
    let size = output.datatype.size().filter(|_| Values::sorts(output.datatype)).ok_or_else(refused)?;
    let count = output.data.len() / size;
    if count > ELEMENTS_MAX {
        return Err(Status::invalid("classification output tensor too large"));
    }
    let reserved = if count < RESERVED_ELEMENTS_MIN {
        Ok(MemoryReservation::none())
    } else {
        MemoryReservation::take(count * ELEMENT_BYTES)
    };
    let _reservation = reserved.map_err(short)?;
    let values = Values::of(output).map_err(short)?.ok_or_else(refused)?;
    let rows = if batching { output.shape.first().copied().unwrap_or(1).max(0) as usize } else { 1 };
    let per_row = count.checked_div(rows).unwrap_or(0);
    let kept = per_row.min(usize::try_from(classes).unwrap_or(usize::MAX));
    let mut bytes = GrowableBuffer::with_capacity(0).map_err(short)?;
    for row in 0..rows {
        let mut order: Vec<usize> = (row * per_row..(row + 1) * per_row).collect();
        order.sort_by(|a, b| values.compare(*b, *a));
        for at in order.into_iter().take(kept) {
            let class = at - row * per_row;
            let label = labels
                .get(class)
                .filter(|label| !label.is_empty())
                .map(|label| format!(":{label}"))
                .unwrap_or_default();
            let text = format!("{}:{class}{label}", values.show(at));
            let length = strings::length_word(text.as_bytes()).ok_or_else(refused)?;
            bytes.push(&length).and_then(|()| bytes.push(text.as_bytes())).map_err(short)?;
        }
    }
    let shape: Shape = batching.then_some(rows as i64).into_iter().chain([kept as i64]).collect();
    let name = output.name.clone();
    Ok(Output { index: output.index, name, datatype: DataType::Bytes, shape, data: bytes.finish(), placed: false })
}

/// Values that can be sorted and printed. They are read once, because a client may be able to change the memory.
enum Values {
    Signed(Vec<i64>),
    Unsigned(Vec<u64>),
    Float(Vec<f64>),
}

impl Values {
    /// Whether values of this datatype can be sorted.
    fn sorts(datatype: DataType) -> bool {
        !matches!(datatype, DataType::Bool | DataType::Fp16 | DataType::Bf16 | DataType::Bytes)
    }

    fn of(output: &Output) -> Result<Option<Values>, NoMemory> {
        let own = output.data.try_private(nerite_memory::Reason::Convert)?;
        Ok(own.private_bytes().and_then(|bytes| Values::read(output, bytes)))
    }

    fn read(output: &Output, bytes: &[u8]) -> Option<Values> {
        macro_rules! read {
            ($t:ty, $as:ty) => {
                bytes
                    .chunks_exact(size_of::<$t>())
                    .filter_map(|word| Some(<$t>::from_le_bytes(word.try_into().ok()?) as $as))
                    .collect()
            };
        }
        Some(match output.datatype {
            DataType::Uint8 => Values::Unsigned(read!(u8, u64)),
            DataType::Uint16 => Values::Unsigned(read!(u16, u64)),
            DataType::Uint32 => Values::Unsigned(read!(u32, u64)),
            DataType::Uint64 => Values::Unsigned(read!(u64, u64)),
            DataType::Int8 => Values::Signed(read!(i8, i64)),
            DataType::Int16 => Values::Signed(read!(i16, i64)),
            DataType::Int32 => Values::Signed(read!(i32, i64)),
            DataType::Int64 => Values::Signed(read!(i64, i64)),
            DataType::Fp32 => Values::Float(read!(f32, f64)),
            DataType::Fp64 => Values::Float(read!(f64, f64)),
            DataType::Bool | DataType::Fp16 | DataType::Bf16 | DataType::Bytes => return None,
        })
    }

    fn compare(&self, a: usize, b: usize) -> std::cmp::Ordering {
        match self {
            Values::Signed(v) => v[a].cmp(&v[b]),
            Values::Unsigned(v) => v[a].cmp(&v[b]),
            // Both zeros are equal. NaN has a place in the total order only.
            Values::Float(v) => v[a].partial_cmp(&v[b]).unwrap_or_else(|| v[a].total_cmp(&v[b])),
        }
    }

    fn show(&self, at: usize) -> String {
        match self {
            Values::Signed(v) => v[at].to_string(),
            Values::Unsigned(v) => v[at].to_string(),
            // As C's printf writes them, which Triton uses.
            Values::Float(v) if v[at].is_nan() => if v[at].is_sign_negative() { "-nan" } else { "nan" }.to_owned(),
            Values::Float(v) => format!("{:.6}", v[at]),
        }
    }
}

#[cfg(test)]
mod tests {
    use nerite_memory::Buffer;

    use super::*;

    #[track_caller]
    fn check(values: &[f32], shape: &[i64], classes: u64, labels: &[&str], expected: &[&str]) {
        let data = Buffer::from(values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
        let shape = Shape::from_slice(shape);
        let output = Output { index: 0, name: "o".into(), datatype: DataType::Fp32, shape, data, placed: false };
        let labels: Vec<String> = labels.iter().map(|l| (*l).to_owned()).collect();
        let result = classify(&output, classes, true, &labels).expect("floats can be sorted");
        let found = strings::extents(&result.data, expected.len() as u64).expect("as many as expected");
        let bytes = result.data.private_bytes().expect("made here");
        let texts: Vec<_> = found.iter().map(|e| String::from_utf8_lossy(&bytes[e.offset()..e.end()])).collect();
        assert_eq!(texts, expected);
    }

    #[test]
    fn the_best_classes_of_each_row_come_first() {
        check(&[0.1, 0.7, 0.2], &[1, 3], 2, &[], &["0.700000:1", "0.200000:2"]);
        check(&[1.0, 2.0, 4.0, 3.0], &[2, 2], 1, &["a", "b"], &["2.000000:1:b", "4.000000:0:a"]);
        check(&[1.0, 2.0], &[1, 2], 9, &["a"], &["2.000000:1", "1.000000:0:a"]);
        check(&[-0.0, 0.0, -1.0], &[1, 3], 2, &[], &["-0.000000:0", "0.000000:1"]);
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN];
        check(&odd, &[1, 4], 4, &[], &["nan:0", "inf:1", "-inf:2", "-nan:3"]);
        check(&[1.0, 2.0], &[1, 2], 9, &["a", ""], &["2.000000:1", "1.000000:0:a"]);
    }
}
