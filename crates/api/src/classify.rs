//! Which classes of an output have the highest values?

use std::cmp::Reverse;
use std::fmt::{Display, Write as _};

use nerite_memory::{Buffer, GrowableBuffer, MemoryReservation, NoMemory};
use nerite_request::{Output, Status};
use nerite_tensor::{DataType, Shape, strings};

/// Outputs with more elements than this are not classified for a client.
const ELEMENTS_MAX: usize = 1_000_000;
/// The bytes of an element while the best are selected: 8 for its key, 4 for its index, and 4 unused.
const ELEMENT_BYTES: usize = 16;
/// For fewer elements no memory is reserved.
const RESERVED_ELEMENTS_MIN: usize = 64 << 10;
/// The work of one class that is sorted and written, as a number of elements that are only compared.
const CLASS_WORK: usize = 64;

/// Turns an output into its `classes` best values per row, as Triton writes them: `value:index` or `value:index:label`.
/// The result is a BYTES tensor of shape `[rows, k]`, or `[k]` for a model without batch dimension.
pub fn classify(output: &Output, classes: u64, batching: bool, labels: &[String]) -> Result<Output, Status> {
    let plan = Plan::of(output, classes, batching)?;
    let short = |short: NoMemory| Status::no_memory(format_args!("the classes of output '{}'", output.name), short);
    let own = output.data.try_private(nerite_memory::Reason::Convert).map_err(short)?;
    let bytes = own.private_bytes().ok_or_else(|| unsupported(output))?;
    let data = (plan.write)(&plan, bytes, labels).map_err(short)?.ok_or_else(|| unsupported(output))?;
    let shape: Shape = batching.then_some(plan.rows as i64).into_iter().chain([plan.kept as i64]).collect();
    let name = output.name.clone();
    Ok(Output { index: output.index, name, datatype: DataType::Bytes, shape, data, placed: false })
}

/// How much work [`classify`] is, about in the unit of [`nerite_request::limits::INLINE_WORK_BYTES_MAX`]. 0 if it refuses.
pub fn work(output: &Output, classes: u64, batching: bool) -> usize {
    let work = |plan: Plan| plan.rows * (plan.per_row + plan.kept * CLASS_WORK);
    Plan::of(output, classes, batching).map_or(0, work)
}

/// Writes the classes of an output with these bytes and labels.
type Write = fn(&Plan, &[u8], &[String]) -> Result<Option<Buffer>, NoMemory>;

/// The rows of an output, and what is kept of each.
struct Plan {
    rows: usize,
    /// Elements of a row.
    per_row: usize,
    /// Classes of a row.
    kept: usize,
    /// [`Plan::write`] for the type of the elements.
    write: Write,
}

fn unsupported(output: &Output) -> Status {
    Status::invalid(format!("class result not available for output due to unsupported type '{}'", output.datatype))
}

impl Plan {
    fn of(output: &Output, classes: u64, batching: bool) -> Result<Plan, Status> {
        let (size, write): (usize, Write) = match output.datatype {
            DataType::Uint8 => (1, Plan::write::<u8>),
            DataType::Uint16 => (2, Plan::write::<u16>),
            DataType::Uint32 => (4, Plan::write::<u32>),
            DataType::Uint64 => (8, Plan::write::<u64>),
            DataType::Int8 => (1, Plan::write::<i8>),
            DataType::Int16 => (2, Plan::write::<i16>),
            DataType::Int32 => (4, Plan::write::<i32>),
            DataType::Int64 => (8, Plan::write::<i64>),
            DataType::Fp32 => (4, Plan::write::<f32>),
            DataType::Fp64 => (8, Plan::write::<f64>),
            DataType::Bool | DataType::Fp16 | DataType::Bf16 | DataType::Bytes => return Err(unsupported(output)),
        };
        let count = output.data.len() / size;
        if count > ELEMENTS_MAX {
            return Err(Status::invalid("classification output tensor too large"));
        }
        let rows = if batching { output.shape.first().copied().unwrap_or(1).max(0) as usize } else { 1 };
        let per_row = count.checked_div(rows).unwrap_or(0);
        let kept = per_row.min(usize::try_from(classes).unwrap_or(usize::MAX));
        Ok(Plan { rows, per_row, kept, write })
    }

    /// Writes the best classes of each row as elements of a BYTES tensor. `None` if a label is too long for an element.
    fn write<N: Number>(&self, bytes: &[u8], labels: &[String]) -> Result<Option<Buffer>, NoMemory> {
        let mut all = GrowableBuffer::with_capacity(0)?;
        if self.kept == 0 {
            return Ok(Some(all.finish()));
        }
        let is_large = self.kept > 1 && self.per_row >= RESERVED_ELEMENTS_MIN;
        let reserved =
            if is_large { MemoryReservation::take(self.per_row * ELEMENT_BYTES)? } else { MemoryReservation::none() };
        let (mut order, mut text) = (Vec::new(), String::new());
        for row in bytes.chunks_exact(self.per_row * size_of::<N>()).take(self.rows) {
            let numbers = row.chunks_exact(size_of::<N>());
            select(numbers.clone().map(|number| N::read(number).key()), self.kept, &mut order);
            for (_, class) in &order {
                let class = *class as usize;
                text.clear();
                numbers.clone().nth(class).map(N::read).into_iter().for_each(|number| number.write(&mut text));
                let _ = write!(text, ":{class}");
                if let Some(label) = labels.get(class).filter(|label| !label.is_empty()) {
                    text.extend([":", label]);
                }
                let Some(length) = strings::length_word(text.as_bytes()) else { return Ok(None) };
                all.push(&length)?;
                all.push(text.as_bytes())?;
            }
        }
        drop(reserved);
        Ok(Some(all.finish()))
    }
}

