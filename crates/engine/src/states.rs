//! How does a model keep state from one request of a sequence to the next?
//!
//! This is Triton's implicit state: an output of one step is an input of the next one. The tensor stays where the model wrote it, without a copy,
//! unless it is a small part of that memory, as one sequence's rows of a large batch are. The memory is charged to the client whose request made it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_backend::{Ended, Job};
use nerite_config::proto::model_sequence_batching::State;
use nerite_config::proto::model_sequence_batching::initial_state::StateData;
use nerite_config::{ModelConfig, tensor_data_type, validate_states};
use nerite_locks::Mutex;
use nerite_memory::{Buffer, Reason};
use nerite_request::{Output, OverShare, PeerAccount, PeerCharge, Status};
use nerite_schedule::Controls;
use nerite_tensor::strings::LENGTH_BYTES;
use nerite_tensor::{DataType, Name, Shape, Tensor, element_count};

use crate::config_tensors::{ConfigTensors, TensorSize};
use crate::cut_short::CutShort;
use crate::model_file::ModelFile;

/// The folder, in the model's directory, of the files that initial states name.
const FOLDER: &str = "initial_state";
/// More bytes than this are freed on another thread: the system takes 30 ms and more for 256 MiB, and the timer thread
/// serves all models.
const FREED_HERE_BYTES_MAX: usize = 8 << 20;
/// Charged for the state of a sequence beside its bytes: its entry, and the names and shapes of its tensors.
const SEQUENCE_BYTES: usize = 512;
/// A tensor is copied if it would hold more than this many times its bytes.
const HELD_TIMES_MAX: usize = 2;
/// A tensor that holds no more than this is not copied.
const HELD_HERE_BYTES_MAX: usize = 4096;

/// The states of a model version, and the tensors of each sequence.
pub(crate) struct States {
    specs: Vec<Spec>,
    /// By the scheduler's number of the sequence, which is never used again. The scheduler says when a sequence is
    /// over.
    kept: Mutex<HashMap<u64, Sequence>>,
    /// Holds the charge for the initial states.
    _initial: ConfigTensors,
}

struct Spec {
    input: Name,
    output: Name,
    /// The output's index in the configuration. An output that is not in the configuration has an index after those.
    index: usize,
    /// The input of the first request of a sequence.
    initial: Tensor,
}

struct Sequence {
    /// In the order of the specs.
    tensors: Vec<Tensor>,
    /// The memory that the tensors hold. `None` for the initial state, which all sequences share.
    charge: Option<Charged>,
}

/// What a client is charged for the state that its request left.
struct Charged {
    account: PeerAccount,
    charge: PeerCharge,
}

impl States {
    /// The states of a configuration with their initial values, some of which are read from files below `directory`. `payer` is the client that sent
    /// the configuration.
    pub fn load(
        config: &ModelConfig,
        directory: &Path,
        payer: Option<&PeerAccount>,
    ) -> Result<Option<Arc<States>>, Status> {
        let Some(batching) = config.sequence_batching().filter(|batching| !batching.state.is_empty()) else {
            return Ok(None);
        };
        validate_states(config).map_err(|refused| Status::invalid(refused.to_string()))?;
        let mut tensors = ConfigTensors::new(&config.name, payer, "use smaller dims, or fewer states");
        let mut added = config.output.len()..;
        let spec = |state: &State| {
            let own = config.output.iter().position(|output| output.name == state.output_name);
            Ok(Spec {
                index: own.or_else(|| added.next()).unwrap_or(usize::MAX),
                input: state.input_name.as_str().into(),
                output: state.output_name.as_str().into(),
                initial: initial(state, config.batches(), directory, &mut tensors)?,
            })
        };
        let specs = batching.state.iter().map(spec).collect::<Result<_, Status>>()?;
        Ok(Some(Arc::new(States { specs, kept: Mutex::default(), _initial: tensors })))
    }

    /// Whether requests get a state by this name.
    pub fn has(&self, input: &str) -> bool {
        self.specs.iter().any(|spec| spec.input == input)
    }

