//! What are the pieces of a graph, which of them does a run need, and where is each value read for the last time?
//!
//! A request may want only some of the results. A loop that none of them is computed from must not run: its rounds would be lost time, and its failure
//! would fail the request. So the pieces are walked backwards from the wanted results. A piece without loops runs only for those of its outputs that are
//! needed, and reads only what these are computed from.

/// A graph in pieces, which run one after the other. `G` is a piece without loops: as it is written, or in the engine.
#[derive(Debug)]
pub struct Program<G> {
    /// The number of values that the pieces pass on. Each has a place below this number.
    pub values: usize,
    /// The names and places of the given values: the graph's inputs, then what it takes from the graph around it.
    pub inputs: Vec<(String, usize)>,
    /// The pieces, in the order of their runs.
    pub pieces: Vec<Piece<G>>,
    /// The names and places of the results.
    pub outputs: Vec<(String, usize)>,
    /// The plan of a run that wants all results.
    pub plan: Plan,
}

/// A part of a graph.
#[derive(Debug)]
pub enum Piece<G> {
    /// Operators without loops.
    Plain {
        /// The operators.
        graph: G,
        /// What they read, in the order of the graph's inputs.
        inputs: Vec<Use>,
        /// The places of what they make, in the order of the graph's outputs.
        outputs: Vec<usize>,
        /// For each output, the indices of the inputs that it is computed from.
        needs: Vec<Vec<usize>>,
    },
    /// A `Loop`.
    Loop(LoopPiece<G>),
    /// An `If` with a loop in one of its branches.
    If {
        /// The condition.
        condition: usize,
        /// What the branches take from this graph, first that of `then`.
        captured: [Vec<usize>; 2],
        /// The branches `then` and `else`.
        branches: Box<[Program<G>; 2]>,
        /// The places of the results, as far as the graph has names for them.
        outputs: Vec<Option<usize>>,
    },
}

/// A `Loop`.
#[derive(Debug)]
pub struct LoopPiece<G> {
    /// The number of rounds.
    pub rounds: Option<usize>,
    /// The first condition.
    pub condition: Option<usize>,
    /// What the first round gets and each round passes to the next.
    pub carried: Vec<Use>,
    /// What the body takes from this graph.
    pub captured: Vec<usize>,
    /// The graph of a round.
    pub body: Program<G>,
    /// The places of the results, as far as the graph has names for them.
    pub outputs: Vec<Option<usize>>,
}

/// The use of a value by a piece.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// The value's place.
    pub place: usize,
    /// Whether the piece reads it in another way as well, and so must not write to its memory.
    pub is_shared: bool,
}

/// The plan of a run.
#[derive(Debug, Default)]
pub struct Plan {
    /// Whether each result is wanted.
    wanted: Vec<bool>,
    /// The last reader of each value, by its place.
    last_reads: Vec<LastRead>,
    /// For each piece that runs, the indices of the inputs that it reads, if it has no loops.
    pieces: Vec<Option<Vec<usize>>>,
}

/// The last reader of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LastRead {
    /// No piece and not the caller: the value is not needed.
    Nobody,
    /// The piece with this index.
    Piece(usize),
    /// The caller, who gets it as a result.
    Caller,
}

impl Plan {
    /// Whether the result with this index is wanted.
    pub fn wants(&self, output: usize) -> bool {
        self.wanted.get(output).copied().unwrap_or(false)
    }

    /// Whether the value at this place is needed.
    pub fn needs(&self, place: usize) -> bool {
        self.last_reads.get(place).is_some_and(|last| *last != LastRead::Nobody)
    }

    /// If the piece with this index runs: the indices of the inputs that it reads. Only pieces without loops have them.
    pub fn inputs(&self, piece: usize) -> Option<&[usize]> {
        self.pieces.get(piece)?.as_deref()
    }

    /// Whether no other piece that runs reads the value after this piece, which may have its memory then.
    pub fn is_last(&self, piece: usize, used: Use) -> bool {
        !used.is_shared && self.last_reads.get(used.place) == Some(&LastRead::Piece(piece))
    }

    fn read(&mut self, piece: usize, place: usize) {
        // The pieces are walked backwards, so the first reader that is found is the last one of the run.
        if let Some(last) = self.last_reads.get_mut(place)
            && *last == LastRead::Nobody
        {
            *last = LastRead::Piece(piece);
        }
    }
}

impl<G> Program<G> {
    /// The plan of a run that wants the results whose indices `is_wanted` accepts.
    pub fn plan_for(&self, is_wanted: impl Fn(usize) -> bool) -> Plan {
        let mut plan = Plan {
            wanted: (0..self.outputs.len()).map(is_wanted).collect(),
            last_reads: vec![LastRead::Nobody; self.values],
            pieces: vec![None; self.pieces.len()],
        };
        for (at, (_, place)) in self.outputs.iter().enumerate() {
            if plan.wants(at)
                && let Some(last) = plan.last_reads.get_mut(*place)
            {
                *last = LastRead::Caller;
            }
        }
        for (at, piece) in self.pieces.iter().enumerate().rev() {
            if !piece.output_places().any(|place| plan.needs(place)) {
                continue;
            }
            let inputs = piece.inputs_for(&plan);
            for place in piece.read(&inputs) {
                plan.read(at, place);
            }
            if let Some(entry) = plan.pieces.get_mut(at) {
                *entry = Some(inputs);
            }
        }
        plan
    }
}

impl<G> Piece<G> {
    /// The places of its outputs.
    fn output_places(&self) -> Box<dyn Iterator<Item = usize> + '_> {
        match self {
            Piece::Plain { outputs, .. } => Box::new(outputs.iter().copied()),
            Piece::Loop(LoopPiece { outputs, .. }) | Piece::If { outputs, .. } => {
                Box::new(outputs.iter().copied().flatten())
            }
        }
    }

    /// The indices of the inputs from which the needed outputs are computed.
    fn inputs_for(&self, plan: &Plan) -> Vec<usize> {
        let Piece::Plain { inputs, outputs, needs, .. } = self else { return Vec::new() };
        let mut is_read = vec![false; inputs.len()];
        for (_, needs) in outputs.iter().zip(needs).filter(|(place, _)| plan.needs(**place)) {
            for at in needs {
                is_read.iter_mut().skip(*at).take(1).for_each(|is_read| *is_read = true);
            }
        }
        is_read.into_iter().enumerate().filter_map(|(at, is_read)| is_read.then_some(at)).collect()
    }

    /// The places of the values that it reads. For a piece without loops, only those of the inputs with these indices.
    fn read(&self, of: &[usize]) -> Vec<usize> {
        match self {
            Piece::Plain { inputs, .. } => of.iter().filter_map(|at| Some(inputs.get(*at)?.place)).collect(),
            Piece::Loop(LoopPiece { rounds, condition, carried, captured, .. }) => {
                let ends = rounds.iter().chain(condition).copied();
                ends.chain(carried.iter().map(|used| used.place)).chain(captured.iter().copied()).collect()
            }
            Piece::If { condition, captured, .. } => {
                std::iter::once(*condition).chain(captured.iter().flatten().copied()).collect()
            }
        }
    }
}
