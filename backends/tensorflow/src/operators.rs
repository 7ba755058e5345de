//! Which operations are added to those of the engine's TensorFlow reader?

mod text;

use tract_tensorflow::Tensorflow;
use tract_tensorflow::model::ParsingContext;
use tract_tensorflow::tfpb::tensorflow::NodeDef;
use tract_tensorflow::tract_hir::internal::*;
use tract_tensorflow::tract_hir::ops;
use tract_tensorflow::tract_hir::ops::nn;

use crate::attributes;
use crate::constant::to_tensor;
use crate::tensors::to_engine;
use text::{AsText, ToNumber};

/// The reader with the added operations.
pub fn reader() -> Tensorflow {
    let mut reader = tract_tensorflow::tensorflow();
    let register = &mut reader.op_register;
    // It supports all datatypes, and elements that TensorFlow omits because they repeat.
    register.insert("Const", constant);
    register.insert("Exp", |_, _| Ok(ops::math::exp().into_hir()));
    register.insert("Floor", |_, _| Ok(ops::math::floor().into_hir()));
    register.insert("Sqrt", |_, _| Ok(ops::math::sqrt().into_hir()));
    register.insert("Square", |_, _| Ok(ops::math::square().into_hir()));
    register.insert("nerite.Softmax", |_, _| Ok(expand(nn::Softmax::new(-1))));
    register.insert("nerite.Gather", |_, _| Ok(expand(ops::array::Gather::new(0))));
    register.insert("nerite.Pad", pad);
    register.insert("nerite.ArgMax", arg_max);
    register.insert("nerite.AsString", |_, _| Ok(Box::new(AsText)));
    register.insert("nerite.StringToNumber", |_, node| Ok(Box::new(ToNumber { to: datum(node, "out_type")? })));
    reader
}

fn datum(node: &NodeDef, name: &str) -> TractResult<DatumType> {
    let found = attributes::datatype(node, name).ok().and_then(to_engine);
    found.with_context(|| format!("node {} has no datatype {name}", node.name))
}

fn constant(_: &ParsingContext, node: &NodeDef) -> TractResult<Box<dyn InferenceOp>> {
    let value = attributes::tensor(node, "value").context("a constant has no value")?;
    let tensor = to_tensor(value).map_err(TractError::msg)?;
    Ok(Box::new(ops::konst::Const::new(tensor.into_arc_tensor())?))
}

fn pad(_: &ParsingContext, node: &NodeDef) -> TractResult<Box<dyn InferenceOp>> {
    let pairs = attributes::ints(node, "paddings").as_chunks::<2>().0.iter();
    let pads = pairs.map(|[before, after]| (*before as usize, *after as usize)).collect();
    let zero = Tensor::zero_dt(datum(node, "T")?, &[])?;
    Ok(Box::new(ops::array::Pad::new(pads, ops::array::PadMode::Constant(zero.into_arc_tensor()))))
}

fn arg_max(_: &ParsingContext, node: &NodeDef) -> TractResult<Box<dyn InferenceOp>> {
    let axis = attributes::int(node, "axis").context("no axis")?;
    Ok(expand(nn::Reduce::new(Some(vec![axis]), false, nn::Reducer::ArgMax(false))))
}
