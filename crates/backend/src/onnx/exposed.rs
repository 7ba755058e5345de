//! Which inputs must not change while the graph runs?
//!
//! An input may lie in memory that its client still writes. For most operators that costs the client its own result and
//! nobody else anything: whatever number is read, it is only reckoned with. But an index is checked and then used, numbers
//! are compared and then moved past each other; who changes them in between makes the library read or write outside its
//! tensors. Inputs that come to such operators are run from a private copy. Indices are small, pictures and vectors are
//! not among them.
//!
//! The list names what is harmless, so that an operator nobody thought of costs a copy and not a crash.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// A node larger than this carries a constant that is not worth reading for its names.
const NODE_BYTES_MAX: u64 = 64 << 20;

/// Operators that only reckon with their inputs' numbers, whichever input it is.
#[rustfmt::skip]
const HARMLESS: &[&str] = &[
    "Abs", "Acos", "Acosh", "Add", "And", "ArgMax", "ArgMin", "Asin", "Asinh", "Atan", "Atanh", "AveragePool",
    "BatchNormalization", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu", "Clip",
    "Concat", "Conv", "ConvInteger", "ConvTranspose", "Cos", "Cosh", "DepthToSpace", "DequantizeLinear", "Dropout",
    "DynamicQuantizeLinear", "Einsum", "Elu", "Equal", "Erf", "Exp", "Flatten", "Floor", "Gelu", "Gemm",
    "GlobalAveragePool", "GlobalMaxPool", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity",
    "InstanceNormalization", "IsInf", "IsNaN", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log",
    "LogSoftmax", "LpNormalization", "LpPool", "LRN", "MatMul", "MatMulInteger", "Max", "MaxPool", "Mean",
    "MeanVarianceNormalization", "Min", "Mish", "Mul", "Neg", "Not", "Or", "Pow", "PRelu", "QLinearConv",
    "QLinearMatMul", "QuantizeLinear", "Reciprocal", "Relu", "Round", "Selu", "Shape", "Sigmoid", "Sign", "Sin",
    "Sinh", "Size", "Softmax", "Softplus", "Softsign", "SpaceToDepth", "Sqrt", "Sub", "Sum", "Tan", "Tanh",
    "ThresholdedRelu", "Transpose", "Where", "Xor",
];
/// Operators whose first input is of that kind; the others say where, how much or by what.
#[rustfmt::skip]
const HARMLESS_FIRST: &[&str] = &[
    // A divisor is looked through for zeros first, and then divided by.
    "Div", "Mod", "CumSum", "Expand", "Gather", "GatherElements", "GatherND", "GRU", "GridSample", "LSTM", "Pad",
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare", "Reshape", "Resize", "RNN", "Slice", "Split", "Squeeze", "Tile", "Trilu",
    "Unsqueeze", "Upsample",
];
/// Operators that may give their first input's own memory on.
#[rustfmt::skip]
const ALIASES: &[&str] = &[
    "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast", "Dropout", "Transpose", "Expand", "Slice",
    "Split",
];

/// The inputs of one graph that must not change while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exposed(HashSet<String>);

impl Exposed {
    /// Whether the value of this name must not change. That may be an output too, which the graph goes on to use.
    pub fn contains(&self, value: &str) -> bool {
        self.0.contains(value)
    }

    /// Of the graph with these nodes, in their order.
    pub fn of(nodes: &[Node]) -> Exposed {
        let mut exposed = HashSet::new();
        // Backwards, so that what an alias gives on is known to be exposed before the alias is looked at.
        for node in nodes.iter().rev() {
            node.expose(&mut exposed);
        }
        Exposed(exposed)
    }
}

/// The operators of a model.
#[derive(Debug, Default)]
pub struct Nodes {
    /// Those of its graph, in the order of the file: each comes after those whose results it reads.
    pub graph: Vec<Node>,
    /// Those of its functions.
    pub functions: Vec<Node>,
}