    /// Adds the state of its sequence to a request. When the model answers, the new state is kept. If the request is cut short, its sequence is added
    /// to `cut_short`.
    pub fn give(self: &Arc<States>, job: &mut Job, controls: &Controls, cut_short: &Arc<CutShort>) {
        for tensor in self.begin(controls) {
            job.add_input(tensor);
        }
        let requested: Vec<bool> = self.specs.iter().map(|spec| job.wants(spec.index)).collect();
        for (spec, requested) in self.specs.iter().zip(&requested) {
            if !requested {
                job.want(spec.index, &spec.output);
            }
        }
        let (states, number, is_last) = (Arc::clone(self), controls.state, controls.end);
        let account = job.responder().account();
        let cut_short = Arc::clone(cut_short);
        job.on_end(move |ended| {
            if ended.is_cut_short {
                cut_short.add(number);
            }
            states.keep(number, is_last, &requested, account, ended)
        });
    }

    /// The state for the next request of a sequence.
    fn begin(&self, controls: &Controls) -> Vec<Tensor> {
        let mut kept = self.lock();
        if let Some(sequence) = kept.get(&controls.state).filter(|_| !controls.start) {
            return sequence.tensors.clone();
        }
        let tensors: Vec<Tensor> = self.specs.iter().map(|spec| spec.initial.clone()).collect();
        kept.insert(controls.state, Sequence { tensors: tensors.clone(), charge: None });
        tensors
    }

    /// Adds initial states to a request for an empty position.
    pub fn give_initial(&self, job: &mut Job) {
        for spec in &self.specs {
            job.add_input(spec.initial.clone());
        }
    }

    /// Keeps the state when a request of a sequence ended. `ended` has the outputs unless the request failed. Removes the outputs that only the
    /// server requested. A state that the model set explicitly takes precedence over the output of the same name. Err: the client of `account` may
    /// not keep this much, and the sequence keeps its previous state.
    fn keep(
        &self,
        number: u64,
        is_last: bool,
        requested: &[bool],
        account: Option<PeerAccount>,
        ended: Ended<'_>,
    ) -> Result<(), Status> {
        let found = self.take_found(requested, ended);
        if is_last {
            let over = self.lock().remove(&number);
            drop(over);
            return Ok(());
        }
        let before = self.lock().get_mut(&number).map(|sequence| (sequence.tensors.clone(), sequence.charge.take()));
        // A sequence may be over before its last request has ended.
        let Some((old, charge)) = before else { return Ok(()) };
        // The lock is not held here, because a charge may end connections, and the scheduler waits for the lock. Replaced tensors are freed without
        // the lock, too.
        let mut next = Sequence { tensors: old, charge };
        let replaced = next.replace(&self.specs, found, account);
        if let Some(sequence) = self.lock().get_mut(&number) {
            std::mem::swap(sequence, &mut next);
        }
        drop(next);
        replaced.map(drop).map_err(|over| Status::unavailable(over.to_string()))
    }

    /// Drops the states of sequences that are over.
    pub fn over(&self, numbers: &[u64]) {
        let over: Vec<Sequence> = {
            let mut kept = self.lock();
            numbers.iter().filter_map(|number| kept.remove(number)).collect()
        };
        let bytes: usize = over.iter().map(Sequence::bytes).sum();
        if bytes > FREED_HERE_BYTES_MAX {
            // If no thread can be started, they are freed here when the closure is dropped.
            drop(std::thread::Builder::new().name("nerite-states".to_owned()).spawn(move || drop(over)));
        }
    }

