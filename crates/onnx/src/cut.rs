//! Where is a graph cut, so that its run can be ended in between?
//!
//! The engine runs a graph to its end and cannot be stopped. Only loops make a run endless, because a request can choose the number of their rounds.
//! So a graph is cut before and after each `Loop`. The pieces between loops and the bodies of loops become graphs of their own, and the server does
//! the rounds ([`crate::program`]). An `If` with a loop in one of its branches is cut in the same way.
//!
//! ```text
//!   x ─► Plain ─► Loop ─► Plain ─► y          each value has a place, by which the pieces pass it on
//!                  └─ body: Plain ─► Loop ─► Plain
//! ```

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use rten_onnx::onnx::{AttributeProto, DataLocation, GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto};

use crate::pieces::{LoopPiece, Piece, Plan, Program, Use};

/// Constants that several pieces read are copied. A graph stays whole if that would be more bytes than this. Large weights that the engine keeps as they
/// are need no copies ([`crate::weights`]).
const COPIED_BYTES_MAX: usize = 16 << 20;

/// The most steps to find out from which inputs the outputs of one piece are computed. If it would take more, each output counts as computed from
/// all.
const NEEDS_STEPS_MAX: usize = 1 << 20;

/// Whether the graph has loops, and no constants in other files. A graph with such constants cannot be cut.
pub fn can_be_cut(graph: &GraphProto) -> bool {
    graph.node.iter().any(has_loop) && !has_constant_outside(graph)
}

/// The pieces of a graph that can be cut. `None` if it must stay whole all the same: a value is read before it is made, a name that the cut needs is
/// taken, or too many bytes would be copied.
pub fn cut(graph: &GraphProto) -> Option<Program<GraphProto>> {
    Cutter::new(graph, &[], &HashMap::new(), Scope::Outermost(Rc::default()))?.program()
}

fn is_standard(node: &NodeProto, op: &str) -> bool {
    node.op_type.as_deref() == Some(op)
        && node.domain.as_deref().is_none_or(|domain| domain.is_empty() || domain == "ai.onnx")
}

fn has_loop(node: &NodeProto) -> bool {
    is_standard(node, "Loop") || is_standard(node, "If") && inner(node).any(|graph| graph.node.iter().any(has_loop))
}

fn has_constant_outside(graph: &GraphProto) -> bool {
    let is_outside = |constant: &TensorProto| constant.data_location == Some(DataLocation::EXTERNAL);
    let attributes = || graph.node.iter().flat_map(|node| &node.attribute);
    graph.initializer.iter().any(is_outside)
        || attributes()
            .any(|one| one.t.as_ref().is_some_and(is_outside) || one.g.as_ref().is_some_and(has_constant_outside))
}

fn inner(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().filter_map(|attribute| attribute.g.as_ref())
}

fn branch<'g>(node: &'g NodeProto, name: &str) -> Option<&'g GraphProto> {
    let is_it = |attribute: &&AttributeProto| attribute.name.as_deref() == Some(name);
    node.attribute.iter().find(is_it)?.g.as_ref()
}

/// The names of values.
pub fn names(values: &[ValueInfoProto]) -> impl Iterator<Item = &str> {
    values.iter().filter_map(|value| value.name.as_deref())
}

/// The names that a node reads, also inside its inner graphs.
pub fn reads<'g>(node: &'g NodeProto, found: &mut Vec<&'g str>) {
    found.extend(node.input.iter().map(String::as_str).filter(|name| !name.is_empty()));
    for graph in inner(node) {
        captures(graph, found);
    }
}

/// The names that a graph takes from the one around it.
fn captures<'g>(graph: &'g GraphProto, found: &mut Vec<&'g str>) {
    let mut read = Vec::new();
    for node in &graph.node {
        reads(node, &mut read);
    }
    read.extend(names(&graph.output));
    let constants = graph.initializer.iter().filter_map(|constant| constant.name.as_deref());
    let made = graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str));
    let own: HashSet<&str> = names(&graph.input).chain(constants).chain(made).collect();
    found.extend(read.into_iter().filter(|name| !own.contains(name)));
}