impl Nodes {
    /// Of the file at `path`. Weights are skipped.
    pub fn read(path: &Path) -> io::Result<Nodes> {
        let mut file = BufReader::new(File::open(path)?);
        let end = file.get_ref().metadata()?.len();
        let mut found = Nodes::default();
        walk(&mut file, end, &mut |file, model, len| {
            let (nodes, field) = match model {
                MODEL_GRAPH => (&mut found.graph, GRAPH_NODE),
                MODEL_FUNCTION => (&mut found.functions, FUNCTION_NODE),
                _ => return skip(file, len),
            };
            let end = file.stream_position()? + len;
            walk(file, end, &mut |file, inner, len| {
                if inner != field || len > NODE_BYTES_MAX {
                    return skip(file, len);
                }
                let mut bytes = vec![0; len as usize];
                file.read_exact(&mut bytes)?;
                nodes.push(Node::parse(&bytes));
                Ok(())
            })
        })?;
        Ok(found)
    }
}

/// One operator.
#[derive(Debug, Default)]
pub struct Node {
    /// Its name.
    pub op: String,
    /// Names of the values that it reads.
    pub inputs: Vec<String>,
    /// Names of the values that it makes.
    pub outputs: Vec<String>,
    /// The operators of its own graphs, which may read values of the graph around them.
    pub inner: Vec<Node>,
}

impl Node {
    fn parse(bytes: &[u8]) -> Node {
        let mut node = Node::default();
        fields(bytes, &mut |field, value| match field {
            NODE_INPUT => node.inputs.push(text(value)),
            NODE_OUTPUT => node.outputs.push(text(value)),
            NODE_OP => node.op = text(value),
            NODE_ATTRIBUTE => fields(value, &mut |field, value| {
                if field == ATTRIBUTE_GRAPH || field == ATTRIBUTE_GRAPHS {
                    fields(value, &mut |field, value| {
                        if field == GRAPH_NODE {
                            node.inner.push(Node::parse(value));
                        }
                    });
                }
            }),
            _ => {}
        });
        node
    }

    fn expose(&self, exposed: &mut HashSet<String>) {
        for inner in self.inner.iter().rev() {
            inner.expose(exposed);
        }
        let gives_on =
            ALIASES.contains(&self.op.as_str()) && self.outputs.iter().any(|output| exposed.contains(output));
        for (at, input) in self.inputs.iter().enumerate() {
            let harmless =
                HARMLESS.contains(&self.op.as_str()) || (at == 0 && HARMLESS_FIRST.contains(&self.op.as_str()));
            if !harmless || (gives_on && at == 0) {
                exposed.insert(input.clone());
            }
        }
    }
}

// Numbers of the fields of onnx.proto that are looked at.
const MODEL_GRAPH: u64 = 7;
const MODEL_FUNCTION: u64 = 25;
const FUNCTION_NODE: u64 = 7;
const GRAPH_NODE: u64 = 1;
const NODE_INPUT: u64 = 1;
const NODE_OUTPUT: u64 = 2;
const NODE_OP: u64 = 4;
const NODE_ATTRIBUTE: u64 = 5;
const ATTRIBUTE_GRAPH: u64 = 6;
const ATTRIBUTE_GRAPHS: u64 = 11;

type Visit<'a> = &'a mut dyn FnMut(&mut BufReader<File>, u64, u64) -> io::Result<()>;

