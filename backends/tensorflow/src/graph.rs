//! How is a frozen graph read and checked?
//!
//! It is read once and checked: names are unique, inputs name existing nodes, and the nodes that the outputs need have no cycle.

use std::collections::HashMap;

use nerite_backend_sdk::Error;
use prost::Message;
use tract_tensorflow::tfpb::tensorflow::{GraphDef, NodeDef};

use crate::limits::NODES_MAX;

/// A graph whose nodes know their inputs.
#[derive(Debug)]
pub struct Graph {
    nodes: Vec<Node>,
    by_name: HashMap<String, usize>,
}

/// One operation.
#[derive(Debug)]
pub struct Node {
    /// Its definition in the file.
    pub def: NodeDef,
    /// The nodes of its inputs, in order.
    pub inputs: Vec<usize>,
}

/// The nodes of a graph that some outputs need.
#[derive(Debug)]
pub struct Selection {
    /// Its nodes. Each is behind the nodes of its inputs.
    pub order: Vec<usize>,
    /// The nodes of the outputs.
    pub outputs: Vec<usize>,
}

impl Graph {
    /// Reads a file's content.
    pub fn decode(content: &[u8]) -> Result<Graph, Error> {
        let graph = GraphDef::decode(content)
            .map_err(|cause| Error::invalid(format!("the file is no frozen graph of TensorFlow: {cause}")))?;
        if graph.node.is_empty() {
            return Err(Error::invalid("the file is no frozen graph of TensorFlow: it has no node"));
        }
        let mut by_name = HashMap::with_capacity(graph.node.len());
        for (index, def) in graph.node.iter().enumerate() {
            if by_name.insert(def.name.clone(), index).is_some() {
                return Err(Error::invalid(format!("two nodes of the graph are called '{}'", def.name)));
            }
        }
        let nodes = graph.node.into_iter().map(|def| Ok(Node { inputs: inputs(&def, &by_name)?, def }));
        let nodes = nodes.collect::<Result<Vec<Node>, Error>>()?;
        Ok(Graph { nodes, by_name })
    }

    /// A node by its number.
    pub fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    /// All placeholders, which take a tensor from a client.
    pub fn placeholders(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(move |index| self.nodes[*index].def.op == "Placeholder")
    }

    /// The nodes whose output is no input of another node.
    pub fn ends(&self) -> Vec<usize> {
        let mut is_taken = vec![false; self.nodes.len()];
        for taken in self.nodes.iter().flat_map(|node| &node.inputs) {
            is_taken[*taken] = true;
        }
        let is_end = |index: &usize| {
            let op = self.nodes[*index].def.op.as_str();
            !is_taken[*index] && !matches!(op, "NoOp" | "Assert" | "Placeholder" | "Const")
        };
        (0..self.nodes.len()).filter(is_end).collect()
    }

    /// The node of that name. A suffix `:0` is accepted: it is the only output that the operations here have.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name.strip_suffix(":0").unwrap_or(name)).copied()
    }

    /// Selects the nodes that these outputs need.
    pub fn select(&self, outputs: Vec<usize>) -> Result<Selection, Error> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Mark::New; self.nodes.len()];
        let mut order = Vec::new();
        // Each entry is a node and the number of its inputs that were visited. A recursion could overflow the stack, because a chain may be long.
        let mut open: Vec<(usize, usize)> = Vec::new();
        for output in &outputs {
            if marks[*output] == Mark::New {
                marks[*output] = Mark::Open;
                open.push((*output, 0));
            }
            while let Some((index, looked)) = open.pop() {
                let Some(next) = self.nodes[index].inputs.get(looked) else {
                    marks[index] = Mark::Done;
                    order.push(index);
                    continue;
                };
                open.push((index, looked + 1));
                match marks[*next] {
                    Mark::Done => {}
                    Mark::Open => {
                        let name = &self.nodes[*next].def.name;
                        return Err(Error::invalid(format!("node '{name}' of the graph needs its own output")));
                    }
                    Mark::New => {
                        marks[*next] = Mark::Open;
                        open.push((*next, 0));
                    }
                }
            }
        }
        if order.len() > NODES_MAX {
            let text = format!("the outputs need {} nodes of the graph, at most {NODES_MAX} are taken", order.len());
            return Err(Error::unsupported(text));
        }
        Ok(Selection { order, outputs })
    }
}