/// A value that the graph states. Each piece that reads it has a copy, except of its bytes if they are shared.
#[derive(Clone, Copy)]
enum Constant<'g> {
    Initializer(&'g TensorProto),
    Node(&'g NodeProto),
}

impl Constant<'_> {
    fn bytes(self) -> usize {
        let of_tensor = |constant: &TensorProto| {
            let raw = constant.raw_data.as_ref().map_or(0, |raw| raw.borrow().len());
            let (words, longs) = (
                constant.float_data.len() + constant.int32_data.len(),
                constant.int64_data.len() + constant.double_data.len(),
            );
            raw + words * size_of::<i32>() + longs * size_of::<i64>()
        };
        match self {
            Constant::Initializer(constant) => of_tensor(constant),
            Constant::Node(node) => {
                let of_list =
                    |list: &AttributeProto| list.floats.len() * size_of::<f32>() + list.ints.len() * size_of::<i64>();
                node.attribute.iter().map(|one| of_list(one) + one.t.as_ref().map_or(0, of_tensor)).sum()
            }
        }
    }

    fn address(self) -> usize {
        match self {
            Constant::Initializer(constant) => std::ptr::from_ref(constant).addr(),
            Constant::Node(node) => std::ptr::from_ref(node).addr(),
        }
    }
}

/// Counts the bytes of constants beyond their first reader.
#[derive(Default)]
struct Copies {
    read: RefCell<HashSet<usize>>,
    bytes: Cell<usize>,
}

impl Copies {
    /// Notes that a piece reads the constant. `None` if too many bytes would be copied.
    fn note(&self, constant: Constant<'_>) -> Option<()> {
        if !self.read.borrow_mut().insert(constant.address()) {
            self.bytes.set(self.bytes.get().saturating_add(constant.bytes()));
        }
        (self.bytes.get() <= COPIED_BYTES_MAX).then_some(())
    }
}

/// Whether the graph that is cut is the outermost one or an inner one. All graphs of a file count their copies together.
#[derive(Clone)]
enum Scope {
    Outermost(Rc<Copies>),
    Inner(Rc<Copies>),
}

impl Scope {
    fn copies(&self) -> &Rc<Copies> {
        let (Scope::Outermost(copies) | Scope::Inner(copies)) = self;
        copies
    }

    fn inner(&self) -> Scope {
        Scope::Inner(Rc::clone(self.copies()))
    }
}

/// The nodes of a piece, before it is known what other pieces read of it.
enum Section<'g> {
    Plain(Vec<NodeProto>),
    Cut(&'g NodeProto),
}

struct Cutter<'g> {
    graph: &'g GraphProto,
    scope: Scope,
    constants: HashMap<&'g str, Constant<'g>>,
    places: HashMap<String, usize>,
    inputs: Vec<String>,
    outputs: Vec<String>,
    sections: Vec<Section<'g>>,
    /// What each section reads of others, each name once.
    read: Vec<Vec<String>>,
}

