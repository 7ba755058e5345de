//! How are a request's numbers passed to the engine, and its results to a response, with the same values?

use nerite_backend::Work;
use nerite_memory::{Buffer, Number, Reason, count_copied};
use nerite_request::{Status, Wanted};
use nerite_tensor::{DataType, Tensor, show_shape};
use rten::{Value, ValueOrView, ValueView};
use smallvec::SmallVec;

use crate::audit::Extremes;
use crate::spares::{BYTES_MAX, Spare, Spares};

/// The cure in each error about something that this engine cannot do.
pub const CURE: &str = "install ONNX Runtime (pip install onnxruntime) or name its library with --onnxruntime-library";

/// Whether the engine can read and make tensors of this datatype.
pub fn is_spoken(datatype: DataType) -> bool {
    use DataType::{Bool, Fp32, Fp64, Int8, Int32, Int64, Uint8};
    matches!(datatype, Fp32 | Int32 | Int8 | Uint8 | Int64 | Fp64 | Bool)
}

/// Whether FP32 holds this value exactly. NaN stays NaN.
pub fn is_fp32(value: f64) -> bool {
    value.is_nan() || f64::from(value as f32).to_bits() == value.to_bits()
}

/// The tensor for the engine, in `shape`: a view of its numbers if the engine knows their type, else a copy. `tensor`
/// is on this host, aligned, and nobody else can write it.
pub fn to_engine<'a>(tensor: &'a Tensor, shape: &[i64], spares: &mut Spares) -> Result<ValueOrView<'a>, Status> {
    let dims = dims(shape);
    match tensor.datatype {
        DataType::Fp32 => view::<f32>(tensor, &dims),
        DataType::Int32 => view::<i32>(tensor, &dims),
        DataType::Int8 => view::<i8>(tensor, &dims),
        DataType::Uint8 => view::<u8>(tensor, &dims),
        DataType::Int64 => owned(tensor, &dims, spares, narrow),
        DataType::Fp64 => owned(tensor, &dims, spares, round),
        DataType::Bool => owned(tensor, &dims, spares, |_, byte: u8| Ok(i32::from(byte != 0))),
        other => {
            Err(Status::unsupported(format!("input '{}' is {other}, which the engine lacks; {CURE}", tensor.name)))
        }
    }
}

/// Adds a result of the engine as the output with this index, and of this datatype. Its vector is kept if the output does not need it.
pub fn from_engine(
    work: &mut Work<'_>,
    index: usize,
    datatype: DataType,
    shape: &[i64],
    value: Value,
    spares: &mut Spares,
) -> Result<(), Status> {
    match (datatype, value) {
        (DataType::Fp32, Value::FloatTensor(t)) => {
            work.put_numbers(index, datatype, shape, t.into_data())?.into_iter().for_each(|copied| spares.keep(copied));
        }
        (DataType::Int32, Value::Int32Tensor(t)) => {
            work.put_numbers(index, datatype, shape, t.into_data())?.into_iter().for_each(|copied| spares.keep(copied));
        }
        (DataType::Int8, Value::Int8Tensor(t)) => drop(work.put_numbers(index, datatype, shape, t.into_data())?),
        (DataType::Uint8, Value::UInt8Tensor(t)) => drop(work.put_numbers(index, datatype, shape, t.into_data())?),
        (DataType::Int64, Value::Int32Tensor(t)) => {
            spares.keep(widen(work, index, datatype, shape, t.into_data(), i64::from)?);
        }
        (DataType::Fp64, Value::FloatTensor(t)) => {
            spares.keep(widen(work, index, datatype, shape, t.into_data(), f64::from)?);
        }
        (DataType::Bool, Value::Int32Tensor(t)) => {
            spares.keep(widen(work, index, datatype, shape, t.into_data(), |truth: i32| u8::from(truth != 0))?);
        }
        (_, other) => {
            let name = work.wanted().find(index).map_or("", |(_, Wanted { name, .. })| name);
            return Err(Status::internal(format!(
                "output '{name}' is declared as {datatype}, the engine made {}",
                other.dtype()
            )));
        }
    }
    Ok(())
}

/// Whether [`copied`] copies this input, which others can write.
pub fn is_copied_as_value(input: &Tensor) -> bool {
    matches!(input.datatype, DataType::Fp32 | DataType::Int32)
        && input.data.len() <= BYTES_MAX
        && input.data.cells::<u32>().is_some()
}

/// A copy of an input of [`is_copied_as_value`], for the engine.
pub fn copied(tensor: &Tensor, spares: &mut Spares) -> Result<Value, Status> {
    match tensor.datatype {
        DataType::Fp32 => copied_numbers::<f32>(tensor, spares),
        DataType::Int32 => copied_numbers::<i32>(tensor, spares),
        _ => Err(misfit(tensor)),
    }
}

fn copied_numbers<T: Spare>(tensor: &Tensor, spares: &mut Spares) -> Result<Value, Status>
where
    Value: From<rten_tensor::Tensor<T>>,
{
    let cells = tensor.data.cells::<T>().ok_or_else(|| misfit(tensor))?;
    let mut numbers = spares.take(cells.len());
    numbers.extend(cells.iter());
    count_copied(Reason::Slices, size_of_val(numbers.as_slice()));
    Value::from_shape(&dims(&tensor.shape), numbers).map_err(|_| misfit(tensor))
}

