//! How does a graph with loops run, so that it can be ended after each round?
//!
//! The engine runs the pieces between loops ([`crate::cut`]). The rounds of a loop are done here, in the way of the engine's own `Loop`, and before each
//! piece and each round the flag of the run is read. A piece that takes long is run in stages ([`crate::staged`]).

use nerite_memory::check_memory;
use nerite_request::Status;
use rten::{NodeId, Value, ValueOrView};
use rten_onnx::onnx::GraphProto;
use rten_tensor::prelude::*;
use rten_tensor::{Tensor, TensorView};

use crate::conditions::{Conditions, Fault};
use crate::pieces::{LoopPiece, Piece, Plan, Program, Use};
use crate::staged::Staged;

/// A piece in the engine.
pub struct Compiled {
    graph: Staged,
    inputs: Vec<NodeId>,
    outputs: Vec<NodeId>,
}

/// The values of a run by their places.
type Values<'v> = Vec<Option<ValueOrView<'v>>>;

impl Program<GraphProto> {
    /// The same pieces in the engine. `load` gets each graph once.
    pub fn compile(
        self,
        load: &mut dyn FnMut(GraphProto) -> Result<Staged, Status>,
    ) -> Result<Program<Compiled>, Status> {
        let Program { values, inputs, pieces, outputs, plan } = self;
        let pieces = pieces.into_iter().map(|piece| piece.compile(load)).collect::<Result<_, _>>()?;
        Ok(Program { values, inputs, pieces, outputs, plan })
    }
}

impl Piece<GraphProto> {
    fn compile(self, load: &mut dyn FnMut(GraphProto) -> Result<Staged, Status>) -> Result<Piece<Compiled>, Status> {
        Ok(match self {
            Piece::Plain { graph, inputs, outputs, needs } => {
                let graph = load(graph)?;
                let (input_ids, output_ids) = (graph.model().input_ids().to_vec(), graph.model().output_ids().to_vec());
                let graph = Compiled { graph, inputs: input_ids, outputs: output_ids };
                Piece::Plain { graph, inputs, outputs, needs }
            }
            Piece::Loop(LoopPiece { rounds, condition, carried, captured, body, outputs }) => {
                let body = body.compile(load)?;
                Piece::Loop(LoopPiece { rounds, condition, carried, captured, body, outputs })
            }
            Piece::If { condition, captured, branches, outputs } => {
                let [then, other] = *branches;
                let branches = Box::new([then.compile(load)?, other.compile(load)?]);
                Piece::If { condition, captured, branches, outputs }
            }
        })
    }
}

impl Program<Compiled> {
    /// The results for these values, which are in the order of the program's inputs; `None` for those that the plan does not want.
    pub fn run<'v>(
        &self,
        given: impl IntoIterator<Item = ValueOrView<'v>>,
        plan: &Plan,
        conditions: &Conditions<'_>,
    ) -> Result<Vec<Option<Value>>, Fault> {
        let mut values: Values<'v> = std::iter::repeat_with(|| None).take(self.values).collect();
        for ((_, place), value) in self.inputs.iter().zip(given) {
            put(&mut values, Some(*place), value);
        }
        for (at, piece) in self.pieces.iter().enumerate() {
            let Some(read) = plan.inputs(at) else { continue };
            conditions.check()?;
            piece.run(&mut values, &Turn { plan, piece: at, read }, conditions)?;
        }
        let mut results = Vec::with_capacity(self.outputs.len());
        for (at, (_, place)) in self.outputs.iter().enumerate() {
            if !plan.wants(at) {
                results.push(None);
                continue;
            }
            let mut later = self.outputs.iter().enumerate().skip(at + 1);
            let is_wanted_again = later.any(|(other, (_, shared))| shared == place && plan.wants(other));
            results.push(Some(take_or_copy(&mut values, *place, !is_wanted_again)?.into_owned()));
        }
        Ok(results)
    }

    /// All results.
    fn run_all<'v>(
        &self,
        given: impl IntoIterator<Item = ValueOrView<'v>>,
        conditions: &Conditions<'_>,
    ) -> Result<Vec<Value>, Fault> {
        Ok(self.run(given, &self.plan, conditions)?.into_iter().flatten().collect())
    }
}

