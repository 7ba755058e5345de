//! How is arithmetic lowered?

use nerite_backend_sdk::DataType;

use super::{Lower, Lowered, Site, broadcast, numeric, same_datatype};
use crate::attributes::{self, to_number};
use crate::fact::Fact;
use crate::lowering::numbers_node;

/// The functions for arithmetic.
pub fn find(op: &str) -> Option<Lower> {
    Some(match op {
        "Identity" | "StopGradient" | "PreventGradient" | "Snapshot" | "PlaceholderWithDefault" => identity,
        "Abs" | "Ceil" | "Exp" | "Floor" | "Log" | "Neg" | "Relu" | "Relu6" | "Rsqrt" | "Sigmoid" | "Sqrt"
        | "Square" | "Tanh" => unary,
        "Add" | "AddV2" | "Div" | "Maximum" | "Minimum" | "Mul" | "Pow" | "RealDiv" | "Sub" => binary,
        "Equal" | "Greater" | "GreaterEqual" | "Less" | "LessEqual" => compare,
        "LogicalAnd" | "LogicalOr" => logic,
        "BiasAdd" => bias_add,
        "AddN" => add_n,
        "Cast" => cast,
        "MatMul" => mat_mul,
        "Max" | "Mean" | "Min" | "Prod" | "Sum" => reduce,
        "ArgMax" => arg_max,
        "Softmax" => softmax,
        _ => return None,
    })
}

fn identity(site: &Site<'_>) -> Result<Lowered, String> {
    let [x] = site.arity()?;
    Ok(Lowered::one(x.clone(), site.make("Identity", &site.names)))
}

fn unary(site: &Site<'_>) -> Result<Lowered, String> {
    let [x] = site.arity()?;
    let has_sign = matches!(x.datatype, DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64);
    if !(has_sign && matches!(site.node.op.as_str(), "Abs" | "Neg")) {
        decimal(x)?;
    }
    Ok(Lowered::one(Fact::new(x.datatype, x.dims.clone()), site.make(&site.node.op, &site.names)))
}

fn decimal(x: &Fact) -> Result<(), String> {
    if matches!(x.datatype, DataType::Fp16 | DataType::Fp32 | DataType::Fp64) {
        return Ok(());
    }
    Err(format!("its input is {}, and this engine has it for FP16, FP32 and FP64 only", x.datatype.name()))
}

/// Refuses strings and booleans.
fn countable(x: &Fact) -> Result<(), String> {
    if x.datatype == DataType::Bool { Err("its input is BOOL, and must be numbers".to_owned()) } else { numeric(x) }
}

fn pair(site: &Site<'_>) -> Result<(DataType, Vec<usize>), String> {
    let [a, b] = site.arity()?;
    same_datatype(a, b)?;
    numeric(a)?;
    Ok((a.datatype, broadcast(&a.dims, &b.dims)?))
}

fn binary(site: &Site<'_>) -> Result<Lowered, String> {
    let (datatype, dims) = pair(site)?;
    countable(site.inputs[0])?;
    if site.node.op == "Mul" && site.names[0] == site.names[1] {
        // The engine computes it as a square.
        decimal(site.inputs[0])?;
    }
    let mut fact = Fact::new(datatype, dims);
    if let (Some(a), Some(b)) = (&site.inputs[0].known, &site.inputs[1].known) {
        fact.known = together(&site.node.op, a, b).filter(|known| Some(known.len()) == fact.volume());
    }
    Ok(Lowered::one(fact, site.make(&site.node.op, &site.names)))
}

/// Arithmetic on known elements, from which shapes are computed. `None` if it is not needed for shapes, or overflows.
fn together(op: &str, a: &[i64], b: &[i64]) -> Option<Vec<i64>> {
    let count = a.len().max(b.len());
    if [a.len(), b.len()].iter().any(|len| *len != 1 && *len != count) {
        return None;
    }
    let one = |index: usize| {
        let (x, y) = (*a.get(index).or(a.first())?, *b.get(index).or(b.first())?);
        match op {
            "Add" | "AddV2" => x.checked_add(y),
            "Sub" => x.checked_sub(y),
            "Mul" => x.checked_mul(y),
            "Maximum" => Some(x.max(y)),
            "Minimum" => Some(x.min(y)),
            _ => None,
        }
    };
    (0..count).map(one).map(|found| found.filter(|number| i32::try_from(*number).is_ok())).collect()
}

fn compare(site: &Site<'_>) -> Result<Lowered, String> {
    let (_, dims) = pair(site)?;
    Ok(Lowered::one(Fact::new(DataType::Bool, dims), site.make(&site.node.op, &site.names)))
}

fn logic(site: &Site<'_>) -> Result<Lowered, String> {
    let (datatype, dims) = pair(site)?;
    if datatype != DataType::Bool {
        return Err(format!("its inputs are {}, and must be BOOL", datatype.name()));
    }
    Ok(Lowered::one(Fact::new(datatype, dims), site.make(&site.node.op, &site.names)))
}

fn bias_add(site: &Site<'_>) -> Result<Lowered, String> {
    let [x, bias] = site.arity()?;
    if attributes::text(site.node, "data_format") == b"NCHW" {
        return Err("data_format NCHW is not in this engine".to_owned());
    }
    if bias.rank() != 1 || x.dims.last() != bias.dims.first() {
        return Err(format!("a bias of shape {:?} does not fit shape {:?}", bias.dims, x.dims));
    }
    binary(site)
}

