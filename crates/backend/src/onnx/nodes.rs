//! Which operators does a graph have, and what do they read and write?
//!
//! This module reads an ONNX file for the names that rules about graphs need ([`super::UntrustedInputs`], [`super::cost_bound`]). It skips weights, whatever
//! their size. It uses no library, so the result is the same for every runtime.

use std::collections::{BTreeSet, HashSet};
use std::io::{self, BufReader, Read, Seek, SeekFrom};

/// A node larger than this is expected to hold a constant. Such a node is not read, and the graph counts as incomplete.
const NODE_BYTES_MAX: u64 = 64 << 20;
/// The deepest nesting of graphs within operators of other graphs. ONNX Runtime reads no deeper either.
const DEPTH_MAX: usize = 32;
/// A constant with a longer name is left out, so nodes that read it are taken to read a value that is not constant.
const NAME_BYTES_MAX: u64 = 64 << 10;

/// The operators of a model, without its weights.
#[derive(Debug, Default)]
pub struct Nodes {
    /// The operators of the model's graph, in the order of the file: each operator comes after those whose results it reads.
    pub graph: Vec<Node>,
    /// The operators of the model's functions.
    pub functions: Vec<Node>,
    /// Names of the graph's constants (initialisers).
    pub constants: HashSet<String>,
    /// Files that hold values of constants (external data), as the model names them: relative to the folder of its file.
    pub external_files: BTreeSet<String>,
    /// Whether all nodes are known: none was too large to be read, and the model defines no functions.
    pub is_complete: bool,
}

/// One operator of a graph.
#[derive(Debug, Default)]
pub struct Node {
    /// The operator's name.
    pub op: String,
    /// The domain of its operator set. Empty for the standard operator set.
    pub domain: String,
    /// Names of the values that it reads. An optional input that is left out has the empty name.
    pub inputs: Vec<String>,
    /// Names of the values that it makes.
    pub outputs: Vec<String>,
    /// The operators of graphs within this operator (branches and loop bodies). They may read values of the graph around them.
    pub inner: Vec<Node>,
}

