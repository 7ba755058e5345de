//! How are numbers converted to strings, and strings to numbers?

use tract_tensorflow::tract_core::internal::Blob;
use tract_tensorflow::tract_hir::internal::*;

use crate::tensors::blobs;

/// `AsString` with its default attributes: integers as they are, floats with six decimals.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AsText;

/// `StringToNumber`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToNumber {
    /// The datatype of the result.
    pub to: DatumType,
}

impl Op for AsText {
    fn name(&self) -> StaticName {
        "AsString".into()
    }

    op_as_typed_op!();
}

impl EvalOp for AsText {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let input = args_1!(inputs);
        let texts = texts(&input)?;
        let texts: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        Ok(tvec!(blobs(input.shape(), &texts)?.into_tvalue()))
    }
}

fn texts(tensor: &Tensor) -> TractResult<Vec<String>> {
    fn each<T: Datum>(tensor: &Tensor, to: impl Fn(&T) -> String) -> TractResult<Vec<String>> {
        Ok(tensor.to_plain_array_view::<T>()?.iter().map(to).collect())
    }
    match tensor.datum_type() {
        DatumType::F32 => each(tensor, |number: &f32| decimal(f64::from(*number))),
        DatumType::F64 => each(tensor, |number: &f64| decimal(*number)),
        DatumType::Bool => each(tensor, bool::to_string),
        DatumType::U64 => each(tensor, u64::to_string),
        _ => {
            let whole = tensor.cast_to::<i64>()?;
            each(&whole, i64::to_string)
        }
    }
}

/// Formats like C's `%f`.
fn decimal(number: f64) -> String {
    match number {
        _ if number.is_nan() => "nan".to_owned(),
        f64::INFINITY => "inf".to_owned(),
        f64::NEG_INFINITY => "-inf".to_owned(),
        _ => format!("{number:.6}"),
    }
}

impl InferenceRulesOp for AsText {
    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 1)?;
        check_output_arity(outputs, 1)?;
        s.equals(&outputs[0].datum_type, DatumType::Blob)?;
        s.equals(&outputs[0].shape, &inputs[0].shape)
    }

    as_op!();
    to_typed!();
}

impl TypedOp for AsText {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(tvec!(DatumType::Blob.fact(inputs[0].shape.clone())))
    }

    as_op!();
}

impl Op for ToNumber {
    fn name(&self) -> StaticName {
        "StringToNumber".into()
    }

    op_as_typed_op!();
}

impl EvalOp for ToNumber {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let input = args_1!(inputs);
        let made = match self.to {
            DatumType::F32 => numbers::<f32>(&input)?,
            DatumType::F64 => numbers::<f64>(&input)?,
            DatumType::I32 => numbers::<i32>(&input)?,
            DatumType::I64 => numbers::<i64>(&input)?,
            other => bail!("strings do not become {other:?}"),
        };
        Ok(tvec!(made.into_tvalue()))
    }
}

fn numbers<T: Datum + std::str::FromStr + Copy>(tensor: &Tensor) -> TractResult<Tensor> {
    let one = |blob: &Blob| {
        let text = std::str::from_utf8(blob).ok().and_then(|text| text.trim_ascii().parse().ok());
        text.with_context(|| format!("could not correctly convert string: {}", String::from_utf8_lossy(blob)))
    };
    let found = tensor.to_plain_array_view::<Blob>()?.iter().map(one).collect::<TractResult<Vec<T>>>()?;
    Tensor::from_shape(tensor.shape(), &found)
}

impl InferenceRulesOp for ToNumber {
    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 1)?;
        check_output_arity(outputs, 1)?;
        s.equals(&inputs[0].datum_type, DatumType::Blob)?;
        s.equals(&outputs[0].datum_type, self.to)?;
        s.equals(&outputs[0].shape, &inputs[0].shape)
    }

    as_op!();
    to_typed!();
}

impl TypedOp for ToNumber {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(tvec!(self.to.fact(inputs[0].shape.clone())))
    }

    as_op!();
}
