//! How is a graph loaded, and which plans does it keep?

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use nerite_backend_sdk::{DataType, Error};

use crate::attributes;
use crate::config::{Config, Tensor};
use crate::fact::Fact;
use crate::graph::{Graph, Selection};
use crate::limits::{PLAN_BYTES_MAX, PLANS_MAX};
use crate::plan::{Plan, check_operations, lower};

/// Sizes that are tried for variable dimensions at load. The first one that fits all shapes is used.
const TRIED: [usize; 4] = [1, 32, 224, 1024];

/// A graph with the inputs and outputs of its model.
pub struct Graphdef {
    graph: Graph,
    selection: Selection,
    /// The placeholders of the inputs, in their order.
    placeholders: Vec<usize>,
    /// The inputs. Their dimensions include that of the rows.
    pub inputs: Vec<Tensor>,
    /// The outputs. Their dimensions include that of the rows.
    pub outputs: Vec<Tensor>,
    /// The most rows; 0 for a model without batches.
    pub max_batch_size: usize,
    /// Whether the first dimension of all inputs and outputs is the number of rows.
    has_rows: bool,
    run_bytes_max: u64,
    plans_max: usize,
    /// The plans that were used last. The most recent one is at the end.
    plans: Mutex<VecDeque<Kept>>,
}

/// A plan, with its input shapes.
type Kept = (Vec<Vec<usize>>, Arc<Plan>);

/// The result of a load: the graph, and its configuration if that was completed.
pub struct Loaded {
    /// The graph.
    pub graph: Graphdef,
    /// The completed configuration.
    pub completed: Option<String>,
}

/// Loads a graph from the content of its file.
pub fn load(content: &[u8], config: &Config, completes: bool, default_batch: usize) -> Result<Loaded, Error> {
    let graph = Graph::decode(content)?;
    let selection = graph.select(wanted(&graph, config)?)?;
    if selection.outputs.is_empty() {
        return Err(Error::invalid("the graph has no output"));
    }
    check_operations(&graph, &selection)?;
    let is_bare = config.inputs.is_empty() && config.outputs.is_empty();
    if !completes && (config.inputs.is_empty() || config.outputs.is_empty()) {
        return Err(Error::invalid("the configuration names no inputs or no outputs, and must not be completed"));
    }
    let placeholders = placeholders(&graph, &selection, config)?;
    let inputs = placeholders.iter().map(|index| input(&graph, *index, config)).collect::<Result<Vec<Tensor>, _>>()?;
    let plans_max = (PLAN_BYTES_MAX / content.len().max(1) as u64).clamp(1, PLANS_MAX as u64) as usize;
    let mut made = Graphdef {
        graph,
        selection,
        placeholders,
        inputs,
        outputs: Vec::new(),
        max_batch_size: config.max_batch_size,
        has_rows: false,
        run_bytes_max: config.run_bytes_max,
        plans_max,
        plans: Mutex::default(),
    };
    made.settle_outputs()?;
    if is_bare && made.max_batch_size == 0 && made.has_rows {
        made.max_batch_size = default_batch;
    }
    made.check_outputs(config)?;
    let bare = |tensor: &Tensor| Tensor {
        dims: tensor.dims[usize::from(made.max_batch_size > 0)..].to_vec(),
        ..tensor.clone()
    };
    let without_rows = |tensors: &[Tensor]| tensors.iter().map(bare).collect::<Vec<_>>();
    let is_whole = !config.inputs.is_empty() && !config.outputs.is_empty();
    let completed = (!is_whole)
        .then(|| config.completed(made.max_batch_size, &without_rows(&made.inputs), &without_rows(&made.outputs)));
    Ok(Loaded { graph: made, completed })
}

/// The nodes of the outputs that the configuration names, or all nodes whose output is no input of another node.
fn wanted(graph: &Graph, config: &Config) -> Result<Vec<usize>, Error> {
    if config.outputs.is_empty() {
        return Ok(graph.ends());
    }
    let find = |output: &Tensor| {
        graph
            .find(&output.name)
            .ok_or_else(|| Error::invalid(format!("output '{}' is no node of the graph", output.name)))
    };
    config.outputs.iter().map(find).collect()
}