impl Nodes {
    /// Reads a whole ONNX file, from its beginning.
    pub fn read<R: Read + Seek>(mut source: R) -> io::Result<Nodes> {
        let end = source.seek(SeekFrom::End(0))?;
        source.rewind()?;
        let mut file = BufReader::new(source);
        let mut found = Nodes { is_complete: true, ..Nodes::default() };
        walk(&mut file, end, &mut |file, model, len| {
            let end = file.stream_position()? + len;
            match model {
                MODEL_GRAPH => walk(file, end, &mut |file, field, len| match field {
                    GRAPH_NODE => {
                        let node = read_node(file, len, &mut found.external_files)?;
                        found.is_complete &= node.is_some();
                        found.graph.extend(node);
                        Ok(())
                    }
                    GRAPH_INITIALIZER => read_constant(file, len, &mut found),
                    _ => skip(file, len),
                }),
                MODEL_FUNCTION => {
                    found.is_complete = false;
                    walk(file, end, &mut |file, field, len| match field {
                        FUNCTION_NODE => {
                            found.functions.extend(read_node(file, len, &mut found.external_files)?);
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

/// Reads a node of `len` bytes. `None` if the node is too large. Adds the files of its constants to `external_files`.
fn read_node<R: Read + Seek>(
    file: &mut BufReader<R>,
    len: u64,
    external_files: &mut BTreeSet<String>,
) -> io::Result<Option<Node>> {
    if len > NODE_BYTES_MAX {
        return skip(file, len).map(|()| None);
    }
    let node = Node::parse(&take(file, len)?, DEPTH_MAX, external_files);
    let too_deep =
        || io::Error::new(io::ErrorKind::InvalidData, format!("it has graphs in graphs deeper than {DEPTH_MAX}"));
    node.ok_or_else(too_deep).map(Some)
}

/// Reads a tensor of `len` bytes. Adds its name and the file of its values to `found`.
fn read_constant<R: Read + Seek>(file: &mut BufReader<R>, len: u64, found: &mut Nodes) -> io::Result<()> {
    let end = file.stream_position()? + len;
    walk(file, end, &mut |file, field, len| match field {
        TENSOR_NAME if len <= NAME_BYTES_MAX => {
            found.constants.insert(text(&take(file, len)?));
            Ok(())
        }
        TENSOR_EXTERNAL if len <= NAME_BYTES_MAX => {
            found.external_files.extend(location(&take(file, len)?));
            Ok(())
        }
        _ => skip(file, len),
    })
}

impl Node {
    /// Parses a node. `None` if graphs within it are nested deeper than `depth_max`. Such graphs are refused because the parser is recursive.
    fn parse(bytes: &[u8], depth_max: usize, external_files: &mut BTreeSet<String>) -> Option<Node> {
        let mut node = Node::default();
        let mut is_flat = true;
        fields(bytes, &mut |field, value| match field {
            NODE_INPUT => node.inputs.push(text(value)),
            NODE_OUTPUT => node.outputs.push(text(value)),
            NODE_OP => node.op = text(value),
            NODE_DOMAIN => node.domain = text(value),
            NODE_ATTRIBUTE => fields(value, &mut |field, value| match field {
                ATTRIBUTE_TENSOR | ATTRIBUTE_TENSORS => note_files(value, external_files),
                ATTRIBUTE_GRAPH | ATTRIBUTE_GRAPHS => fields(value, &mut |field, value| {
                    if field == GRAPH_INITIALIZER {
                        note_files(value, external_files);
                    }
                    if field == GRAPH_NODE && is_flat {
                        let deeper = depth_max.checked_sub(1);
                        let inner = deeper.and_then(|depth_max| Node::parse(value, depth_max, external_files));
                        is_flat = inner.is_some();
                        node.inner.extend(inner);
                    }
                }),
                _ => {}
            }),
            _ => {}
        });
        is_flat.then_some(node)
    }

    /// Whether the ONNX standard defines this operator. A function of the model could replace the definition.
    pub fn is_standard(&self) -> bool {
        matches!(self.domain.as_str(), "" | "ai.onnx")
    }
}

/// Adds the files that the tensor with these encoded bytes names.
fn note_files(tensor: &[u8], external_files: &mut BTreeSet<String>) {
    fields(tensor, &mut |field, value| {
        if field == TENSOR_EXTERNAL && value.len() as u64 <= NAME_BYTES_MAX {
            external_files.extend(location(value));
        }
    });
}

/// The file name in an entry of external data. `None` if the entry has another key.
fn location(entry: &[u8]) -> Option<String> {
    let (mut key, mut named) = (String::new(), None);
    fields(entry, &mut |field, value| match field {
        ENTRY_KEY => key = text(value),
        ENTRY_VALUE => named = Some(text(value)),
        _ => {}
    });
    named.filter(|_| key == "location")
}

// Field numbers of onnx.proto.
const MODEL_GRAPH: u64 = 7;
const MODEL_FUNCTION: u64 = 25;
const FUNCTION_NODE: u64 = 7;
const GRAPH_NODE: u64 = 1;
const GRAPH_INITIALIZER: u64 = 5;
const TENSOR_NAME: u64 = 8;
const TENSOR_EXTERNAL: u64 = 13;
const ENTRY_KEY: u64 = 1;
const ENTRY_VALUE: u64 = 2;
const NODE_INPUT: u64 = 1;
const NODE_OUTPUT: u64 = 2;
const NODE_OP: u64 = 4;
const NODE_ATTRIBUTE: u64 = 5;
const NODE_DOMAIN: u64 = 7;
const ATTRIBUTE_TENSOR: u64 = 5;
const ATTRIBUTE_GRAPH: u64 = 6;
const ATTRIBUTE_TENSORS: u64 = 10;
const ATTRIBUTE_GRAPHS: u64 = 11;

type Visit<'a, R> = &'a mut dyn FnMut(&mut BufReader<R>, u64, u64) -> io::Result<()>;

/// Visits the length-delimited fields of a message that ends at the position `end` of the file. The visitor gets the number and the length of a
/// field, and must read or skip its bytes.
fn walk<R: Read + Seek>(file: &mut BufReader<R>, end: u64, visit: Visit<'_, R>) -> io::Result<()> {
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

fn skip<R: Read + Seek>(file: &mut BufReader<R>, len: u64) -> io::Result<()> {
    match i64::try_from(len) {
        Ok(len) => file.seek_relative(len),
        Err(_) => file.seek(SeekFrom::End(0)).map(drop),
    }
}

/// Reads the next `len` bytes. The caller has bounded `len`.
fn take<R: Read + Seek>(file: &mut BufReader<R>, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len as usize];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn byte<R: Read + Seek>(file: &mut BufReader<R>) -> io::Result<u8> {
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

/// Visits the length-delimited fields of a message in memory. Stops at the first bytes that are no field.
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
        let models = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/models");
        Nodes::read(std::fs::File::open(models.join(name))?)
    }

    #[test]
    fn a_file_is_read_without_its_weights() {
        let pick = read("pick.onnx").unwrap();
        let ops: Vec<&str> = pick.graph.iter().map(|node| node.op.as_str()).collect();
        assert!(ops.contains(&"Gather") && pick.is_complete, "{pick:?}");
        assert!(pick.graph.iter().all(Node::is_standard));
    }

    fn parse(bytes: &[u8]) -> Option<Node> {
        Node::parse(bytes, DEPTH_MAX, &mut BTreeSet::new())
    }

    /// An encoded field with this number and these bytes.
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
    fn files_of_constants_are_found_wherever_a_constant_is() {
        let entry = |key: &str, value: &str| {
            let fields = [field(ENTRY_KEY, key.as_bytes()), field(ENTRY_VALUE, value.as_bytes())].concat();
            field(TENSOR_EXTERNAL, &fields)
        };
        let tensor = |file: &str| [entry("offset", "64"), entry("location", file), entry("length", "8")].concat();
        let initializer = field(GRAPH_INITIALIZER, &tensor("a.data"));
        let inner = field(NODE_ATTRIBUTE, &field(ATTRIBUTE_GRAPH, &field(GRAPH_INITIALIZER, &tensor("b.data"))));
        let constant = field(NODE_ATTRIBUTE, &field(ATTRIBUTE_TENSOR, &tensor("c.data")));
        let nodes = [field(GRAPH_NODE, &inner), field(GRAPH_NODE, &constant)].concat();
        let model = field(MODEL_GRAPH, &[initializer, nodes].concat());
        let found = Nodes::read(io::Cursor::new(model)).unwrap();
        assert_eq!(found.external_files.into_iter().collect::<Vec<_>>(), ["a.data", "b.data", "c.data"]);
        assert!(read("pick.onnx").unwrap().external_files.is_empty());
    }

    #[test]
    fn graphs_in_graphs_are_read_to_a_depth_and_refused_beyond() {
        let mut node = field(NODE_OP, b"Identity");
        for depth in 0..=DEPTH_MAX {
            assert_eq!(parse(&node).is_some(), depth <= DEPTH_MAX, "{depth}");
            node = field(NODE_ATTRIBUTE, &field(ATTRIBUTE_GRAPH, &field(GRAPH_NODE, &node)));
        }
        assert!(parse(&node).is_none());
    }

    #[test]
    fn garbage_is_an_error_or_nothing() {
        assert!(read("nowhere.onnx").is_err());
        for len in 0..16 {
            fields(&vec![0xff; len], &mut |_, _| ());
            fields(&vec![0x0a; len], &mut |_, _| ());
            drop(parse(&vec![0x2a; len]));
        }
    }
}
