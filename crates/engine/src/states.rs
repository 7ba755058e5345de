//! How does a model keep state from one request of a sequence to the next?
//!
//! This is Triton's implicit state: an output of one step is an input of the next one. The tensor stays where the model wrote it, without a copy.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_backend::{Ended, Job};
use nerite_config::proto::model_sequence_batching::State;
use nerite_config::proto::model_sequence_batching::initial_state::StateData;
use nerite_config::{ModelConfig, tensor_data_type, validate_states};
use nerite_locks::Mutex;
use nerite_request::{Output, Status};
use nerite_schedule::Controls;
use nerite_tensor::{DataType, Name, Shape, Tensor, element_count};

use crate::model_file::{ModelFile, zeros};
use crate::timer::now_us;

/// The folder, in the model's directory, of the files that initial states name.
const FOLDER: &str = "initial_state";
/// States of ended sequences are dropped when there are this many more entries than were in use the last time.
const STATES_MIN: usize = 16;
/// Strings of an initial state without a file are empty. Each has four bytes, for its length.
const EMPTY_STRING_BYTES: usize = 4;

/// The states of a model version, and the tensors of each sequence.
pub(crate) struct States {
    specs: Vec<Spec>,
    /// A sequence ends after this time without a request, in µs.
    idle_us: u64,
    kept: Mutex<Kept>,
}

struct Spec {
    input: Name,
    output: Name,
    /// The input of the first request of a sequence.
    initial: Tensor,
}

#[derive(Default)]
struct Kept {
    /// By the scheduler's number of the sequence, which is never used again.
    sequences: HashMap<u64, Sequence>,
    /// The number of sequences in use when ended ones were last dropped.
    in_use: usize,
}

struct Sequence {
    /// In the order of the specs.
    tensors: Vec<Tensor>,
    /// The end of its last request. `None` while one runs.
    used_us: Option<u64>,
}

impl States {
    /// The states of a configuration with their initial values, some of which are read from files below `directory`.
    pub fn load(config: &ModelConfig, directory: &Path) -> Result<Option<Arc<States>>, Status> {
        let Some(batching) = config.sequence_batching().filter(|batching| !batching.state.is_empty()) else {
            return Ok(None);
        };
        validate_states(config).map_err(|refused| Status::invalid(refused.to_string()))?;
        let spec = |state: &State| {
            Ok(Spec {
                input: state.input_name.as_str().into(),
                output: state.output_name.as_str().into(),
                initial: initial(state, config.batches(), directory)?,
            })
        };
        let specs = batching.state.iter().map(spec).collect::<Result<_, Status>>()?;
        let idle_us = batching.max_sequence_idle_microseconds;
        Ok(Some(Arc::new(States { specs, idle_us, kept: Mutex::default() })))
    }

    /// Adds the state of its sequence to a request. When the model answers, the new state is kept.
    pub fn give(self: &Arc<States>, job: &mut Job, controls: &Controls) {
        for tensor in self.begin(controls) {
            job.add_input(tensor);
        }
        let asked: Vec<bool> = self.specs.iter().map(|spec| job.wants(&spec.output)).collect();
        for (spec, asked) in self.specs.iter().zip(&asked) {
            if !asked {
                job.want(&spec.output);
            }
        }
        let (states, number, is_last) = (Arc::clone(self), controls.state, controls.end);
        job.on_end(move |ended| states.keep(number, is_last, &asked, ended));
    }

    /// The state for the next request of a sequence.
    fn begin(&self, controls: &Controls) -> Vec<Tensor> {
        let mut kept = self.lock();
        if let Some(sequence) = kept.sequences.get_mut(&controls.state).filter(|_| !controls.start) {
            sequence.used_us = None;
            return sequence.tensors.clone();
        }
        kept.drop_ended(self.idle_us);
        let tensors: Vec<Tensor> = self.specs.iter().map(|spec| spec.initial.clone()).collect();
        kept.sequences.insert(controls.state, Sequence { tensors: tensors.clone(), used_us: None });
        tensors
    }

