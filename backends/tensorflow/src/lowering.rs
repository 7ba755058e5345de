//! How is an operation of a graph rewritten for the engine?
//!
//! This is done for inputs of known shapes. Each operation computes the shape of its output, and is rewritten for the engine's reader of TensorFlow's
//! operations: with the attributes that the engine understands, axes that count from the front, and shapes as constants. Operations that the engine
//! would compute differently from TensorFlow are refused here, and so are those whose output shape depends on the values of an input.

mod arrays;
mod nets;
mod numbers;
mod pieces;
mod strings;

use nerite_backend_sdk::DataType;
use tract_tensorflow::tfpb::node;
use tract_tensorflow::tfpb::tensorflow::tensor_shape_proto::Dim;
use tract_tensorflow::tfpb::tensorflow::{NodeDef, TensorProto, TensorShapeProto};

use crate::attributes::{self, to_number};
use crate::constant;
use crate::fact::Fact;

/// One operation, with the known facts of its inputs.
pub struct Site<'g> {
    /// Its definition in the file.
    pub node: &'g NodeDef,
    /// Its inputs.
    pub inputs: Vec<&'g Fact>,
    /// The names of its inputs' nodes.
    pub names: Vec<&'g str>,
}

/// The lowered operation.
pub struct Lowered {
    /// The facts of its output.
    pub fact: Fact,
    /// The nodes for the engine. The last one has the operation's name.
    pub nodes: Vec<NodeDef>,
    /// Bytes that it needs while it runs, in addition to inputs and output.
    pub scratch_bytes: u64,
}

/// How an operation is lowered.
type Lower = fn(&Site<'_>) -> Result<Lowered, String>;

/// The function that lowers this operation. `None` if the engine lacks the operation.
pub fn find(op: &str) -> Option<Lower> {
    match op {
        "Const" => Some(constant_node),
        _ => numbers::find(op).or_else(|| arrays::find(op)).or_else(|| nets::find(op)).or_else(|| strings::find(op)),
    }
}

impl<'g> Site<'g> {
    /// The inputs, of which there must be exactly `N`.
    fn arity<const N: usize>(&self) -> Result<[&'g Fact; N], String> {
        let found = self.inputs.len();
        self.inputs.clone().try_into().map_err(|_| format!("it has {found} inputs, and needs {N}"))
    }

    /// The elements of an input, which must depend on shapes only.
    fn known(&self, input: usize) -> Result<&'g [i64], String> {
        let fact = self.inputs.get(input).copied().ok_or_else(|| format!("it has no input {input}"))?;
        fact.known.as_deref().ok_or_else(|| {
            format!(
                "its input '{}' depends on the values of an input of the model, and decides a shape here",
                self.names[input]
            )
        })
    }

    /// The only element of such an input.
    fn known_one(&self, input: usize) -> Result<i64, String> {
        let found = self.known(input)?;
        found
            .first()
            .copied()
            .filter(|_| found.len() == 1)
            .ok_or_else(|| format!("its input {input} is not one number"))
    }

    /// A node of that name for the engine.
    fn make(&self, op: &str, inputs: &[&str]) -> NodeDef {
        named(&self.node.name, op, inputs)
    }

    /// The name of an additional node before the operation's own.
    fn before(&self, what: &str) -> String {
        // TensorFlow's names contain no space, so the name is unique.
        format!("{} {what}", self.node.name)
    }
}

impl Lowered {
    fn one(fact: Fact, node: NodeDef) -> Lowered {
        Lowered { fact, nodes: vec![node], scratch_bytes: 0 }
    }
}

fn named(name: &str, op: &str, inputs: &[&str]) -> NodeDef {
    inputs.iter().fold(node().name(name).op(op), |made, input| made.input(*input))
}

fn constant_node(site: &Site<'_>) -> Result<Lowered, String> {
    let value = attributes::tensor(site.node, "value").ok_or("it has no value")?;
    let fact = constant::fact(value)?;
    let number = to_number(fact.datatype).ok_or("a datatype that the engine lacks")?;
    let node = site.make("Const", &[]).attr("dtype", number).attr("value", value.clone());
    Ok(Lowered::one(fact, node))
}

/// A constant of integers.
pub fn numbers_node(name: &str, datatype: DataType, dims: &[usize], numbers: &[i64]) -> NodeDef {
    let number = to_number(datatype).unwrap_or_default();
    let dims = dims.iter().map(|dim| Dim { size: *dim as i64, name: String::new() }).collect();
    let shape = TensorShapeProto { dim: dims, unknown_rank: false };
    let mut value = TensorProto { dtype: number as i32, tensor_shape: Some(shape), ..TensorProto::default() };
    if datatype == DataType::Int64 {
        value.int64_val = numbers.to_vec();
    } else {
        value.int_val = numbers.iter().map(|number| *number as i32).collect();
    }
    named(name, "Const", &[]).attr("dtype", number).attr("value", value)
}

/// The broadcast shape of two tensors.
fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>, String> {
    let rank = a.len().max(b.len());
    let at = |dims: &[usize], index: usize| (index + dims.len()).checked_sub(rank).map_or(1, |index| dims[index]);
    let one = |index| match (at(a, index), at(b, index)) {
        (x, y) if x == y => Ok(x),
        (1, y) => Ok(y),
        (x, 1) => Ok(x),
        _ => Err(format!("shapes {a:?} and {b:?} do not go together")),
    };
    (0..rank).map(one).collect()
}

fn same_datatype(a: &Fact, b: &Fact) -> Result<(), String> {
    if a.datatype == b.datatype {
        return Ok(());
    }
    Err(format!("its inputs are {} and {}, and must be alike", a.datatype.name(), b.datatype.name()))
}

fn numeric(fact: &Fact) -> Result<(), String> {
    if fact.datatype != DataType::Bytes {
        return Ok(());
    }
    Err("strings are not taken here".to_owned())
}
