//! Which operators does a graph have, and what do they read and write?
//!
//! An ONNX file is read for the names that rules about graphs need ([`super::UntrustedInputs`], [`super::cost_bound`]). Weights are skipped,
//! whatever their size. No library is asked, so the answer is the same for every runtime.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// A node larger than this carries a constant that is not worth reading for its names.
const NODE_BYTES_MAX: u64 = 64 << 20;
/// Graphs within operators of graphs within operators, so deep. ONNX Runtime reads no deeper either.
const DEPTH_MAX: usize = 32;
/// A longer name of a constant is not read: nothing known refers to it then.
const NAME_BYTES_MAX: u64 = 64 << 10;

/// The operators of a model, without its weights.
#[derive(Debug, Default)]
pub struct Nodes {
    /// Those of its graph, in the order of the file: each comes after those whose results it reads.
    pub graph: Vec<Node>,
    /// Those of its functions.
    pub functions: Vec<Node>,
    /// Names of the graph's constants (initialisers).
    pub constants: HashSet<String>,
    /// Whether the graph's nodes are all there is: none was too large to be read, and the model defines no functions.
    pub is_complete: bool,
}

/// One operator of a graph.
#[derive(Debug, Default)]
pub struct Node {
    /// The operator's name.
    pub op: String,
    /// Its set of operators; empty for the standard's.
    pub domain: String,
    /// Names of the values that it reads. An optional input that is left out has the empty name.
    pub inputs: Vec<String>,
    /// Names of the values that it makes.
    pub outputs: Vec<String>,
    /// The operators of its own graphs (branches and loop bodies), which may read values of the graph around them.
    pub inner: Vec<Node>,
}

impl Nodes {
    /// Of the file at `path`.
    pub fn read(path: &Path) -> io::Result<Nodes> {
        let mut file = BufReader::new(File::open(path)?);
        let end = file.get_ref().metadata()?.len();
        let mut found = Nodes { is_complete: true, ..Nodes::default() };
        walk(&mut file, end, &mut |file, model, len| {
            let end = file.stream_position()? + len;
            match model {
                MODEL_GRAPH => walk(file, end, &mut |file, field, len| match field {
                    GRAPH_NODE => {
                        let node = read_node(file, len)?;
                        found.is_complete &= node.is_some();
                        found.graph.extend(node);
                        Ok(())
                    }
                    GRAPH_INITIALIZER => read_name(file, len, &mut found.constants),
                    _ => skip(file, len),
                }),
                MODEL_FUNCTION => {
                    found.is_complete = false;
                    walk(file, end, &mut |file, field, len| match field {
                        FUNCTION_NODE => {
                            found.functions.extend(read_node(file, len)?);
                            Ok(())
                        }
                        _ => skip(file, len),
                    })
                }
                _ => skip(file, len),
            }
        })?;
        Ok(found)
    }
}

/// A node of so many bytes; `None` if it is too large.
fn read_node(file: &mut BufReader<File>, len: u64) -> io::Result<Option<Node>> {
    if len > NODE_BYTES_MAX {
        return skip(file, len).map(|()| None);
    }
    let node = Node::parse(&take(file, len)?, DEPTH_MAX);
    let too_deep =
        || io::Error::new(io::ErrorKind::InvalidData, format!("it has graphs in graphs deeper than {DEPTH_MAX}"));
    node.ok_or_else(too_deep).map(Some)
}

/// Adds the name of a tensor of so many bytes.
fn read_name(file: &mut BufReader<File>, len: u64, names: &mut HashSet<String>) -> io::Result<()> {
    let end = file.stream_position()? + len;
    walk(file, end, &mut |file, field, len| match field {
        TENSOR_NAME if len <= NAME_BYTES_MAX => {
            names.insert(text(&take(file, len)?));
            Ok(())
        }
        _ => skip(file, len),
    })
}

impl Node {
    /// `None` if it has graphs in graphs deeper than `depth_max`: reading them would need a deep stack.
    fn parse(bytes: &[u8], depth_max: usize) -> Option<Node> {
        let mut node = Node::default();
        let mut is_flat = true;
        fields(bytes, &mut |field, value| match field {
            NODE_INPUT => node.inputs.push(text(value)),
            NODE_OUTPUT => node.outputs.push(text(value)),
            NODE_OP => node.op = text(value),
            NODE_DOMAIN => node.domain = text(value),
            NODE_ATTRIBUTE => fields(value, &mut |field, value| {
                if field == ATTRIBUTE_GRAPH || field == ATTRIBUTE_GRAPHS {
                    fields(value, &mut |field, value| {
                        if field == GRAPH_NODE && is_flat {
                            let inner = depth_max.checked_sub(1).and_then(|depth_max| Node::parse(value, depth_max));
                            is_flat = inner.is_some();
                            node.inner.extend(inner);
                        }
                    });
                }
            }),
            _ => {}
        });
        is_flat.then_some(node)
    }

    /// Whether the standard defines this operator, as long as the model has no functions of its own.
    pub fn is_standard(&self) -> bool {
        matches!(self.domain.as_str(), "" | "ai.onnx")
    }
}

// Numbers of the fields of onnx.proto that are looked at.
const MODEL_GRAPH: u64 = 7;
const MODEL_FUNCTION: u64 = 25;
const FUNCTION_NODE: u64 = 7;
const GRAPH_NODE: u64 = 1;
const GRAPH_INITIALIZER: u64 = 5;
const TENSOR_NAME: u64 = 8;
const NODE_INPUT: u64 = 1;
const NODE_OUTPUT: u64 = 2;
const NODE_OP: u64 = 4;
const NODE_ATTRIBUTE: u64 = 5;
const NODE_DOMAIN: u64 = 7;
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

/// The next `len` bytes, which the caller has bounded.
fn take(file: &mut BufReader<File>, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len as usize];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(name: &str) -> io::Result<Nodes> {
        Nodes::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/models").join(name))
    }

    #[test]
    fn a_file_is_read_without_its_weights() {
        let pick = read("pick.onnx").unwrap();
        let ops: Vec<&str> = pick.graph.iter().map(|node| node.op.as_str()).collect();
        assert!(ops.contains(&"Gather") && pick.is_complete, "{pick:?}");
        assert!(pick.graph.iter().all(Node::is_standard));
    }

    /// A message's field of this number.
    fn field(number: u64, bytes: &[u8]) -> Vec<u8> {
        let mut made = vec![(number << 3 | 2) as u8];
        let mut len = bytes.len();
        while len > 0x7f {
            made.push(len as u8 | 0x80);
            len >>= 7;
        }
        made.push(len as u8);
        made.extend(bytes);
        made
    }

    #[test]
    fn graphs_in_graphs_are_read_to_a_depth_and_refused_beyond() {
        let mut node = field(NODE_OP, b"Identity");
        for depth in 0..=DEPTH_MAX {
            assert_eq!(Node::parse(&node, DEPTH_MAX).is_some(), depth <= DEPTH_MAX, "{depth}");
            node = field(NODE_ATTRIBUTE, &field(ATTRIBUTE_GRAPH, &field(GRAPH_NODE, &node)));
        }
        assert!(Node::parse(&node, DEPTH_MAX).is_none());
    }

    #[test]
    fn garbage_is_an_error_or_nothing() {
        assert!(read("nowhere.onnx").is_err());
        for len in 0..16 {
            fields(&vec![0xff; len], &mut |_, _| ());
            fields(&vec![0x0a; len], &mut |_, _| ());
            drop(Node::parse(&vec![0x2a; len], DEPTH_MAX));
        }
    }
}