/// The turn of a piece in a run.
struct Turn<'p> {
    plan: &'p Plan,
    /// The piece's index.
    piece: usize,
    /// The indices of the inputs that it reads, if it has no loops.
    read: &'p [usize],
}

impl Turn<'_> {
    fn is_last(&self, used: Use) -> bool {
        self.plan.is_last(self.piece, used)
    }
}

impl Piece<Compiled> {
    fn run(&self, values: &mut Values<'_>, turn: &Turn<'_>, conditions: &Conditions<'_>) -> Result<(), Fault> {
        let (places, results): (Vec<Option<usize>>, _) = match self {
            Piece::Plain { graph, inputs, outputs, .. } => {
                let needed = outputs.iter().copied().filter(|place| turn.plan.needs(*place));
                (needed.map(Some).collect(), graph.run(values, inputs, outputs, turn, conditions)?)
            }
            Piece::Loop(piece) => (piece.outputs.clone(), piece.run(values, turn, conditions)?),
            Piece::If { condition, captured, branches, outputs } => {
                let is_chosen = number(values, *condition, "the condition of an If")? != 0;
                let ([then, other], [then_takes, other_takes]) = (&**branches, captured);
                let (branch, takes) = if is_chosen { (then, then_takes) } else { (other, other_takes) };
                let given = takes.iter().map(|place| view(values, *place)).collect::<Result<Vec<_>, _>>()?;
                (outputs.clone(), branch.run_all(given, conditions)?)
            }
        };
        let is_needed = |place: &usize| turn.plan.needs(*place);
        let places: Vec<Option<usize>> = places.into_iter().map(|place| place.filter(is_needed)).collect();
        let named = places.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        if named > results.len() {
            let made = results.len();
            return Err(Fault::Failed(format!("an operator returned {made} outputs but the graph names {named}")));
        }
        places.into_iter().zip(results).for_each(|(place, value)| put(values, place, value.into()));
        Ok(())
    }
}

impl Compiled {
    fn run(
        &self,
        values: &mut Values<'_>,
        uses: &[Use],
        outputs: &[usize],
        turn: &Turn<'_>,
        conditions: &Conditions<'_>,
    ) -> Result<Vec<Value>, Fault> {
        let read = || turn.read.iter().filter_map(|at| Some((uses.get(*at)?, *self.inputs.get(*at)?)));
        // A value that is not read again is passed with its memory, so that the engine can write its result there.
        let mut taken: Vec<Option<ValueOrView<'_>>> = read()
            .map(|(used, _)| if turn.is_last(*used) { values.get_mut(used.place).and_then(Option::take) } else { None })
            .collect();
        let mut inputs = Vec::with_capacity(taken.len());
        for ((used, id), taken) in read().zip(&mut taken) {
            let value = if turn.is_last(*used) { taken.take().ok_or_else(missing)? } else { view(values, used.place)? };
            inputs.push((id, value));
        }
        let needed = self.outputs.iter().zip(outputs).filter(|(_, place)| turn.plan.needs(**place));
        let needed: Vec<NodeId> = needed.map(|(id, _)| *id).collect();
        self.graph.run(inputs, &needed, conditions)
    }
}

impl LoopPiece<Compiled> {
    fn run(&self, values: &mut Values<'_>, turn: &Turn<'_>, conditions: &Conditions<'_>) -> Result<Vec<Value>, Fault> {
        let rounds = self.rounds.map(|place| number(values, place, "the number of rounds of a Loop")).transpose()?;
        let condition = self.condition.map(|place| number(values, place, "the condition of a Loop")).transpose()?;
        let (rounds, mut goes_on) = (rounds.unwrap_or(i32::MAX), condition.unwrap_or(1));
        let mut carried = Vec::with_capacity(self.carried.len());
        for used in &self.carried {
            carried.push(take_or_copy(values, used.place, turn.is_last(*used))?);
        }
        let captured = self.captured.iter().map(|place| view(values, *place)).collect::<Result<Vec<_>, _>>()?;
        let mut lists: Vec<Vec<Value>> = Vec::new();
        lists.resize_with(self.body.outputs.len().saturating_sub(1 + carried.len()), Vec::new);
        let mut round = 0;
        while round < rounds && goes_on != 0 {
            conditions.check()?;
            let first = [Tensor::from(round).into(), Tensor::from(goes_on).into()];
            let given = first.into_iter().chain(std::mem::take(&mut carried)).chain(captured.iter().cloned());
            let mut results = self.body.run_all(given, conditions)?.into_iter();
            goes_on = results.next().as_ref().and_then(whole).ok_or_else(|| not_one("the condition of a Loop"))?;
            carried.extend(results.by_ref().take(self.carried.len()).map(ValueOrView::Value));
            lists.iter_mut().zip(results).for_each(|(list, value)| list.push(value));
            round += 1;
        }
        let mut results: Vec<Value> = carried.into_iter().map(ValueOrView::into_owned).collect();
        for list in lists.into_iter().filter(|list| !list.is_empty()) {
            conditions.check()?;
            let bytes = list.first().map_or(0, bytes_of).saturating_mul(list.len());
            check_memory(bytes).map_err(Fault::NoMemory)?;
            results.push(joined(list)?);
        }
        Ok(results)
    }
}