/// The placeholders of the inputs, in the order of the configuration, or of the graph.
fn placeholders(graph: &Graph, selection: &Selection, config: &Config) -> Result<Vec<usize>, Error> {
    if config.inputs.is_empty() {
        return Ok(graph.placeholders().filter(|index| selection.order.contains(index)).collect());
    }
    let find = |input: &Tensor| {
        let found = graph.find(&input.name).filter(|index| graph.node(*index).def.op == "Placeholder");
        found.ok_or_else(|| Error::invalid(format!("input '{}' is no placeholder of the graph", input.name)))
    };
    config.inputs.iter().map(find).collect()
}

/// An input, from the graph and the configuration together.
fn input(graph: &Graph, index: usize, config: &Config) -> Result<Tensor, Error> {
    let def = &graph.node(index).def;
    let about = |what: String| Error::invalid(format!("placeholder '{}' of the graph: {what}", def.name));
    let datatype = attributes::datatype(def, "dtype").map_err(about)?;
    let drawn = attributes::shape(def, "shape");
    let said = config.inputs.iter().find(|input| graph.find(&input.name) == Some(index));
    let Some(said) = said else {
        let dims = drawn.ok_or_else(|| about("it has no shape; the configuration must give its dims".to_owned()))?;
        return Ok(Tensor { name: def.name.clone(), datatype, dims });
    };
    if said.datatype != datatype {
        let (found, configured) = (datatype.name(), said.datatype.name());
        return Err(about(format!("it is {found}, and the configuration says {configured}")));
    }
    let rows = (config.max_batch_size > 0).then_some(None);
    let configured: Vec<Option<usize>> = rows.into_iter().chain(said.dims.iter().copied()).collect();
    let drawn = drawn.unwrap_or_else(|| vec![None; configured.len()]);
    let fits = |(a, b): (&Option<usize>, &Option<usize>)| a.is_none() || b.is_none() || a == b;
    if drawn.is_empty() && configured == [Some(1)] {
        return Ok(Tensor { name: said.name.clone(), datatype, dims: drawn });
    }
    let batches = rows.is_none() || drawn.first() == Some(&None);
    if drawn.len() != configured.len() || !drawn.iter().zip(&configured).all(fits) || !batches {
        let how = if rows.is_some() { " behind the dimension of the rows, which must vary" } else { "" };
        return Err(about(format!(
            "it has the shape {}, and the configuration says {}{how}",
            shown(&drawn),
            shown(&said.dims)
        )));
    }
    let dims = drawn.iter().zip(&configured).map(|(drawn, configured)| drawn.or(*configured)).collect();
    Ok(Tensor { name: said.name.clone(), datatype, dims })
}

fn shown(dims: &[Option<usize>]) -> String {
    let dims: Vec<String> = dims.iter().map(|dim| dim.map_or("-1".to_owned(), |dim| dim.to_string())).collect();
    format!("[{}]", dims.join(", "))
}

impl Graphdef {
    /// Computes the outputs' shapes, and makes the first plan, so that an operation that the engine refuses fails the load.
    fn settle_outputs(&mut self) -> Result<(), Error> {
        let mut first = None;
        let varies = self.inputs.iter().any(|input| input.dims.contains(&None));
        for size in &TRIED[..if varies { TRIED.len() } else { 1 }] {
            match self.plan(&self.sized(*size, 1), 1) {
                Ok(plan) => {
                    // Other sizes show which dimensions vary. It is no error if they do not fit, because the first ones did.
                    let other = self.facts(&self.sized(size + 1, 2), 1);
                    let other = lower(&self.graph, &self.selection, &other, self.run_bytes_max);
                    let other = other.ok().map(|other| other.facts);
                    let follow = |facts: &[Fact], rows| facts.iter().all(|fact| fact.dims.first() == Some(&rows));
                    self.has_rows = self.inputs.iter().all(|input| input.dims.first() == Some(&None))
                        && follow(&plan.facts, 1)
                        && other.as_ref().is_some_and(|other| follow(other, 2));
                    self.outputs = self.named(&plan.facts, other);
                    return Ok(());
                }
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| Error::internal("no size was tried")))
    }

    /// The inputs' shapes with `size` for variable dimensions, and `rows` rows if the first dimension of all inputs varies.
    fn sized(&self, size: usize, rows: usize) -> Vec<Vec<usize>> {
        let has_rows = self.inputs.iter().all(|input| input.dims.first() == Some(&None));
        let one = |(at, dim): (usize, &Option<usize>)| dim.unwrap_or(if at == 0 && has_rows { rows } else { size });
        self.inputs.iter().map(|input| input.dims.iter().enumerate().map(one).collect()).collect()
    }