    /// The new state in the order of the specs: `None` for a tensor that stays as it was.
    fn take_found(&self, requested: &[bool], ended: Ended<'_>) -> Vec<Option<Tensor>> {
        let Ended { mut outputs, mut states, .. } = ended;
        let mut found: Vec<Option<Tensor>> = Vec::new();
        for (spec, requested) in self.specs.iter().zip(requested) {
            let output = outputs.as_mut().and_then(|outputs| {
                let at = outputs.iter().position(|output| output.index == spec.index)?;
                Some(if *requested { outputs[at].clone() } else { outputs.remove(at) })
            });
            let apart = states.iter().position(|state| state.name == spec.output).map(|at| states.swap_remove(at));
            let of_output = |Output { name, datatype, shape, data, .. }| Tensor { name, datatype, shape, data };
            let tensor = apart.or(output.map(of_output));
            let kept = |tensor: Tensor| Tensor { name: spec.input.clone(), data: to_keep(tensor.data), ..tensor };
            found.push(tensor.map(kept));
        }
        found
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Sequence>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sequence {
    fn bytes(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.data.held_bytes()).sum()
    }

    /// Stores a new state, and returns the tensors that it replaces. Err: it is more than the client may keep, and
    /// nothing changes.
    fn replace(
        &mut self,
        specs: &[Spec],
        found: Vec<Option<Tensor>>,
        account: Option<PeerAccount>,
    ) -> Result<(Vec<Tensor>, Option<Charged>), OverShare> {
        let tensors: Vec<Tensor> =
            found.into_iter().zip(&self.tensors).map(|(found, old)| found.unwrap_or_else(|| old.clone())).collect();
        // Initial tensors belong to the model, and are charged to no client.
        let own = tensors.iter().zip(specs).filter(|(tensor, spec)| tensor.data.owner() != spec.initial.data.owner());
        let bytes = SEQUENCE_BYTES + own.map(|(tensor, _)| tensor.data.held_bytes()).sum::<usize>();
        let mut before = None;
        match (&mut self.charge, account) {
            (Some(charged), Some(account)) if charged.account.is_same(&account) => charged.charge.resize(bytes)?,
            (charged, Some(account)) => {
                let charge = account.charge(bytes)?;
                before = charged.replace(Charged { account, charge });
            }
            // A model made this request, so there is no client.
            (charged, None) => before = charged.take(),
        }
        Ok((std::mem::replace(&mut self.tensors, tensors), before))
    }
}

/// The bytes of a state, copied if they are a small part of the memory that they hold. If there is no memory for the
/// copy, they are kept as they are and all memory that they hold is charged.
fn to_keep(data: Buffer) -> Buffer {
    let held = data.held_bytes();
    let is_small = held > HELD_HERE_BYTES_MAX && held > data.len().saturating_mul(HELD_TIMES_MAX);
    if !is_small || !data.place().is_host() {
        return data;
    }
    data.try_private(Reason::BatchScatter).unwrap_or(data)
}

/// The input of the first request of a sequence: the value of the configuration, or zeros. A variable dimension is 1 then.
fn initial(state: &State, batches: bool, directory: &Path, tensors: &mut ConfigTensors) -> Result<Tensor, Status> {
    let name = &state.input_name;
    let datatype = tensor_data_type(state.data_type)
        .ok_or_else(|| Status::invalid(format!("state '{name}' has no valid data_type")))?;
    let given = state.initial_state.first();
    let dims = given.map_or(&state.dims, |initial| &initial.dims);
    let dims = dims.iter().map(|dim| if *dim < 0 { 1 } else { *dim });
    let shape: Shape = batches.then_some(1).into_iter().chain(dims).collect();
    let elements = element_count(&shape).ok().and_then(|count| usize::try_from(count).ok());
    let sizes = elements.and_then(|count| Some((count, count.checked_mul(datatype.size().unwrap_or(LENGTH_BYTES))?)));
    let (elements, bytes) = sizes.ok_or_else(|| Status::invalid(format!("state '{name}' has too many elements")))?;
    let size = TensorSize { datatype, elements, bytes };
    let data = match given.and_then(|initial| initial.state_data.as_ref().zip(Some(initial))) {
        Some((StateData::DataFile(file), initial)) => {
            let what = format!("initial state '{}'", initial.name);
            let source = ModelFile { directory, folder: FOLDER, file, what: &what };
            source.read(tensors, size, |found| check_length(file, found, datatype, bytes))?
        }
        Some((StateData::ZeroData(_), _)) | None => tensors.zeros(&format!("state '{name}'"), size)?,
    };
    Ok(Tensor { name: name.as_str().into(), datatype, shape, data })
}

fn check_length(file: &str, found: u64, datatype: DataType, expected: usize) -> Result<(), Status> {
    if datatype == DataType::Bytes || found >= expected as u64 {
        return Ok(());
    }
    Err(Status::invalid(format!(
        "initial_state setting expects {expected} bytes, but the data provided from {file} only has {found} bytes"
    )))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nerite_budget::{Budgets, Limits};
    use nerite_memory::{Extent, Slot};

    use super::*;

    #[track_caller]
    fn check(settings: &str, batch: i32, files: &[(&str, &[u8])], expect: Result<(&[i64], &[u8]), &str>) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(FOLDER)).unwrap();
        for (name, content) in files {
            std::fs::write(folder.path().join(FOLDER).join(name), content).unwrap();
        }
        let text = format!(
            "name: 'm' max_batch_size: {batch} sequence_batching {{ state {{ input_name: 'I' output_name: 'O' {settings} }} }}"
        );
        let config = nerite_config::parse_text("", text.as_bytes()).unwrap();
        let loaded = States::load(&config, folder.path(), None);
        let found = loaded.map(|states| {
            let Tensor { shape, data, .. } = states.unwrap().specs[0].initial.clone();
            (shape.to_vec(), data.private_bytes().unwrap().to_vec())
        });
        match expect {
            Ok((shape, bytes)) => assert_eq!(found.unwrap(), (shape.to_vec(), bytes.to_vec())),
            Err(part) => assert!(found.as_ref().unwrap_err().message.contains(part), "{found:?}"),
        }
    }

    #[test]
    fn a_sequence_begins_with_zeros_or_the_configured_state() {
        check("data_type: TYPE_INT32 dims: [2]", 0, &[], Ok((&[2], &[0; 8])));
        check("data_type: TYPE_INT8 dims: [-1]", 4, &[], Ok((&[1, 1], &[0])));
        let zero = "data_type: TYPE_INT8 dims: [-1] initial_state { name: 's' data_type: TYPE_INT8 dims: [3] zero_data: true }";
        check(zero, 0, &[], Ok((&[3], &[0; 3])));
        let file =
            "data_type: TYPE_INT8 dims: [2] initial_state { name: 's' data_type: TYPE_INT8 dims: [2] data_file: 'f' }";
        check(file, 1, &[("f", &[7, 8, 9])], Ok((&[1, 2], &[7, 8])));
        check(file, 1, &[("f", &[7])], Err("expects 2 bytes, but the data provided from f only has 1 bytes"));
        check(file, 1, &[], Err("failed to read initial state 's'"));
        let outside = file.replace("'f'", "'../f'");
        check(&outside, 1, &[], Err("which is not below initial_state"));
    }

    fn states() -> Arc<States> {
        let text = "name: 'm' sequence_batching { state { input_name: 'I' output_name: 'O' data_type: TYPE_UINT8 dims: [-1] } }";
        let config = nerite_config::parse_text("", text.as_bytes()).unwrap();
        States::load(&config, Path::new("/no/such/folder"), None).unwrap().unwrap()
    }

    fn controls(number: u64, start: bool) -> Controls {
        Controls { start, end: false, id: nerite_schedule::SequenceId::Number(number), state: number }
    }

    /// A request of that sequence whose model answers with a state of this many bytes.
    fn step(
        states: &Arc<States>,
        number: u64,
        is_last: bool,
        bytes: usize,
        account: &PeerAccount,
    ) -> Result<(), Status> {
        step_to(states, number, is_last, vec![7; bytes].into(), account)
    }

    fn step_to(
        states: &Arc<States>,
        number: u64,
        is_last: bool,
        data: Buffer,
        account: &PeerAccount,
    ) -> Result<(), Status> {
        let shape = Shape::from_slice(&[data.len() as i64]);
        let output = Output { index: 0, name: "O".into(), datatype: DataType::Uint8, shape, data, placed: false };
        let mut outputs = vec![output].into();
        let ended = Ended { outputs: Some(&mut outputs), states: Vec::new(), is_cut_short: false };
        let kept = states.keep(number, is_last, &[false], Some(account.clone()), ended);
        assert!(outputs.is_empty(), "nobody asked for the state itself");
        kept
    }

    fn len_of(states: &States, number: u64) -> usize {
        states.begin(&controls(number, false))[0].data.len()
    }

    #[test]
    fn a_state_holds_no_more_than_it_is_charged_for() {
        const MIB: usize = 1 << 20;
        let budgets = Budgets::new(Limits::new(0, Some(100 << 20), Some(20 << 20), None));
        let (one, states) = (budgets.of_peer("one"), states());
        // Rows of a batch. A quarter of it is copied. Three quarters are not copied, and hold all of the batch.
        for (number, part, held) in [(1, MIB / 4, MIB / 4), (2, MIB / 4 * 3, MIB)] {
            let batch = Slot::heap(MIB).filled().into_buffer();
            let before = one.retained();
            states.begin(&controls(number, true));
            let rows = batch.slice(Extent::new(MIB / 4, part, MIB).unwrap());
            assert_eq!(step_to(&states, number, false, rows, &one), Ok(()));
            let kept = states.begin(&controls(number, false)).swap_remove(0).data;
            assert_eq!((kept.len(), kept.held_bytes()), (part, held));
            assert_eq!(kept.owner() == batch.owner(), held == MIB);
            assert_eq!(one.retained() - before, (held + SEQUENCE_BYTES) as u64);
        }
    }

    #[test]
    fn a_state_is_charged_to_the_client_that_made_it_until_its_sequence_is_over() {
        const MIB: usize = 1 << 20;
        let budgets = Budgets::new(Limits::new(0, Some(100 << 20), Some(20 << 20), None));
        let (one, other, states) = (budgets.of_peer("one"), budgets.of_peer("other"), states());
        states.begin(&controls(1, true));
        assert_eq!(one.retained(), 0, "the initial state is the model's");
        assert_eq!(step(&states, 1, false, 6 * MIB, &one), Ok(()));
        assert_eq!(one.retained(), (6 * MIB + SEQUENCE_BYTES) as u64);
        // Half of 20 MiB may be kept. The sequence keeps the state that it had.
        let refused = step(&states, 1, false, 11 * MIB, &one).unwrap_err();
        assert!(
            refused.code == nerite_request::Code::Unavailable && refused.message.contains("beyond requests"),
            "{refused}"
        );
        assert_eq!((len_of(&states, 1), one.retained()), (6 * MIB, (6 * MIB + SEQUENCE_BYTES) as u64));
        // Another client continues the sequence, and another sequence begins.
        assert_eq!(step(&states, 1, false, 7 * MIB, &other), Ok(()));
        states.begin(&controls(2, true));
        assert_eq!(step(&states, 2, false, 2 * MIB, &one), Ok(()));
        let charged = |bytes: usize| (bytes + SEQUENCE_BYTES) as u64;
        assert_eq!((one.retained(), other.retained()), (charged(2 * MIB), charged(7 * MIB)));
        // The scheduler ends one sequence, and the last request of the other one ends that.
        states.over(&[1, 77]);
        assert_eq!(step(&states, 2, true, 5, &one), Ok(()));
        assert_eq!((one.retained(), other.retained(), states.lock().len()), (0, 0, 0));
        // A request that still runs after its sequence was over leaves no state.
        assert_eq!(step(&states, 1, false, MIB, &one), Ok(()));
        assert_eq!((one.retained(), states.lock().len()), (0, 0));
    }

    #[test]
    fn a_charge_for_a_state_ends_connections_outside_of_the_lock() {
        const MIB: usize = 1 << 20;
        let budgets = Budgets::new(Limits::new(0, Some(100 << 20), Some(20 << 20), None));
        let (kept, connection, states) = (budgets.of_peer("one"), budgets.open("one"), states());
        let _held = connection.charge(15 * MIB);
        let (found, seen) = (Arc::new(std::sync::OnceLock::new()), Arc::clone(&states));
        let result = Arc::clone(&found);
        connection.on_shed(move || result.set(seen.kept.try_lock().is_ok()).unwrap());
        states.begin(&controls(1, true));
        assert_eq!(step(&states, 1, false, 6 * MIB, &kept), Ok(()));
        assert_eq!(found.get(), Some(&true));
        assert_eq!((len_of(&states, 1), kept.retained()), (6 * MIB, (6 * MIB + SEQUENCE_BYTES) as u64));
    }
}