fn add_n(site: &Site<'_>) -> Result<Lowered, String> {
    let first = *site.inputs.first().ok_or("it has no input")?;
    countable(first)?;
    for other in &site.inputs {
        same_datatype(first, other)?;
        if first.dims != other.dims {
            return Err(format!("shapes {:?} and {:?} do not go together", first.dims, other.dims));
        }
    }
    Ok(Lowered::one(Fact::new(first.datatype, first.dims.clone()), site.make("AddN", &site.names)))
}

fn cast(site: &Site<'_>) -> Result<Lowered, String> {
    let [x] = site.arity()?;
    let to = attributes::datatype(site.node, "DstT")?;
    let number = to_number(to).filter(|_| to != DataType::Bytes && x.datatype != DataType::Bytes);
    let number = number.ok_or_else(|| format!("it casts {} to {}", x.datatype.name(), to.name()))?;
    let mut fact = Fact::new(to, x.dims.clone());
    if matches!(to, DataType::Int32 | DataType::Int64) {
        fact.known.clone_from(&x.known);
    }
    Ok(Lowered::one(fact, site.make("Cast", &site.names).attr("DstT", number)))
}

fn mat_mul(site: &Site<'_>) -> Result<Lowered, String> {
    let [a, b] = site.arity()?;
    same_datatype(a, b)?;
    countable(a)?;
    let (trans_a, trans_b) = (attributes::flag(site.node, "transpose_a"), attributes::flag(site.node, "transpose_b"));
    let (&[a0, a1], &[b0, b1]) = (&a.dims[..], &b.dims[..]) else {
        return Err(format!("its inputs have shapes {:?} and {:?}, and must be matrices", a.dims, b.dims));
    };
    let ((rows, inner), (outer, columns)) =
        (if trans_a { (a1, a0) } else { (a0, a1) }, if trans_b { (b1, b0) } else { (b0, b1) });
    if inner != outer {
        return Err(format!("matrices of shapes {:?} and {:?} cannot be multiplied", a.dims, b.dims));
    }
    let node = site.make("MatMul", &site.names).attr("transpose_a", trans_a).attr("transpose_b", trans_b);
    let packed = a.bytes().zip(b.bytes()).and_then(|(a, b)| a.checked_add(b)).ok_or("a matrix is too large")?;
    Ok(Lowered { scratch_bytes: packed, ..Lowered::one(Fact::new(a.datatype, vec![rows, columns]), node) })
}

fn reduce(site: &Site<'_>) -> Result<Lowered, String> {
    let [x, _] = site.arity()?;
    countable(x)?;
    let axes = site.known(1)?.iter().map(|axis| x.axis(*axis, 0)).collect::<Result<Vec<_>, _>>()?;
    let keep = attributes::flag(site.node, "keep_dims");
    let left = |(index, dim): (usize, &usize)| if axes.contains(&index) { keep.then_some(1) } else { Some(*dim) };
    let mut fact = Fact::new(x.datatype, x.dims.iter().enumerate().filter_map(left).collect());
    if let (Some(known), true, true) = (&x.known, site.node.op == "Prod", fact.volume() == Some(1)) {
        fact.known =
            known.iter().try_fold(1i64, |product, number| product.checked_mul(*number)).map(|product| vec![product]);
    }
    if axes.is_empty() {
        return Ok(Lowered::one(fact, site.make("Identity", &site.names[..1])));
    }
    let number = to_number(x.datatype).ok_or("a datatype that the engine lacks")?;
    let index = to_number(DataType::Int32).unwrap_or_default();
    // The engine reads axis 0 as the axis after the last one. It reads negative axes correctly.
    let mut counted: Vec<i64> = axes.iter().map(|axis| *axis as i64 - x.rank() as i64).collect();
    counted.sort_unstable();
    counted.dedup();
    let name = site.before("axes");
    let constant = numbers_node(&name, DataType::Int32, &[counted.len()], &counted);
    let made = site.make(&site.node.op, &[site.names[0], &name]);
    let made = made.attr("T", number).attr("Tidx", index).attr("keep_dims", keep);
    Ok(Lowered { nodes: vec![constant, made], ..Lowered::one(fact, site.make("", &[])) })
}

fn arg_max(site: &Site<'_>) -> Result<Lowered, String> {
    let [x, _] = site.arity()?;
    countable(x)?;
    let axis = x.axis(site.known_one(1)?, 0)?;
    let is_whole = site.node.attr.contains_key("output_type");
    let to = if is_whole { attributes::datatype(site.node, "output_type")? } else { DataType::Int64 };
    let number = to_number(to).ok_or("a datatype that the engine lacks")?;
    let dims = x.dims.iter().enumerate().filter(|(index, _)| *index != axis).map(|(_, dim)| *dim).collect();
    let name = site.before("found");
    let found = super::named(&name, "nerite.ArgMax", &site.names[..1]).attr("axis", axis as i64);
    let made = site.make("Cast", &[&name]).attr("DstT", number);
    Ok(Lowered { nodes: vec![found, made], ..Lowered::one(Fact::new(to, dims), site.make("", &[])) })
}

fn softmax(site: &Site<'_>) -> Result<Lowered, String> {
    let [x] = site.arity()?;
    decimal(x)?;
    if x.rank() == 0 {
        return Err("it has no dimension".to_owned());
    }
    // The engine's own reader always uses the second dimension.
    let made = site.make("nerite.Softmax", &site.names);
    Ok(Lowered::one(Fact::new(x.datatype, x.dims.clone()), made))
}