fn dims(shape: &[i64]) -> SmallVec<[usize; 6]> {
    shape.iter().map(|dim| usize::try_from(*dim).unwrap_or_default()).collect()
}

/// The largest magnitude in an INT64 input, and how many elements it has.
pub fn extremes(tensor: &Tensor) -> Extremes {
    let data = &tensor.data;
    let elements = (data.len() / size_of::<i64>()) as u64;
    let magnitude = match data.numbers::<i64>() {
        Some(values) => values.iter().map(|value| value.unsigned_abs()).max(),
        // They are not aligned, so they are read word by word, which saves a copy of all.
        None => {
            (0..data.len()).step_by(size_of::<i64>()).filter_map(|at| long_at(data, at)).map(i64::unsigned_abs).max()
        }
    };
    Extremes { magnitude: magnitude.unwrap_or_default(), elements }
}

fn long_at(data: &Buffer, at: usize) -> Option<i64> {
    let (low, high) = (data.read_u32(at)?, data.read_u32(at + 4)?);
    Some((u64::from(high) << 32 | u64::from(low)) as i64)
}

fn view<'a, T: Number>(tensor: &'a Tensor, dims: &[usize]) -> Result<ValueOrView<'a>, Status>
where
    ValueView<'a>: From<rten_tensor::TensorView<'a, T>>,
{
    let numbers = numbers::<T>(tensor)?;
    let view = ValueView::from_shape(dims, numbers).map_err(|_| misfit(tensor))?;
    Ok(view.into())
}

fn owned<T: Number, U: Spare>(
    tensor: &Tensor,
    dims: &[usize],
    spares: &mut Spares,
    convert: fn(&str, T) -> Result<U, Status>,
) -> Result<ValueOrView<'static>, Status>
where
    Value: From<rten_tensor::Tensor<U>>,
{
    let numbers = numbers::<T>(tensor)?;
    let mut converted: Vec<U> = spares.take(numbers.len());
    for value in numbers {
        converted.push(convert(&tensor.name, *value)?);
    }
    count_copied(Reason::Convert, size_of_val(converted.as_slice()));
    let value = Value::from_shape(dims, converted).map_err(|_| misfit(tensor))?;
    Ok(value.into())
}

fn narrow(input: &str, value: i64) -> Result<i32, Status> {
    i32::try_from(value).map_err(|_| {
        Status::invalid(format!(
            "input '{input}' holds {value}, but the embedded engine keeps INT64 in 32 bits, −2147483648 to 2147483647; {CURE}"
        ))
    })
}

fn round(input: &str, value: f64) -> Result<f32, Status> {
    if is_fp32(value) {
        return Ok(value as f32);
    }
    Err(Status::invalid(format!(
        "input '{input}' holds {value}, but the embedded engine keeps FP64 as FP32, which has no such value; {CURE}"
    )))
}

fn numbers<T: Number>(tensor: &Tensor) -> Result<&[T], Status> {
    tensor.data.numbers::<T>().ok_or_else(|| misfit(tensor))
}

fn misfit(tensor: &Tensor) -> Status {
    Status::invalid(format!(
        "input '{}' has {} bytes, which are no {} of shape {}",
        tensor.name,
        tensor.data.len(),
        tensor.datatype,
        show_shape(&tensor.shape)
    ))
}

/// Writes converted numbers directly to the output's memory. Returns their vector.
fn widen<T: Copy, U: Number>(
    work: &mut Work<'_>,
    index: usize,
    datatype: DataType,
    shape: &[i64],
    numbers: Vec<T>,
    convert: impl Fn(T) -> U,
) -> Result<Vec<T>, Status> {
    count_copied(Reason::Convert, numbers.len() * size_of::<U>());
    if let Some(mut slot) = work.slot(index, datatype, shape)? {
        // The slot may be longer than the output, and its length need not be a multiple of a number.
        slot.truncate((slot.len() / size_of::<U>()) * size_of::<U>());
        if let Some(mut place) = slot.cells_mut::<U>().filter(|place| place.len() >= numbers.len()) {
            place.fill_with(numbers.iter().map(|number| convert(*number)));
            work.put_slot(index, datatype, shape, slot)?;
            return Ok(numbers);
        }
        work.give_back(index, slot);
    }
    let converted = numbers.iter().map(|number| convert(*number)).collect();
    work.put_buffer(index, datatype, shape, Buffer::from_numbers::<U>(converted));
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use nerite_memory::Extent;

    use super::*;

    #[track_caller]
    fn check(values: &[i64], magnitude: u64) {
        for lead in [0, 1] {
            let bytes: Vec<u8> = vec![0; lead].into_iter().chain(values.iter().flat_map(|v| v.to_le_bytes())).collect();
            let mut all = nerite_memory::Slot::heap(bytes.len().max(1));
            all.write(0, &bytes, Reason::Model).expect("made for them");
            let all = all.filled().into_buffer();
            let data = all.slice(Extent::new(lead, values.len() * 8, all.len()).expect("within"));
            let (name, shape) = ("x".to_owned(), [values.len() as i64][..].into());
            let found = extremes(&Tensor { name: name.into(), datatype: DataType::Int64, shape, data });
            assert_eq!((found.magnitude, found.elements), (magnitude, values.len() as u64), "{values:?} at {lead}");
        }
    }

    #[test]
    fn the_extremes_are_found_wherever_the_numbers_lie() {
        check(&[], 0);
        check(&[3, -7, 5], 7);
        check(&[i64::MIN, i64::MAX], 1 << 63);
    }
}