/// The largest `kept` of these keys, the largest first, each with its index. Of equal keys, the one with the lower index is first. They are put into `order`,
/// whose memory is used again.
fn select(keys: impl Iterator<Item = u64>, kept: usize, order: &mut Vec<(Reverse<u64>, u32)>) {
    order.clear();
    let all = keys.map(Reverse).zip(0..);
    if kept == 1 {
        return order.extend(all.min());
    }
    order.extend(all);
    if (1..order.len()).contains(&kept) {
        order.select_nth_unstable(kept - 1);
    }
    order.truncate(kept);
    order.sort_unstable();
}

/// A number that is compared by a key, and printed.
trait Number: Copy {
    /// Reads it from as many bytes as it has.
    fn read(bytes: &[u8]) -> Self;
    /// A larger number has a larger key. Both zeros have the same. NaN is beyond the infinity of its sign.
    fn key(self) -> u64;
    fn write(self, text: &mut String);
}

const SIGN: u64 = 1 << 63;

macro_rules! number {
    ($($type:ty)*, $key:expr, $write:expr) => {$(
        impl Number for $type {
            fn read(bytes: &[u8]) -> $type {
                <$type>::from_le_bytes(bytes.try_into().expect("the caller divides the bytes by the size of the type"))
            }

            fn key(self) -> u64 {
                $key(self.into())
            }

            fn write(self, text: &mut String) {
                $write(self.into(), text);
            }
        }
    )*};
}

number!(u8 u16 u32 u64, |value: u64| value, write_whole::<u64>);
number!(i8 i16 i32 i64, |value: i64| value.cast_unsigned() ^ SIGN, write_whole::<i64>);
number!(f32 f64, float_key, write_float);

fn float_key(value: f64) -> u64 {
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    // The bits of negative numbers grow with their distance from zero.
    if bits & SIGN == 0 { bits | SIGN } else { !bits }
}

fn write_whole<T: Display>(value: T, text: &mut String) {
    let _ = write!(text, "{value}");
}

/// Writes the number as C's printf does, which Triton uses.
fn write_float(value: f64, text: &mut String) {
    if value.is_nan() {
        text.push_str(if value.is_sign_negative() { "-nan" } else { "nan" });
    } else {
        let _ = write!(text, "{value:.6}");
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

    /// As Triton selects: a stable sort from the largest value on.
    fn sorted(values: &[f32]) -> Vec<usize> {
        let compare = |a: f64, b: f64| a.partial_cmp(&b).unwrap_or_else(|| a.total_cmp(&b));
        let mut order: Vec<_> = (0..values.len()).collect();
        order.sort_by(|a, b| compare(values[*b].into(), values[*a].into()));
        order
    }

    #[test]
    fn the_selected_classes_are_the_first_ones_of_a_stable_sort() {
        const SOME: [f32; 9] = [0.0, -0.0, 1.5, 1.5, -3.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize
        };
        for count in [1, 2, 3, 17, 64] {
            let values: Vec<f32> = (0..count).map(|_| SOME[random() % SOME.len()]).collect();
            let expected = sorted(&values);
            let mut order = Vec::new();
            for kept in 0..=count {
                select(values.iter().map(|value| value.key()), kept, &mut order);
                let found: Vec<_> = order.iter().map(|(_, class)| *class as usize).collect();
                assert_eq!(found, expected[..kept], "{kept} of {values:?}");
            }
        }
    }

    #[test]
    fn keys_grow_with_the_numbers() {
        assert!([i64::MIN, -1, 0, 1, i64::MAX].map(Number::key).is_sorted());
        assert!([i8::MIN, -1, 0, i8::MAX].map(Number::key).is_sorted());
        assert!([0, 1, u64::MAX].map(Number::key).is_sorted());
        assert!(
            [-f64::NAN, f64::NEG_INFINITY, -1.0, 0.0, 1e-300, 1.0, f64::INFINITY, f64::NAN]
                .map(Number::key)
                .is_sorted()
        );
        assert_eq!((-0.0f32).key(), 0.0f32.key());
    }

    #[track_caller]
    fn check_work(datatype: DataType, bytes: usize, shape: &[i64], classes: u64, expected: usize) {
        let (data, shape) = (Buffer::from(vec![0u8; bytes]), Shape::from_slice(shape));
        let output = Output { index: 0, name: "o".into(), datatype, shape, data, placed: false };
        assert_eq!(work(&output, classes, true), expected);
    }

    #[test]
    fn the_work_is_known_before_it_is_done() {
        check_work(DataType::Fp32, 4000, &[1, 1000], 5, 1000 + 5 * CLASS_WORK);
        check_work(DataType::Uint8, 1000, &[10, 100], 1, 1000 + 10 * CLASS_WORK);
        check_work(DataType::Fp64, 8000, &[1, 1000], u64::MAX, 1000 + 1000 * CLASS_WORK);
        check_work(DataType::Fp32, 0, &[i64::MAX, 0], 1, 0);
        check_work(DataType::Uint8, ELEMENTS_MAX + 1, &[1, 1_000_001], 1, 0);
        check_work(DataType::Bool, 9, &[1, 9], 1, 0);
    }
}
