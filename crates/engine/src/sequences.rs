//! Which inputs tell a model about the sequence of a request, and is the request valid for it?

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nerite_backend::{Job, ModelVersion};
use nerite_config::ModelConfig;
use nerite_config::proto::model_sequence_batching::{Control, control};
use nerite_config::tensor_data_type;
use nerite_memory::Buffer;
use nerite_request::{Code, PeerAccount, SequenceId, Status};
use nerite_schedule::{Controls, SequenceKey, SequenceStep};
use nerite_tensor::{DataType, Name, Shape, Tensor, strings};

use crate::cut_short::CutShort;
use crate::run_on::{RunsTogether, run_on};
use crate::states::States;

/// The control inputs of a model with a sequence batcher.
pub(crate) struct Sequences {
    model: String,
    /// The shape of control inputs: `[1]`, or `[1, 1]` if the model has batches.
    shape: Shape,
    flags: Vec<Flag>,
    ids: Vec<IdInput>,
    /// `Some` if the model keeps state between the requests of a sequence.
    states: Option<Arc<States>>,
    /// `Some` if sequences are iterative: the number of the next sequence that the server begins for a request without one.
    next: Option<AtomicU64>,
    /// How long a sequence may be idle, and so how long a request of it runs on when its client has gone.
    idle_us: u64,
    cut_short: Arc<CutShort>,
    /// The model version that requests for empty positions belong to. It has no statistics.
    unmetered: Arc<ModelVersion>,
}

/// A control input with two values.
struct Flag {
    name: Name,
    kind: control::Kind,
    datatype: DataType,
    no: Buffer,
    yes: Buffer,
}

/// A control input for the correlation id.
struct IdInput {
    name: Name,
    datatype: DataType,
}

impl Sequences {
    /// The control inputs and states of this configuration, which is valid. Its files are below `directory`. `payer` is the client that sent it.
    /// `None` without a sequence batcher.
    pub fn load(
        config: &ModelConfig,
        directory: &Path,
        payer: Option<&PeerAccount>,
    ) -> Result<Option<Sequences>, Status> {
        let Some(batching) = config.sequence_batching() else { return Ok(None) };
        let (mut flags, mut ids) = (Vec::new(), Vec::new());
        for input in &batching.control_input {
            for control in &input.control {
                match flag(&input.name, control) {
                    Some(flag) => flags.push(flag),
                    None => ids.push(IdInput {
                        name: input.name.as_str().into(),
                        datatype: tensor_data_type(control.data_type).unwrap_or(DataType::Uint64),
                    }),
                }
            }
        }
        Ok(Some(Sequences {
            model: config.name.clone(),
            shape: Shape::from_slice(if config.batches() { &[1, 1] } else { &[1] }),
            flags,
            ids,
            states: States::load(config, directory, payer)?,
            next: batching.iterative_sequence.then(|| AtomicU64::new(1)),
            idle_us: batching.max_sequence_idle_microseconds,
            cut_short: Arc::default(),
            unmetered: ModelVersion::unmetered(&config.name),
        }))
    }

    /// If sequences are iterative, begins a sequence for a request that has none.
    pub fn begin(&self, job: &mut Job) {
        if let Some(next) = self.next.as_ref().filter(|_| job.sequence().id == SequenceId::None) {
            job.begin_own_sequence(next.fetch_add(1, Ordering::Relaxed));
        }
    }

    /// Whether a request may be given to the scheduler. The texts are Triton's.
    pub fn check(&self, job: &Job) -> Result<(), Status> {
        let model = &self.model;
        if job.rows() > 1 {
            return Err(Status::invalid(format!(
                "inference request to model '{model}' must specify batch-size 1 due to requirements of sequence batcher"
            )));
        }
        let given = match &job.sequence().id {
            SequenceId::None => {
                return Err(Status::invalid(format!(
                    "inference request to model '{model}' must specify a non-zero or non-empty correlation ID"
                )));
            }
            SequenceId::Number(_) => DataType::Uint64,
            SequenceId::Text(_) => DataType::Bytes,
        };
        let is_text = given == DataType::Bytes;
        match self.ids.iter().find(|input| (input.datatype == DataType::Bytes) != is_text) {
            Some(input) => Err(Status::invalid(format!(
                "sequence batching control '{}' data-type is '{given}', but model '{model}' expects '{}'",
                input.name, input.datatype
            ))),
            None => Ok(()),
        }
    }

    /// The error of a request whose sequence has not started.
    pub fn missing_start(&self, job: &Job) -> Status {
        Status::invalid(format!(
            "inference request for sequence {} to model '{}' must specify the START flag on the first request of the sequence",
            id_text(job),
            self.model
        ))
    }

    /// The error of a request that waited while its sequence ended, although its own client has not gone.
    pub fn over_for(&self, job: &Job) -> Status {
        let text = format!(
            "sequence {} of model '{}' is over, because one of its requests was cancelled or did not run to its end; begin it anew with the START flag",
            id_text(job),
            self.model
        );
        Status::new(Code::Cancelled, text)
    }