    fn named(&self, facts: &[Fact], other: Option<Vec<Fact>>) -> Vec<Tensor> {
        let dims = |index: usize, fact: &Fact| {
            let other = other.as_ref().and_then(|other| other.get(index)).filter(|other| other.rank() == fact.rank());
            let one = |(at, dim): (usize, &usize)| other.is_none_or(|other| other.dims[at] == *dim).then_some(*dim);
            fact.dims.iter().enumerate().map(one).collect()
        };
        let name = |index: usize| self.graph.node(self.selection.outputs[index]).def.name.clone();
        facts
            .iter()
            .enumerate()
            .map(|(at, fact)| Tensor { name: name(at), datatype: fact.datatype, dims: dims(at, fact) })
            .collect()
    }

    /// Compares the outputs with the configuration, and gives them its names.
    fn check_outputs(&mut self, config: &Config) -> Result<(), Error> {
        for (found, said) in self.outputs.iter_mut().zip(&config.outputs) {
            let rows = usize::from(self.max_batch_size > 0);
            let dims = found.dims.get(rows..).unwrap_or_default();
            // A tensor with one element stands for a scalar.
            let dims = if found.dims.is_empty() { &[Some(1)] } else { dims };
            let fits = |(a, b): (&Option<usize>, &Option<usize>)| a.is_none() || b.is_none() || a == b;
            if found.datatype != said.datatype
                || dims.len() != said.dims.len()
                || !dims.iter().zip(&said.dims).all(fits)
            {
                return Err(Error::invalid(format!(
                    "output '{}' of the graph is {} with the dims {}, and the configuration says {} with {}",
                    said.name,
                    found.datatype.name(),
                    shown(dims),
                    said.datatype.name(),
                    shown(&said.dims)
                )));
            }
            found.name.clone_from(&said.name);
        }
        if self.max_batch_size > 0 && !self.has_rows {
            return Err(Error::invalid(
                "max_batch_size is above 0, and the graph's outputs do not have a dimension of the rows",
            ));
        }
        Ok(())
    }

    fn facts(&self, dims: &[Vec<usize>], text_max: u64) -> Vec<(usize, Fact)> {
        let fact = |(input, dims): (&Tensor, &Vec<usize>)| {
            let text_max = if input.datatype == DataType::Bytes { text_max } else { 0 };
            Fact { text_max, ..Fact::new(input.datatype, dims.clone()) }
        };
        self.placeholders.iter().copied().zip(self.inputs.iter().zip(dims).map(fact)).collect()
    }

    /// The shapes of a request, in the order of the inputs, if they fit.
    pub fn check_shape(&self, index: usize, shape: &[i64]) -> Result<Vec<usize>, Error> {
        let input = &self.inputs[index];
        if input.dims.is_empty() && shape == [1] {
            return Ok(Vec::new());
        }
        let fits = |(dim, configured): (&i64, &Option<usize>)| {
            usize::try_from(*dim).ok().filter(|dim| configured.is_none_or(|configured| configured == *dim) && *dim > 0)
        };
        let found: Option<Vec<usize>> = shape.iter().zip(&input.dims).map(fits).collect();
        found.filter(|found| found.len() == input.dims.len()).ok_or_else(|| {
            Error::invalid(format!(
                "input '{}' has the shape {shape:?}, and the graph takes {} with one element or more",
                input.name,
                shown(&input.dims)
            ))
        })
    }

    /// The plan for inputs of these shapes. Their longest string has `text_max` bytes.
    pub fn plan(&self, dims: &[Vec<usize>], text_max: u64) -> Result<Arc<Plan>, Error> {
        let has_strings = self.inputs.iter().any(|input| input.datatype == DataType::Bytes);
        if !has_strings && let Some(found) = self.found(dims) {
            return Ok(found);
        }
        // The memory of strings depends on their length, so it is computed for each request with strings.
        let lowering = lower(&self.graph, &self.selection, &self.facts(dims, text_max), self.run_bytes_max)?;
        if let Some(found) = self.found(dims) {
            return Ok(found);
        }
        let made = Arc::new(Plan::new(lowering)?);
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        while plans.len() >= self.plans_max {
            plans.pop_front();
        }
        plans.push_back((dims.to_vec(), Arc::clone(&made)));
        Ok(made)
    }

    fn found(&self, dims: &[Vec<usize>]) -> Option<Arc<Plan>> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let at = plans.iter().position(|(of, _)| of == dims)?;
        let entry = plans.remove(at)?;
        let found = Arc::clone(&entry.1);
        plans.push_back(entry);
        Some(found)
    }
}
