//! How is a plan made for a graph and the shapes of its inputs?
//!
//! First each operation is lowered, which needs no tensors: shapes are checked, and the peak memory of a run is computed. Only a graph below the
//! limit is given to the engine, because the engine already computes with constants while it reads a graph.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nerite_backend_sdk::{DataType, Error};
use tract_tensorflow::prelude::*;
use tract_tensorflow::tfpb::tensorflow::tensor_shape_proto::Dim;
use tract_tensorflow::tfpb::tensorflow::{GraphDef, NodeDef, TensorShapeProto};
use tract_tensorflow::tract_core::internal::{OutletId, SimplePlan, TypedOp};

use crate::attributes::to_number;
use crate::fact::Fact;
use crate::graph::{Graph, Selection};
use crate::lowering::{Site, find, numbers_node};
use crate::operators::reader;
use crate::tensors::internal;

/// A graph that was lowered for given input shapes.
pub struct Lowering {
    nodes: Vec<NodeDef>,
    outputs: Vec<String>,
    /// The facts of the outputs.
    pub facts: Vec<Fact>,
}

/// Runs a graph for given input shapes.
pub struct Plan {
    runnable: Arc<SimplePlan<TypedFact, Box<dyn TypedOp>>>,
    /// The facts of the outputs.
    pub facts: Vec<Fact>,
}

/// Refuses a graph with operations that the engine lacks, and names them.
pub fn check_operations(graph: &Graph, selection: &Selection) -> Result<(), Error> {
    let mut lacking = BTreeMap::new();
    for index in &selection.order {
        let def = &graph.node(*index).def;
        if def.op != "Placeholder" && find(&def.op).is_none() {
            lacking.entry(def.op.as_str()).or_insert(def.name.as_str());
        }
    }
    if lacking.is_empty() {
        return Ok(());
    }
    let named: Vec<String> = lacking.iter().take(10).map(|(op, node)| format!("{op} (node '{node}')")).collect();
    let more =
        if lacking.len() > named.len() { format!(" and {} more", lacking.len() - named.len()) } else { String::new() };
    Err(Error::unsupported(format!("the graph needs operations that this engine lacks: {}{more}", named.join(", "))))
}

/// Lowers the selected nodes of a graph. `inputs` are the placeholders with their facts.
pub fn lower(
    graph: &Graph,
    selection: &Selection,
    inputs: &[(usize, Fact)],
    bytes_max: u64,
) -> Result<Lowering, Error> {
    let mut facts: BTreeMap<usize, Fact> = BTreeMap::new();
    // The engine orders its inputs by their nodes. So all placeholders are first, including those that no output needs.
    let mut nodes: Vec<NodeDef> =
        inputs.iter().map(|(index, fact)| placeholder(&graph.node(*index).def.name, fact)).collect();
    let mut memory = Memory::new(graph, selection);
    for index in &selection.order {
        let node = graph.node(*index);
        let about =
            |what: &str| Error::invalid(format!("node '{}' ({}) of the graph: {what}", node.def.name, node.def.op));
        let (fact, scratch) = if node.def.op == "Placeholder" {
            let given = inputs.iter().find(|(placeholder, _)| placeholder == index);
            let (_, fact) = given.ok_or_else(|| about("it is not an input of the model"))?;
            (fact.clone(), 0)
        } else {
            let lower = find(&node.def.op).ok_or_else(|| about("this engine lacks the operation"))?;
            let site = Site {
                node: &node.def,
                inputs: node.inputs.iter().filter_map(|input| facts.get(input)).collect(),
                names: node.inputs.iter().map(|input| graph.node(*input).def.name.as_str()).collect(),
            };
            let lowered = lower(&site).map_err(|what| about(&what))?;
            match &lowered.fact.known {
                // The engine gets shapes as constants, even if the graph computes them.
                Some(known) if node.def.op != "Const" => {
                    nodes.push(numbers_node(&node.def.name, lowered.fact.datatype, &lowered.fact.dims, known));
                }
                _ => nodes.extend(lowered.nodes),
            }
            (lowered.fact, lowered.scratch_bytes)
        };
        if fact.volume() == Some(0) && fact.known.is_none() {
            return Err(about(&format!("its output would have the shape {:?}, which has no element", fact.dims)));
        }
        memory.hold(*index, fact.bytes(), scratch).filter(|bytes| *bytes <= bytes_max).ok_or_else(|| {
            about(&format!(
                "with its output of shape {:?} the run would need more than {bytes_max} bytes at a time (parameter run_bytes_max of the model)",
                fact.dims
            ))
        })?;
        facts.insert(*index, fact);
    }
    let outputs = selection.outputs.iter().map(|index| graph.node(*index).def.name.clone()).collect();
    let facts = selection.outputs.iter().filter_map(|index| facts.get(index).cloned()).collect();
    Ok(Lowering { nodes, outputs, facts })
}