impl<'g> Cutter<'g> {
    fn new(
        graph: &'g GraphProto,
        captured: &[String],
        outer: &HashMap<&'g str, Constant<'g>>,
        scope: Scope,
    ) -> Option<Cutter<'g>> {
        let mut constants = outer.clone();
        for made in names(&graph.input).chain(graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str)))
        {
            constants.remove(made);
        }
        constants.extend(
            graph.initializer.iter().filter_map(|one| Some((one.name.as_deref()?, Constant::Initializer(one)))),
        );
        let stated = graph.node.iter().filter(|node| is_standard(node, "Constant"));
        constants.extend(stated.filter_map(|node| Some((node.output.first()?.as_str(), Constant::Node(node)))));
        let given = names(&graph.input).filter(|name| !constants.contains_key(name)).map(str::to_owned);
        let inputs: Vec<String> = given.chain(captured.iter().cloned()).collect();
        let outputs = names(&graph.output).map(str::to_owned).collect();
        let (places, sections, read) = (HashMap::new(), Vec::new(), Vec::new());
        let mut cutter = Cutter { graph, scope, constants, places, inputs, outputs, sections, read };
        if cutter.is_name_taken() {
            return None;
        }
        cutter.take_sections();
        cutter.give_places()?;
        Some(cutter)
    }

    /// Whether the graph already uses a name that the cut gives to a constant as a value ([`value_of`]).
    fn is_name_taken(&self) -> bool {
        let made = self.graph.node.iter().flat_map(|node| node.output.iter());
        let taken: HashSet<&str> = self.inputs.iter().chain(made).map(String::as_str).collect();
        self.constants.keys().any(|constant| {
            let name = value_of(constant);
            taken.contains(name.as_str()) || self.constants.contains_key(name.as_str())
        })
    }

    /// Divides the nodes. Where a loop or the caller needs a constant as a value, an operator makes it one.
    fn take_sections(&mut self) {
        let mut plain = Vec::new();
        for node in self.graph.node.iter().filter(|node| !is_standard(node, "Constant")) {
            if !has_loop(node) {
                plain.push(node.clone());
                continue;
            }
            let wanted = node.input.iter().filter(|name| self.constants.contains_key(name.as_str()));
            plain.extend(wanted.map(|name| as_value(name)));
            self.sections.push(Section::Plain(std::mem::take(&mut plain)));
            self.sections.push(Section::Cut(node));
        }
        for output in &mut self.outputs {
            if self.constants.contains_key(output.as_str()) {
                plain.push(as_value(output));
                *output = value_of(output);
            }
        }
        self.sections.push(Section::Plain(plain));
        let mut made = HashSet::new();
        for section in &mut self.sections {
            if let Section::Plain(nodes) = section {
                // Two loops may need the same constant.
                nodes.retain(|node| node.output.iter().any(String::is_empty) || made.insert(node.output.clone()));
            }
        }
        self.sections.retain(|section| !matches!(section, Section::Plain(nodes) if nodes.is_empty()));
    }

    /// Gives each value a place, in the order in which they are made. `None` if a section reads a value that neither it nor an earlier one makes.
    fn give_places(&mut self) -> Option<()> {
        place(&mut self.places, &self.inputs);
        for section in &self.sections {
            let (mut read, mut own) = (Vec::new(), HashSet::new());
            match section {
                Section::Plain(nodes) => {
                    for node in nodes {
                        reads(node, &mut read);
                    }
                    own.extend(nodes.iter().flat_map(|node| node.output.iter().map(String::as_str)));
                }
                Section::Cut(node) => reads(node, &mut read),
            }
            let is_cut = matches!(section, Section::Cut(_));
            let mut names: Vec<String> = Vec::new();
            for name in read.into_iter().filter(|name| !own.contains(name)) {
                let name = match self.constants.contains_key(name) {
                    true if is_cut && self.places.contains_key(&value_of(name)) => value_of(name),
                    true => continue,
                    false => name.to_owned(),
                };
                self.places.get(&name)?;
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            self.read.push(names);
            match section {
                Section::Plain(nodes) => nodes.iter().for_each(|node| place(&mut self.places, &node.output)),
                Section::Cut(node) => place(&mut self.places, &node.output),
            }
        }
        self.outputs.iter().all(|name| self.places.contains_key(name)).then_some(())
    }

    fn program(self) -> Option<Program<GraphProto>> {
        let mut pieces = Vec::with_capacity(self.sections.len());
        for (at, section) in self.sections.iter().enumerate() {
            pieces.push(match section {
                Section::Plain(nodes) => self.plain(at, nodes)?,
                Section::Cut(node) if is_standard(node, "Loop") => self.rounds(node)?,
                Section::Cut(node) => self.choice(node)?,
            });
        }
        let placed =
            |names: &[String]| names.iter().map(|name| Some((name.clone(), *self.places.get(name)?))).collect();
        let outputs: Option<Vec<_>> = placed(&self.outputs);
        // The caller knows an output by the name that the graph has for it.
        let named = names(&self.graph.output).map(str::to_owned).zip(outputs?).map(|(name, (_, place))| (name, place));
        let (values, inputs, plan) = (self.places.len(), placed(&self.inputs)?, Plan::default());
        let mut program = Program { values, inputs, pieces, outputs: named.collect(), plan };
        program.plan = program.plan_for(|_| true);
        Some(program)
    }

    fn is_read_after(&self, at: usize, name: &String) -> bool {
        self.outputs.contains(name) || self.read.iter().skip(at + 1).any(|names| names.contains(name))
    }

    fn plain(&self, at: usize, nodes: &[NodeProto]) -> Option<Piece<GraphProto>> {
        let read = self.read.get(at).map(Vec::as_slice).unwrap_or_default();
        let made: Vec<&String> = nodes.iter().flat_map(|node| &node.output).collect();
        let kept: Vec<&String> = made.iter().copied().filter(|name| self.is_read_after(at, name)).collect();
        let mut stated: Vec<&str> = Vec::new();
        for node in nodes {
            reads(node, &mut stated);
        }
        let stated: HashSet<&str> = stated.into_iter().collect();
        let mut graph = GraphProto {
            input: read.iter().map(|name| self.declared(name)).collect(),
            output: kept.iter().map(|name| untyped(name)).collect(),
            value_info: self.graph.value_info.clone(),
            ..GraphProto::default()
        };
        graph.value_info.retain(|value| value.name.as_ref().is_some_and(|name| made.contains(&name)));
        for constant in stated.iter().filter_map(|name| self.constants.get(name)) {
            self.scope.copies().note(*constant)?;
            match constant {
                Constant::Initializer(constant) => graph.initializer.push((*constant).clone()),
                Constant::Node(node) => graph.node.push((*node).clone()),
            }
        }
        graph.node.extend(nodes.iter().cloned());
        let used = |name: &String| Some(Use { place: self.place(name)?, is_shared: false });
        Some(Piece::Plain {
            graph,
            inputs: read.iter().map(used).collect::<Option<_>>()?,
            outputs: kept.iter().map(|name| self.place(name)).collect::<Option<_>>()?,
            needs: needs(nodes, read, &kept),
        })
    }

    fn rounds(&self, node: &'g NodeProto) -> Option<Piece<GraphProto>> {
        let graph = branch(node, "body")?;
        let inputs: Vec<Option<String>> = node.input.iter().map(|name| self.value(name)).collect();
        let place = |index: usize| inputs.get(index)?.as_ref().and_then(|name| self.place(name));
        let names: Vec<&String> = inputs.iter().skip(2).map(Option::as_ref).collect::<Option<_>>()?;
        let captured = self.captured(graph);
        let body = Cutter::new(graph, &captured, &self.constants, self.scope.inner())?.program()?;
        if body.inputs.len() != 2 + names.len() + captured.len() || body.outputs.len() < 1 + names.len() {
            return None;
        }
        let is_shared = |name: &String| {
            captured.contains(name) || inputs.iter().filter(|input| input.as_ref() == Some(name)).count() > 1
        };
        let carried = names.iter().map(|name| Some(Use { place: self.place(name)?, is_shared: is_shared(name) }));
        Some(Piece::Loop(LoopPiece {
            rounds: place(0),
            condition: place(1),
            carried: carried.collect::<Option<_>>()?,
            captured: captured.iter().filter_map(|name| self.place(name)).collect(),
            body,
            outputs: node.output.iter().map(|name| self.place(name)).collect(),
        }))
    }

    fn choice(&self, node: &'g NodeProto) -> Option<Piece<GraphProto>> {
        let one = |name: &str| {
            let graph = branch(node, name)?;
            let captured = self.captured(graph);
            let program = Cutter::new(graph, &captured, &self.constants, self.scope.inner())?.program()?;
            let places = captured.iter().filter_map(|name| self.place(name)).collect();
            (program.outputs.len() >= node.output.len()).then_some((places, program))
        };
        let ((then_places, then_program), (else_places, else_program)) = (one("then_branch")?, one("else_branch")?);
        Some(Piece::If {
            condition: self.place(&self.value(node.input.first()?)?)?,
            captured: [then_places, else_places],
            branches: Box::new([then_program, else_program]),
            outputs: node.output.iter().map(|name| self.place(name)).collect(),
        })
    }

    /// What an inner graph takes from this one, except constants, of which it has copies.
    fn captured(&self, graph: &GraphProto) -> Vec<String> {
        let mut found = Vec::new();
        captures(graph, &mut found);
        let mut captured: Vec<String> = Vec::new();
        for name in found.into_iter().filter(|name| !self.constants.contains_key(name)) {
            if !captured.iter().any(|had| had == name) {
                captured.push(name.to_owned());
            }
        }
        captured
    }

    /// The name of the value that is read by this name; `None` for an input that is left out.
    fn value(&self, name: &str) -> Option<String> {
        let named = if self.constants.contains_key(name) { value_of(name) } else { name.to_owned() };
        (!name.is_empty()).then_some(named)
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    /// A piece's input. Shapes that are declared inside loops need not hold in every round, so only an outermost input keeps its own.
    fn declared(&self, name: &str) -> ValueInfoProto {
        let values = self.graph.input.iter().chain(&self.graph.value_info);
        let found = values.into_iter().find(|value| value.name.as_deref() == Some(name));
        let is_whole = matches!(self.scope, Scope::Outermost(_)) && names(&self.graph.input).any(|input| input == name);
        match found {
            Some(value) if is_whole => value.clone(),
            Some(value) => ValueInfoProto { r#type: value.r#type.as_ref().map(shapeless), ..value.clone() },
            None => untyped(name),
        }
    }
}

/// Gives a place to each of these values that has none.
fn place(places: &mut HashMap<String, usize>, values: &[String]) {
    for name in values.iter().filter(|name| !name.is_empty()) {
        let next = places.len();
        places.entry(name.clone()).or_insert(next);
    }
}

/// For each kept value, the indices of the names in `read` from which it is computed.
fn needs(nodes: &[NodeProto], read: &[String], kept: &[&String]) -> Vec<Vec<usize>> {
    let mut edges: Vec<Vec<&str>> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let mut found = Vec::new();
        reads(node, &mut found);
        edges.push(found);
    }
    let steps: usize = edges.iter().map(|found| found.len() + 1).sum();
    if steps.saturating_mul(kept.len()) > NEEDS_STEPS_MAX {
        return vec![(0..read.len()).collect(); kept.len()];
    }
    let made = nodes.iter().enumerate().flat_map(|(at, node)| node.output.iter().map(move |name| (name.as_str(), at)));
    let makers: HashMap<&str, usize> = made.collect();
    let needs_of = |output: &&String| {
        let (mut names, mut done) = (HashSet::new(), HashSet::new());
        let mut next = vec![output.as_str()];
        while let Some(name) = next.pop() {
            names.insert(name);
            if let Some(at) = makers.get(name).filter(|at| done.insert(**at)) {
                next.extend(edges.get(*at).into_iter().flatten());
            }
        }
        (0..read.len()).filter(|at| read.get(*at).is_some_and(|name| names.contains(name.as_str()))).collect()
    };
    kept.iter().map(needs_of).collect()
}

fn shapeless(declared: &TypeProto) -> TypeProto {
    let mut declared = declared.clone();
    if let Some(tensor) = &mut declared.tensor_type {
        tensor.shape = None;
    }
    declared
}

fn untyped(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: Some(name.to_owned()), r#type: None }
}

fn value_of(constant: &str) -> String {
    format!("{constant}/value")
}

fn as_value(constant: &str) -> NodeProto {
    NodeProto {
        op_type: Some("Identity".into()),
        name: Some(value_of(constant)),
        input: vec![constant.to_owned()],
        output: vec![value_of(constant)],
        ..NodeProto::default()
    }
}

#[cfg(test)]
mod tests;