/// Visits the fields of a message that ends at `end` of the file. The visitor takes or skips the value's bytes.
fn walk(file: &mut BufReader<File>, end: u64, visit: Visit<'_>) -> io::Result<()> {
    while file.stream_position()? < end {
        let tag = varint(&mut || byte(file))?;
        match tag & 7 {
            0 => drop(varint(&mut || byte(file))?),
            1 => skip(file, 8)?,
            2 => {
                let len = varint(&mut || byte(file))?;
                if len > end - file.stream_position()?.min(end) {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                visit(file, tag >> 3, len)?;
            }
            5 => skip(file, 4)?,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    Ok(())
}

fn skip(file: &mut BufReader<File>, len: u64) -> io::Result<()> {
    match i64::try_from(len) {
        Ok(len) => file.seek_relative(len),
        Err(_) => file.seek(SeekFrom::End(0)).map(drop),
    }
}

fn byte(file: &mut BufReader<File>) -> io::Result<u8> {
    let mut byte = [0];
    file.read_exact(&mut byte)?;
    Ok(byte[0])
}

fn varint(next: &mut dyn FnMut() -> io::Result<u8>) -> io::Result<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = next()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

/// Visits the fields of a message in memory that have a length; stops at what is no field.
fn fields(mut bytes: &[u8], visit: &mut dyn FnMut(u64, &[u8])) {
    fn number(bytes: &mut &[u8]) -> Option<u64> {
        varint(&mut || {
            let (first, rest) = bytes.split_first().ok_or(io::ErrorKind::UnexpectedEof)?;
            *bytes = rest;
            Ok(*first)
        })
        .ok()
    }
    while let Some(tag) = number(&mut bytes) {
        let len = match tag & 7 {
            0 => number(&mut bytes).map(|_| 0),
            1 => Some(8),
            2 => number(&mut bytes),
            5 => Some(4),
            _ => None,
        };
        let split = len.and_then(|len| usize::try_from(len).ok()).and_then(|len| bytes.split_at_checked(len));
        let Some((value, rest)) = split else { return };
        bytes = rest;
        if tag & 7 == 2 {
            visit(tag >> 3, value);
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(graph: &[(&str, &str, &str)], exposed: &[&str]) {
        let names = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        let nodes: Vec<Node> = graph
            .iter()
            .map(|(op, inputs, outputs)| Node {
                op: (*op).into(),
                inputs: names(inputs),
                outputs: names(outputs),
                inner: Vec::new(),
            })
            .collect();
        let found = Exposed::of(&nodes);
        for input in ["a", "b", "c"] {
            assert_eq!(found.contains(input), exposed.contains(&input), "'{input}' of {graph:?}");
        }
    }

    #[test]
    fn what_is_only_reckoned_with_may_change() {
        check(&[("Add", "a b", "x"), ("MatMul", "x c", "y")], &[]);
        check(&[("Gather", "a table", "y")], &[]);
    }

    #[test]
    fn positions_sizes_and_what_is_sorted_may_not() {
        check(&[("Gather", "table a", "y")], &["a"]);
        check(&[("Reshape", "a b", "y")], &["b"]);
        check(&[("TopK", "a k", "y at")], &["a"]);
        check(&[("Div", "a b", "y")], &["b"]);
        check(&[("SomethingNew", "a b", "y")], &["a", "b"]);
    }

    #[test]
    fn a_view_of_an_input_is_the_input_and_a_result_is_not() {
        check(&[("Cast", "a", "x"), ("Squeeze", "x", "z"), ("Gather", "table z", "y")], &["a"]);
        check(&[("Add", "a b", "x"), ("Gather", "table x", "y")], &[]);
    }

    #[test]
    fn graphs_inside_operators_count() {
        let inner = Node {
            op: "Gather".into(),
            inputs: vec!["table".into(), "a".into()],
            outputs: vec!["y".into()],
            inner: Vec::new(),
        };
        let node = Node { op: "If".into(), inputs: vec!["b".into()], outputs: vec!["z".into()], inner: vec![inner] };
        let found = Exposed::of(&[node]);
        assert!(found.contains("a") && found.contains("b") && !found.contains("c"));
    }

    #[test]
    fn a_file_is_read_without_its_weights_and_garbage_is_an_error_or_nothing() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/models");
        let of = |name: &str| Nodes::read(&models.join(name)).map(|nodes| Exposed::of(&nodes.graph));
        assert!(of("pick.onnx").is_ok_and(|exposed| exposed.contains("rows") && !exposed.contains("table")));
        assert!(of("misdeclared.onnx").is_ok_and(|exposed| exposed.contains("shape") && !exposed.contains("x")));
        assert!(of("nowhere.onnx").is_err());
        for len in 0..16 {
            fields(&vec![0xff; len], &mut |_, _| ());
            fields(&vec![0x0a; len], &mut |_, _| ());
            Node::parse(&vec![0x2a; len]);
        }
    }
}