fn placeholder(name: &str, fact: &Fact) -> NodeDef {
    let dims = fact.dims.iter().map(|dim| Dim { size: *dim as i64, name: String::new() }).collect();
    let shape = TensorShapeProto { dim: dims, unknown_rank: false };
    let made = tract_tensorflow::tfpb::node().name(name).op("Placeholder");
    made.attr("dtype", to_number(fact.datatype).unwrap_or_default()).attr("shape", shape)
}

/// The bytes of live tensors: each lives from the node that makes it until its last use.
struct Memory<'g> {
    graph: &'g Graph,
    uses: BTreeMap<usize, usize>,
    sizes: BTreeMap<usize, u64>,
    now: u64,
    most: u64,
}

impl<'g> Memory<'g> {
    fn new(graph: &'g Graph, selection: &Selection) -> Memory<'g> {
        let mut uses = BTreeMap::new();
        let taken = selection.order.iter().flat_map(|index| &graph.node(*index).inputs);
        for input in taken.chain(&selection.outputs) {
            *uses.entry(*input).or_insert(0) += 1;
        }
        Memory { graph, uses, sizes: BTreeMap::new(), now: 0, most: 0 }
    }

    /// Adds the output of a node. Returns the peak so far.
    fn hold(&mut self, index: usize, bytes: Option<u64>, scratch: u64) -> Option<u64> {
        let bytes = bytes?;
        self.now = self.now.checked_add(bytes)?;
        // If the engine changes the layout of a tensor, two copies of it exist.
        self.most = self.most.max(self.now.checked_add(bytes)?.checked_add(scratch)?);
        self.sizes.insert(index, bytes);
        for input in &self.graph.node(index).inputs {
            let left = self.uses.get_mut(input)?;
            *left -= 1;
            if *left == 0 && self.graph.node(*input).def.op != "Const" {
                self.now -= self.sizes.get(input).copied().unwrap_or(0);
            }
        }
        Some(self.most)
    }
}

impl Plan {
    /// Makes the engine read and optimise a graph.
    pub fn new(lowering: Lowering) -> Result<Plan, Error> {
        let Lowering { nodes, outputs, facts } = lowering;
        let graph = GraphDef { node: nodes, ..GraphDef::default() };
        let runnable = guarded("the graph cannot be prepared", || {
            let mut model = reader().parse_graph(&graph)?.0;
            let outlets = outputs.iter().map(|name| Ok(OutletId::new(model.node_by_name(name)?.id, 0)));
            let outlets = outlets.collect::<TractResult<Vec<_>>>()?;
            model.select_output_outlets(&outlets)?;
            SimplePlan::new(model.into_optimized()?)
        })?;
        Ok(Plan { runnable, facts })
    }

    /// Runs the plan. The outputs are as in `facts`.
    pub fn run(&self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, Error> {
        let inputs = inputs.into_iter().map(IntoTValue::into_tvalue).collect();
        let found = guarded("the graph fails", || self.runnable.run(inputs))?;
        let outputs: Vec<Tensor> = found.into_iter().map(TValue::into_tensor).collect();
        for (output, fact) in outputs.iter().zip(&self.facts) {
            let is_right = crate::tensors::to_engine(fact.datatype) == Some(output.datum_type());
            if !is_right || output.shape() != fact.dims {
                return Err(Error::internal(format!(
                    "an output of {} with the shape {:?} was expected, and the engine made {:?} with the shape {:?}",
                    fact.datatype.name(),
                    fact.dims,
                    output.datum_type(),
                    output.shape()
                )));
            }
        }
        Ok(outputs)
    }
}

/// Runs the engine. A panic in it, such as a division by zero, becomes an error.
fn guarded<T>(about: &str, work: impl FnOnce() -> TractResult<T>) -> Result<T, Error> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(cause)) => Err(Error::invalid(format!("{about}: {}", internal(cause)))),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("the engine panicked");
            Err(Error::invalid(format!("{about}: {text}")))
        }
    }
}

/// Whether the engine supports tensors of that datatype.
pub fn is_known(datatype: DataType) -> bool {
    crate::tensors::to_engine(datatype).is_some()
}