    /// Adds initial states to a request for an empty position.
    pub fn give_initial(&self, job: &mut Job) {
        for spec in &self.specs {
            job.add_input(spec.initial.clone());
        }
    }

    /// Keeps the state when a request of a sequence ended: with these outputs, or without if it failed. Removes the outputs that only the server
    /// requested. A state that the model set by itself is used in place of an output of the same name.
    fn keep(&self, number: u64, is_last: bool, asked: &[bool], ended: Ended<'_>) {
        let Ended { mut outputs, mut states } = ended;
        let mut found: Vec<Option<Tensor>> = Vec::new();
        for (spec, asked) in self.specs.iter().zip(asked) {
            let output = outputs.as_mut().and_then(|outputs| {
                let at = outputs.iter().position(|output| output.name == spec.output)?;
                Some(if *asked { outputs[at].clone() } else { outputs.remove(at) })
            });
            let apart = states.iter().position(|state| state.name == spec.output).map(|at| states.swap_remove(at));
            let of_output = |Output { name, datatype, shape, data, .. }| Tensor { name, datatype, shape, data };
            found.push(apart.or(output.map(of_output)));
        }
        let mut kept = self.lock();
        if is_last {
            kept.sequences.remove(&number);
            return;
        }
        let Some(sequence) = kept.sequences.get_mut(&number) else { return };
        sequence.used_us = Some(now_us());
        for ((spec, tensor), found) in self.specs.iter().zip(&mut sequence.tensors).zip(found) {
            if let Some(found) = found {
                *tensor = Tensor { name: spec.input.clone(), ..found };
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Drops the states of sequences that ended because they were idle, which the scheduler does not report. This runs rarely, so its cost per
    /// request is small.
    fn drop_ended(&mut self, idle_us: u64) {
        if self.sequences.len() < STATES_MIN.max(2 * self.in_use) {
            return;
        }
        let now_us = now_us();
        // A scheduler measures the idle time from the arrival of the last request, which was before its end.
        self.sequences.retain(|_, sequence| sequence.used_us.is_none_or(|used| now_us.saturating_sub(used) <= idle_us));
        self.in_use = self.sequences.len();
    }
}

/// The input of the first request of a sequence: the value of the configuration, or zeros. A variable dimension is 1 then.
fn initial(state: &State, batches: bool, directory: &Path) -> Result<Tensor, Status> {
    let name = &state.input_name;
    let datatype = tensor_data_type(state.data_type)
        .ok_or_else(|| Status::invalid(format!("state '{name}' has no valid data_type")))?;
    let given = state.initial_state.first();
    let dims = given.map_or(&state.dims, |initial| &initial.dims);
    let dims = dims.iter().map(|dim| if *dim < 0 { 1 } else { *dim });
    let shape: Shape = batches.then_some(1).into_iter().chain(dims).collect();
    let elements = element_count(&shape).ok().and_then(|count| usize::try_from(count).ok());
    let bytes = elements.and_then(|count| count.checked_mul(datatype.size().unwrap_or(EMPTY_STRING_BYTES)));
    let bytes = bytes.ok_or_else(|| Status::invalid(format!("state '{name}' has too many elements")))?;
    let data = match given.and_then(|initial| initial.state_data.as_ref().zip(Some(initial))) {
        Some((StateData::DataFile(file), initial)) => {
            let what = format!("initial state '{}'", initial.name);
            let source = ModelFile { directory, folder: FOLDER, file, what: &what };
            source.read(datatype, bytes, |found| check_length(file, found, datatype, bytes))?
        }
        Some((StateData::ZeroData(_), _)) | None => zeros(&format!("state '{name}'"), bytes)?,
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
        let loaded = States::load(&config, folder.path());
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
}