/// The nodes of one node's inputs. Control edges are ignored: they order side effects, which no operation here has.
fn inputs(def: &NodeDef, by_name: &HashMap<String, usize>) -> Result<Vec<usize>, Error> {
    let tensors = def.input.iter().filter(|input| !input.starts_with('^'));
    let find = |input: &String| {
        let (name, output) = input.rsplit_once(':').unwrap_or((input, "0"));
        if output != "0" {
            return Err(Error::unsupported(format!(
                "node '{}' ({}) takes output {output} of '{name}'; this engine has operations with one output only",
                def.name, def.op
            )));
        }
        by_name.get(name).copied().ok_or_else(|| {
            Error::invalid(format!("node '{}' ({}) takes '{name}', which is not in the graph", def.name, def.op))
        })
    };
    tensors.map(find).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tract_tensorflow::tfpb::{graph, node};

    use super::*;

    #[track_caller]
    fn check(nodes: &[(&str, &str, &[&str])], expect: Result<&[&str], &str>) {
        let mut made = graph();
        for (name, op, inputs) in nodes {
            let start = node().name(name).op(op);
            made = made.node(inputs.iter().fold(start, NodeDef::input));
        }
        let graph = Graph::decode(&made.write_to_bytes().unwrap());
        let found = graph.and_then(|graph| {
            let selected = graph.select(graph.ends())?;
            Ok(selected.order.iter().map(|index| graph.node(*index).def.name.clone()).collect::<Vec<_>>())
        });
        match (found, expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect),
            (Err(found), Err(expect)) => assert!(found.text().contains(expect), "{found}"),
            (found, _) => panic!("{found:?}"),
        }
    }

    #[test]
    fn nodes_are_behind_their_inputs() {
        check(
            &[("c", "Add", &["a", "b:0"]), ("a", "Placeholder", &[]), ("b", "Neg", &["a", "^c"])],
            Ok(&["a", "b", "c"]),
        );
        check(&[("a", "Placeholder", &[]), ("b", "NoOp", &[]), ("unused", "Placeholder", &[])], Ok(&[]));
    }

    #[test]
    fn a_broken_graph_is_refused_with_the_node_at_fault() {
        check(&[], Err("it has no node"));
        check(&[("a", "Neg", &["b"])], Err("node 'a' (Neg) takes 'b', which is not in the graph"));
        check(&[("a", "Neg", &["b:1"]), ("b", "Split", &[])], Err("takes output 1 of 'b'"));
        check(&[("a", "Neg", &["b"]), ("b", "Neg", &["a"]), ("c", "Neg", &["b"])], Err("needs its own output"));
        check(&[("a", "Placeholder", &[]), ("a", "Placeholder", &[])], Err("two nodes of the graph are called 'a'"));
        assert!(Graph::decode(&[0xff; 64]).unwrap_err().text().contains("no frozen graph"));
    }

    #[test]
    fn a_long_chain_needs_no_stack() {
        let chain = |count: usize| {
            let first = graph().node(node().name("n0").op("Placeholder"));
            (1..count).fold(first, |made, at| {
                made.node(node().name(format!("n{at}")).op("Neg").input(format!("n{}", at - 1)))
            })
        };
        let long = Graph::decode(&chain(100_000).write_to_bytes().unwrap()).unwrap();
        assert!(long.select(long.ends()).unwrap_err().text().contains("need 100000 nodes"));
    }
}