    /// Lets a request that is about to run go on when its client goes. `run` is as in [`run_on`].
    pub fn let_run_on(&self, job: &mut Job, run: Option<&Arc<RunsTogether>>) {
        run_on(job, self.idle_us, run);
    }

    /// Adds the control inputs and states to a request.
    pub fn set_controls(&self, job: &mut Job, controls: &Controls) {
        for flag in &self.flags {
            let is_set = match flag.kind {
                control::Kind::ControlSequenceStart => controls.start,
                control::Kind::ControlSequenceEnd => controls.end,
                _ => true,
            };
            job.add_input(self.tensor(
                &flag.name,
                flag.datatype,
                if is_set { flag.yes.clone() } else { flag.no.clone() },
            ));
        }
        for input in &self.ids {
            job.add_input(self.tensor(&input.name, input.datatype, id_bytes(&controls.id, input.datatype)));
        }
        if let Some(states) = &self.states {
            return states.give(job, controls, &self.cut_short);
        }
        let (cut_short, number) = (Arc::clone(&self.cut_short), controls.state);
        job.on_end(move |ended| {
            if ended.is_cut_short {
                cut_short.add(number);
            }
            Ok(())
        });
    }

    /// The numbers of the sequences of which a request was cut short since the last call.
    pub fn take_cut_short(&self) -> Vec<u64> {
        self.cut_short.take()
    }

    /// Whether an input of this name is added to requests: a control input, or a state.
    pub fn adds(&self, input: &str) -> bool {
        self.flags.iter().any(|flag| flag.name == input)
            || self.ids.iter().any(|id| id.name == input)
            || self.states.as_ref().is_some_and(|states| states.has(input))
    }

    /// An id of the type that the model takes, for a request that no client sent.
    pub fn own_id(&self) -> nerite_schedule::SequenceId {
        if self.ids.iter().any(|input| input.datatype == DataType::Bytes) {
            nerite_schedule::SequenceId::Text("1".into())
        } else {
            nerite_schedule::SequenceId::Number(1)
        }
    }

    /// Drops the states of sequences that are over.
    pub fn over(&self, numbers: &[u64]) {
        if let Some(states) = &self.states {
            states.over(numbers);
        }
    }

    /// Whether requests leave states that are kept.
    pub fn has_states(&self) -> bool {
        self.states.is_some()
    }

    /// A request for an empty position of a batch. It has the inputs of `neighbour`, which has no control inputs yet, and READY is false. Its answer
    /// is dropped.
    pub fn empty_position(&self, neighbour: &Job) -> Job {
        let mut job = neighbour.unanswered_copy(self.unmetered.begin());
        for flag in &self.flags {
            job.add_input(self.tensor(&flag.name, flag.datatype, flag.no.clone()));
        }
        for input in &self.ids {
            let nobody = match input.datatype {
                DataType::Bytes => nerite_schedule::SequenceId::Text("".into()),
                _ => nerite_schedule::SequenceId::Number(0),
            };
            job.add_input(self.tensor(&input.name, input.datatype, id_bytes(&nobody, input.datatype)));
        }
        if let Some(states) = &self.states {
            states.give_initial(&mut job);
        }
        job
    }

    fn tensor(&self, name: &Name, datatype: DataType, data: Buffer) -> Tensor {
        Tensor { name: name.clone(), datatype, shape: self.shape.clone(), data }
    }
}

/// The sequence of a request, as schedulers identify it.
pub(crate) fn step(job: &Job) -> Option<SequenceStep> {
    let sequence = job.sequence();
    let id = match &sequence.id {
        SequenceId::None => return None,
        SequenceId::Number(id) if job.has_own_sequence() => nerite_schedule::SequenceId::Own(*id),
        SequenceId::Number(id) => nerite_schedule::SequenceId::Number(*id),
        SequenceId::Text(id) => nerite_schedule::SequenceId::Text(id.as_str().into()),
    };
    let key = SequenceKey { owner: job.client().owner.number(), id };
    Some(SequenceStep { key, start: sequence.start, end: sequence.end })
}

/// The id of the request's sequence, for texts.
fn id_text(job: &Job) -> String {
    match &job.sequence().id {
        SequenceId::None => String::new(),
        SequenceId::Number(id) => id.to_string(),
        SequenceId::Text(id) => id.clone(),
    }
}

/// The input of a control with two values. `None` for the correlation id.
fn flag(name: &str, control: &Control) -> Option<Flag> {
    let kind = control.kind();
    if kind == control::Kind::ControlSequenceCorrid {
        return None;
    }
    let pair = |list: Vec<Vec<u8>>| {
        let mut list = list.into_iter();
        Some((list.next()?, list.next()?))
    };
    let int32 = control.int32_false_true.iter().map(|value| value.to_le_bytes().to_vec()).collect();
    let fp32 = control.fp32_false_true.iter().map(|value| value.to_le_bytes().to_vec()).collect();
    let boolean = control.bool_false_true.iter().map(|value| vec![u8::from(*value)]).collect();
    let typed = [(DataType::Int32, int32), (DataType::Fp32, fp32), (DataType::Bool, boolean)];
    let (datatype, (no, yes)) = typed.into_iter().find_map(|(datatype, list)| Some((datatype, pair(list)?)))?;
    Some(Flag { name: name.into(), kind, datatype, no: no.into(), yes: yes.into() })
}