/// Bytes of a tensor of numbers.
fn bytes_of(value: &Value) -> usize {
    match value {
        Value::FloatTensor(tensor) => tensor.len() * size_of::<f32>(),
        Value::Int32Tensor(tensor) => tensor.len() * size_of::<i32>(),
        Value::Int8Tensor(tensor) => tensor.len(),
        Value::UInt8Tensor(tensor) => tensor.len(),
        _ => 0,
    }
}

/// The values of all rounds in one, with the rounds as its first dimension.
fn joined(list: Vec<Value>) -> Result<Value, Fault> {
    match list.first() {
        Some(Value::FloatTensor(_)) => joined_of::<f32>(list),
        Some(Value::Int32Tensor(_)) => joined_of::<i32>(list),
        Some(Value::Int8Tensor(_)) => joined_of::<i8>(list),
        Some(Value::UInt8Tensor(_)) => joined_of::<u8>(list),
        _ => Err(Fault::Failed("the rounds of a Loop have made what cannot be joined".into())),
    }
}

fn joined_of<T: Copy>(list: Vec<Value>) -> Result<Value, Fault>
where
    Tensor<T>: TryFrom<Value>,
    Value: From<Tensor<T>>,
{
    let differ = || Fault::Failed("the rounds of a Loop have made tensors of different types or shapes".into());
    let rounds = list.len();
    let mut all: Option<Tensor<T>> = None;
    for value in list {
        let mut tensor: Tensor<T> = value.try_into().map_err(|_| differ())?;
        let shape: Vec<usize> = std::iter::once(rounds).chain(tensor.shape().iter().copied()).collect();
        tensor.insert_axis(0);
        all.get_or_insert_with(|| Tensor::with_capacity(&shape, 0)).append(0, &tensor).map_err(|_| differ())?;
    }
    all.map(Value::from).ok_or_else(differ)
}

fn put<'v>(values: &mut Values<'v>, place: Option<usize>, value: ValueOrView<'v>) {
    if let Some(at) = place.and_then(|place| values.get_mut(place)) {
        *at = Some(value);
    }
}

fn view<'s>(values: &'s Values<'_>, place: usize) -> Result<ValueOrView<'s>, Fault> {
    values.get(place).and_then(Option::as_ref).map(|value| ValueOrView::View(value.as_view())).ok_or_else(missing)
}

fn take_or_copy<'v>(values: &mut Values<'v>, place: usize, is_last: bool) -> Result<ValueOrView<'v>, Fault> {
    let at = values.get_mut(place).ok_or_else(missing)?;
    if is_last { at.take() } else { at.clone() }.ok_or_else(missing)
}

fn number(values: &Values<'_>, place: usize, what: &str) -> Result<i32, Fault> {
    let ValueOrView::View(view) = view(values, place)? else { return Err(missing()) };
    let tensor: Option<TensorView<'_, i32>> = view.try_into().ok();
    tensor.and_then(|tensor| tensor.item().copied()).ok_or_else(|| not_one(what))
}

fn whole(value: &Value) -> Option<i32> {
    let Value::Int32Tensor(tensor) = value else { return None };
    tensor.item().copied()
}

fn not_one(what: &str) -> Fault {
    Fault::Failed(format!("{what} is not one number of 32 bits"))
}

/// Only an input that the request left out can be missing.
fn missing() -> Fault {
    Fault::Failed("an input of the graph is missing".into())
}