/// A correlation id as a tensor of that datatype. For 32 bits, the lower bits of the number are used, as in Triton.
fn id_bytes(id: &nerite_schedule::SequenceId, datatype: DataType) -> Buffer {
    match id {
        // The server made it up.
        nerite_schedule::SequenceId::Number(id) | nerite_schedule::SequenceId::Own(id)
            if datatype == DataType::Bytes =>
        {
            id_bytes(&nerite_schedule::SequenceId::Text(id.to_string().into()), datatype)
        }
        nerite_schedule::SequenceId::Number(id) | nerite_schedule::SequenceId::Own(id) => {
            let bytes = id.to_le_bytes();
            let len = datatype.size().unwrap_or(bytes.len()).min(bytes.len());
            bytes[..len].to_vec().into()
        }
        nerite_schedule::SequenceId::Text(id) => {
            let mut bytes = strings::length_word(id.as_bytes()).unwrap_or_default().to_vec();
            bytes.extend_from_slice(id.as_bytes());
            bytes.into()
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nerite_request::{AdmittedRequest, Reply, Sequence};

    use super::*;

    const CONFIG: &str = "name: 'm' max_batch_size: 4 sequence_batching {
        control_input { name: 'S' control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
        control_input { name: 'E' control { kind: CONTROL_SEQUENCE_END bool_false_true: [false, true] } }
        control_input { name: 'R' control { kind: CONTROL_SEQUENCE_READY int32_false_true: [7, 9] } }
        control_input { name: 'C' control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32 } } }";

    fn sequences(config: &str) -> Sequences {
        let config = nerite_config::parse_text("", config.as_bytes()).unwrap();
        Sequences::load(&config, Path::new("/no/such/folder"), None).unwrap().unwrap()
    }

    fn job(id: SequenceId, rows: u32) -> Job {
        let request = AdmittedRequest {
            rows,
            sequence: Sequence { id, start: true, end: false },
            ..AdmittedRequest::new(Reply::closed())
        };
        Job::new(request, ModelVersion::unmetered("m").begin(), 0)
    }

    fn shown(job: &Job) -> Vec<(String, DataType, Vec<u8>)> {
        let bytes = |tensor: &Tensor| tensor.data.private_bytes().unwrap().to_vec();
        job.inputs().iter().map(|tensor| (tensor.name.to_string(), tensor.datatype, bytes(tensor))).collect()
    }

    #[test]
    fn a_model_gets_all_controls_in_their_types() {
        let sequences = sequences(CONFIG);
        let mut job_of_sequence = job(SequenceId::Number(0x1_0000_0005), 1);
        let id = nerite_schedule::SequenceId::Number(0x1_0000_0005);
        let empty = sequences.empty_position(&job_of_sequence);
        sequences.set_controls(&mut job_of_sequence, &Controls { start: true, end: false, id, state: 0 });
        let expect = [
            ("S".to_owned(), DataType::Fp32, 1f32.to_le_bytes().to_vec()),
            ("E".to_owned(), DataType::Bool, vec![0]),
            ("R".to_owned(), DataType::Int32, vec![9, 0, 0, 0]),
            ("C".to_owned(), DataType::Int32, vec![5, 0, 0, 0]),
        ];
        assert_eq!(shown(&job_of_sequence), expect);
        assert!(job_of_sequence.inputs().iter().all(|tensor| tensor.shape[..] == [1, 1]));
        let ready: Vec<_> = shown(&empty).into_iter().filter(|(name, _, _)| name == "R").collect();
        assert_eq!(ready, [("R".to_owned(), DataType::Int32, vec![7, 0, 0, 0])]);
    }

    #[track_caller]
    fn check(config: &str, id: SequenceId, rows: u32, expect: &str) {
        let refused = sequences(config).check(&job(id, rows)).err().map_or_else(String::new, |status| status.message);
        assert!(refused.contains(expect) && refused.is_empty() == expect.is_empty(), "{refused}");
    }

    #[test]
    fn a_request_must_be_of_a_sequence_whose_id_the_model_can_take() {
        let text = "name: 'm' sequence_batching { control_input { name: 'C' control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } } }";
        check(CONFIG, SequenceId::Number(1), 1, "");
        check(CONFIG, SequenceId::Number(1), 2, "must specify batch-size 1");
        check(CONFIG, SequenceId::None, 1, "must specify a non-zero or non-empty correlation ID");
        check(
            CONFIG,
            SequenceId::Text("a".into()),
            1,
            "control 'C' data-type is 'BYTES', but model 'm' expects 'INT32'",
        );
        check(text, SequenceId::Text("a".into()), 1, "");
        check(text, SequenceId::Number(1), 1, "control 'C' data-type is 'UINT64', but model 'm' expects 'BYTES'");
    }
}
