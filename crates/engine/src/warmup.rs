//! Which requests does an instance run before it serves clients?
//!
//! The samples of `model_warmup`. They bypass the queue and count in no statistics. If one fails, the load fails.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;

use nerite_backend::{Batch, Instance, InstanceSpec, Job, Jobs, ModelVersion, NoMeter, now_ns};
use nerite_config::proto::ModelWarmup;
use nerite_config::proto::model_warmup::Input;
use nerite_config::proto::model_warmup::input::InputDataType;
use nerite_config::{
    ModelConfig, WARMUP_FOLDER, check_warmup_file, tensor_data_type, validate_warmup, warmup_byte_size, warmup_failed,
};
use nerite_memory::Buffer;
use nerite_repository::ModelDir;
use nerite_request::{AdmittedRequest, Cancel, Inputs, NamedOutputs, PeerAccount, Reply, Response, Status, Wanted};
use nerite_schedule::Controls;
use nerite_tensor::strings::LENGTH_BYTES;
use nerite_tensor::{DataType, Tensor};

use crate::config_tensors::{ConfigTensors, TensorSize};
use crate::contract::{CheckedTensors, Contract, Prefix, Tensors};
use crate::limits::{WARMUP_REQUEST_BYTES, WARMUP_RUNS_MAX};
use crate::model_file::ModelFile;
use crate::progress::Progress;
use crate::sequences::Sequences;

/// The sequence number of warmup requests. No scheduler uses it.
const SEQUENCE: u64 = u64::MAX;

/// How to make the tensors of samples smaller, for errors.
const CURE: &str = "use smaller dims, a smaller batch_size, or fewer samples";

/// One sample, read and checked.
struct Sample {
    name: String,
    /// The number of requests that run together, each with one row.
    requests: u32,
    times: u32,
    inputs: Inputs,
    /// The memory that the inputs of one request take.
    row_bytes: u64,
    /// Control inputs and states. They replace those that the server adds, as in Triton.
    added: Vec<Tensor>,
    /// All outputs of the model.
    wanted: Vec<nerite_tensor::Name>,
}

/// The warmup of a model version.
pub(crate) struct Warmup<'a> {
    /// The configuration with the samples.
    config: &'a ModelConfig,
    /// The model's directory, in which the files of samples lie.
    directory: &'a Path,
    /// The account that is charged for the inputs during the warmup.
    payer: Option<&'a PeerAccount>,
    /// The control inputs and states of the model.
    sequences: Option<&'a Sequences>,
    /// The load that it is a part of, which says when the warmup has to end.
    progress: &'a Progress,
}

impl<'a> Warmup<'a> {
    /// A warmup with files of the model's directory. `directory` also has the account that is charged.
    pub fn new(
        config: &'a ModelConfig,
        directory: &'a ModelDir,
        sequences: Option<&'a Sequences>,
        progress: &'a Progress,
    ) -> Warmup<'a> {
        Warmup { config, directory: directory.path(), payer: directory.payer(), sequences, progress }
    }

    /// Runs the samples on each of these instances, which were made for `specs`.
    pub fn run(&self, specs: &[InstanceSpec], instances: &mut [Box<dyn Instance>]) -> Result<(), Status> {
        let Warmup { config, directory, payer, sequences, .. } = *self;
        let invalid = |refused: nerite_config::ConfigError| Status::invalid(refused.to_string());
        validate_warmup(config).map_err(invalid)?;
        check_runs(config, instances.len())?;
        let mut tensors = ConfigTensors::new(&config.name, payer, CURE);
        let used = config.model_warmup.iter().filter(|sample| sample.batch_size > 0);
        let read = |sample| read(config, sample, directory, sequences, &mut tensors);
        let samples = used.map(read).collect::<Result<Vec<_>, Status>>()?;
        add_largest_batch(&samples, &mut tensors)?;
        for sample in &samples {
            log::info!("model '{}': warming up with sample '{}'", config.name, sample.name);
            for (spec, instance) in specs.iter().zip(&mut *instances) {
                for iteration in 1..=sample.times {
                    log::debug!(
                        "model '{}' instance {} is running warmup sample '{}' for iteration {iteration}",
                        config.name,
                        spec.name,
                        sample.name
                    );
                    let outcome = self.run_once(sample, instance.as_mut())?;
                    // A run that was cancelled fails.
                    self.progress.ending().check(&config.name)?;
                    outcome.map_err(|error| invalid(warmup_failed(&sample.name, &error.message)))?;
                }
            }
        }
        Ok(())
    }

    /// Runs a sample once. Returns when all its requests are answered, or with the first error of one. Outer Err: the warmup has to end.
    fn run_once(&self, sample: &Sample, instance: &mut dyn Instance) -> Result<Result<(), Status>, Status> {
        let version = ModelVersion::unmetered(&self.config.name);
        let cancels: Vec<Cancel> = (0..sample.requests).map(|_| Cancel::new()).collect();
        let (to, answers) = mpsc::channel();
        let job = |cancel: &Cancel| {
            let to = to.clone();
            let reply = Reply::new(move |response: Response| {
                // Only the last response of a decoupled model matters here.
                if response.is_last() {
                    drop(to.send(response));
                }
            });
            let mut job = Job::new(request(sample, cancel.clone(), reply), version.begin(), now_ns());
            if let Some(sequences) = self.sequences {
                let controls = Controls { start: true, end: true, id: sequences.own_id(), state: SEQUENCE };
                sequences.set_controls(&mut job, &controls);
                replace(&mut job, &sample.added);
            }
            job
        };
        let jobs: Jobs = cancels.iter().map(job).collect();
        drop(to);
        self.progress.ending().run_begins(&self.config.name, cancels)?;
        instance.run(Batch { jobs, meter: Arc::new(NoMeter) });
        for response in answers {
            if let Response::Failed { error, .. } = response {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }
}

/// Refuses samples that would run too often.
fn check_runs(config: &ModelConfig, instances: usize) -> Result<(), Status> {
    let mut runs = 0_u64;
    for sample in config.model_warmup.iter().filter(|sample| sample.batch_size > 0) {
        runs = runs.saturating_add(u64::from(times(sample)).saturating_mul(instances as u64));
        if runs > WARMUP_RUNS_MAX {
            return Err(Status::invalid(format!(
                "model '{}': warmup sample '{}' has count {}, which makes {runs} runs on {instances} instances with the samples before it, at \
                 most {WARMUP_RUNS_MAX} are possible; lower 'count'",
                config.name, sample.name, sample.count
            )));
        }
    }
    Ok(())
}

/// Counts what the largest sample takes while it runs: each request beside its inputs, and the copy in which the rows of several requests are
/// joined. Samples run one after the other.
fn add_largest_batch(samples: &[Sample], tensors: &mut ConfigTensors) -> Result<(), Status> {
    let bytes_of = |sample: &Sample| {
        let requests = u64::from(sample.requests);
        let copy = if requests > 1 { requests.saturating_mul(sample.row_bytes) } else { 0 };
        copy.saturating_add(requests.saturating_mul(WARMUP_REQUEST_BYTES))
    };
    match samples.iter().max_by_key(|sample| bytes_of(sample)) {
        Some(largest) => {
            let what = format!("the batch of {} requests of warmup sample '{}'", largest.requests, largest.name);
            tensors.add(&what, bytes_of(largest))
        }
        None => Ok(()),
    }
}

/// How often a sample runs on each instance.
fn times(sample: &ModelWarmup) -> u32 {
    sample.count.max(1)
}

fn read(
    config: &ModelConfig,
    sample: &ModelWarmup,
    directory: &Path,
    sequences: Option<&Sequences>,
    tensors: &mut ConfigTensors,
) -> Result<Sample, Status> {
    let rows_max = u32::try_from(config.max_batch_size).unwrap_or(0).max(1);
    if sample.batch_size > rows_max {
        return Err(Status::invalid(format!(
            "warmup sample '{}' has batch size {}, of {rows_max} that model '{}' may have; set max_batch_size, or a smaller batch_size",
            sample.name, sample.batch_size, config.name
        )));
    }
    let before = tensors.bytes();
    let inputs =
        sample.inputs.iter().map(|(name, input)| tensor(config, (&sample.name, name), input, directory, tensors));
    let is_added = |input: &Tensor| sequences.is_some_and(|sequences| sequences.adds(&input.name));
    let (added, inputs): (Vec<Tensor>, Vec<Tensor>) =
        inputs.collect::<Result<Vec<_>, Status>>()?.into_iter().partition(is_added);
    let row_bytes = tensors.bytes() - before;
    let (specs, outputs) = (config.inputs(), config.outputs());
    let contract =
        Contract { model: &config.name, batch_max: config.max_batch_size, inputs: &specs, outputs: &outputs };
    let sent = Tensors { inputs: inputs.into(), wanted: NamedOutputs::new(), is_raw: false };
    let checked = contract.check_all(Prefix(&sample.name), sent);
    let failed = |error: Status| Status::invalid(warmup_failed(&sample.name, &error.message).to_string());
    let CheckedTensors { inputs, wanted, .. } = checked.map_err(failed)?;
    Ok(Sample {
        name: sample.name.clone(),
        requests: sample.batch_size,
        times: times(sample),
        inputs,
        row_bytes,
        added,
        wanted: wanted.iter().map(|wanted| wanted.name.clone()).collect(),
    })
}

/// Makes one row of an input of a sample.
fn tensor(
    config: &ModelConfig,
    (sample, name): (&str, &str),
    input: &Input,
    directory: &Path,
    tensors: &mut ConfigTensors,
) -> Result<Tensor, Status> {
    let invalid = |refused: nerite_config::ConfigError| Status::invalid(refused.to_string());
    let expected = warmup_byte_size(name, input).map_err(invalid)?;
    let bytes = usize::try_from(expected).unwrap_or(usize::MAX);
    let datatype = tensor_data_type(input.data_type)
        .ok_or_else(|| Status::invalid(format!("warmup input '{name}' has no valid data_type")))?;
    let what = format!("warmup input '{name}' of sample '{sample}'");
    let size = TensorSize { datatype, elements: bytes / datatype.size().unwrap_or(LENGTH_BYTES), bytes };
    let data = match &input.input_data_type {
        Some(InputDataType::InputDataFile(file)) => {
            let source = ModelFile { directory, folder: WARMUP_FOLDER, file, what: &what };
            source.read(tensors, size, |found| {
                let found = i64::try_from(found).unwrap_or(i64::MAX);
                check_warmup_file(input, expected, file, found).map_err(invalid)
            })?
        }
        Some(InputDataType::RandomData(_)) if datatype != DataType::Bytes => random(&what, size, tensors)?,
        _ => tensors.zeros(&what, size)?,
    };
    let row = config.batches().then_some(1);
    Ok(Tensor { name: name.into(), datatype, shape: row.into_iter().chain(input.dims.iter().copied()).collect(), data })
}

/// Pseudo-random values: floats from 0 to 1, booleans, and any bits for other types. They are the same at each load.
fn random(what: &str, size: TensorSize, tensors: &mut ConfigTensors) -> Result<Buffer, Status> {
    let TensorSize { datatype, bytes, .. } = size;
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = move || {
        // Marsaglia's xorshift.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let element_bytes = datatype.size().unwrap_or(1);
    tensors.filled(what, size, bytes, |all| {
        for element in all.chunks_mut(element_bytes) {
            let bits = next() >> 11;
            let number = match datatype {
                DataType::Fp64 => (bits as f64 / (1_u64 << 53) as f64).to_bits(),
                DataType::Fp32 => u64::from((((bits >> 29) as f32) / (1_u32 << 24) as f32).to_bits()),
                // From 0.5 to 1: the exponent is fixed, and the fraction is random.
                DataType::Fp16 => 0x3800 | (bits & 0x03FF),
                DataType::Bf16 => 0x3F00 | (bits & 0x007F),
                DataType::Bool => bits & 1,
                _ => bits,
            };
            let len = element.len().min(8);
            element[..len].copy_from_slice(&number.to_le_bytes()[..len]);
        }
        Ok(())
    })
}

/// Replaces inputs of a request by those of the same names.
fn replace(job: &mut Job, by: &[Tensor]) {
    let mut inputs = job.take_inputs();
    for input in &mut *inputs {
        if let Some(given) = by.iter().find(|given| given.name == input.name) {
            input.clone_from(given);
        }
    }
    job.return_inputs(inputs);
}

fn request(sample: &Sample, cancel: Cancel, reply: Reply) -> AdmittedRequest {
    let wanted = sample.wanted.iter().map(|name| Wanted { name: name.clone(), slot: None });
    let (inputs, wanted) = (sample.inputs.clone(), wanted.collect());
    AdmittedRequest { inputs, wanted, ..AdmittedRequest::cancelled_by(cancel, reply) }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::progress::Loads;

    /// Notes the inputs of its requests.
    #[derive(Clone, Default)]
    struct Noting(Arc<Mutex<Vec<Vec<Tensor>>>>);

    impl Instance for Noting {
        fn run(&mut self, batch: Batch) {
            for job in batch.jobs {
                self.0.lock().expect("no test panics there").push(job.inputs().iter().cloned().collect());
                let times = job.begin();
                job.finish(Ok(()), times);
            }
        }
    }

    const SEQUENCES: &str = "name: 'm' max_batch_size: 4 input { name: 'INPUT' data_type: TYPE_INT32 dims: 1 }
        output { name: 'OUTPUT' data_type: TYPE_INT32 dims: 1 } sequence_batching {
        control_input { name: 'START' control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
        control_input { name: 'READY' control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
        control_input { name: 'CORRID' control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }
        state { input_name: 'STATE' output_name: 'STATE_OUT' data_type: TYPE_INT32 dims: 2 } }";

    fn sample(inputs: &[(&str, i32)]) -> String {
        let one = |(name, size): &(&str, i32)| {
            format!("inputs {{ key: '{name}' value {{ data_type: TYPE_INT32 dims: {size} random_data: true }} }} ")
        };
        format!("model_warmup {{ name: 'w' batch_size: 2 count: 3 {} }}", inputs.iter().map(one).collect::<String>())
    }

    /// The inputs of each request of a load with this sample.
    fn warmed(inputs: &[(&str, i32)]) -> Result<Vec<Vec<Tensor>>, String> {
        warmed_as(SEQUENCES, inputs)
    }

    /// As [`warmed`], for another model of sequences.
    fn warmed_as(model: &str, inputs: &[(&str, i32)]) -> Result<Vec<Vec<Tensor>>, String> {
        let text = format!("{model} {}", sample(inputs));
        let config = nerite_config::parse_text("", text.as_bytes()).expect("a configuration");
        let directory = Path::new("/no/such/folder");
        let sequences = Sequences::load(&config, directory, None).expect("it has no files");
        let noting = Noting::default();
        let mut instances: [Box<dyn Instance>; 1] = [Box::new(noting.clone())];
        let progress = Loads::default().begin("m", 1, None);
        let warmup =
            Warmup { config: &config, directory, payer: None, sequences: sequences.as_ref(), progress: &progress };
        let warmed = warmup.run(&[InstanceSpec::default()], &mut instances);
        warmed.map_err(|status| status.message)?;
        let found = noting.0.lock().expect("no test panics there").clone();
        Ok(found)
    }

    /// Checks the inputs of each request: their names, their shapes, and whether they are of the sample.
    #[track_caller]
    fn check(inputs: &[(&str, i32)], expect: &[(&str, &[i64], bool)]) {
        let found = warmed(inputs).expect("the sample runs");
        assert_eq!(found.len(), 6, "two requests three times");
        let drawn = |elements: i64| {
            let elements = elements as usize;
            let size = TensorSize { datatype: DataType::Int32, elements, bytes: 4 * elements };
            random("x", size, &mut ConfigTensors::new("m", None, CURE)).expect("some bytes")
        };
        for request in &found {
            let shown: Vec<(&str, &[i64], bool)> = request
                .iter()
                .map(|input| {
                    let size = input.shape.iter().product();
                    (&*input.name, &input.shape[..], input.data.private_bytes() == drawn(size).private_bytes())
                })
                .collect();
            assert_eq!(shown, expect);
        }
    }

    #[test]
    fn a_sample_may_name_control_inputs_and_states() {
        let own: [(&str, &[i64], bool); 5] = [
            ("INPUT", &[1, 1], true),
            ("START", &[1, 1], false),
            ("READY", &[1, 1], false),
            ("CORRID", &[1, 1], false),
            ("STATE", &[1, 2], false),
        ];
        check(&[("INPUT", 1)], &own);
        let given = own.map(|(name, shape, _)| (name, shape, name != "CORRID" && name != "STATE"));
        check(&[("INPUT", 1), ("START", 1), ("READY", 1)], &given);
        check(
            &[("STATE", 2), ("INPUT", 1)],
            &own.map(|(name, shape, _)| (name, shape, ["INPUT", "STATE"].contains(&name))),
        );
        let refused = warmed(&[("INPUT", 1), ("END", 1)]).err().unwrap_or_default();
        assert!(refused.contains("'END'") && refused.contains("warmup sample 'w'"), "{refused}");
    }

    #[test]
    fn an_id_that_the_server_makes_up_has_the_datatype_of_its_control() {
        for (datatype, bytes) in [
            ("STRING", &[1, 0, 0, 0, b'1'][..]),
            ("UINT64", &[1, 0, 0, 0, 0, 0, 0, 0]),
            ("INT64", &[1, 0, 0, 0, 0, 0, 0, 0]),
            ("UINT32", &[1, 0, 0, 0]),
            ("INT32", &[1, 0, 0, 0]),
        ] {
            let model = SEQUENCES.replace("TYPE_STRING", &format!("TYPE_{datatype}"));
            let found = warmed_as(&model, &[("INPUT", 1)]).expect("the sample runs");
            let ids = found.iter().flatten().filter(|input| input.name == "CORRID");
            let ids: Vec<_> = ids.map(|id| id.data.private_bytes().map(<[u8]>::to_vec)).collect();
            assert_eq!(ids, vec![Some(bytes.to_vec()); 6], "{datatype}");
        }
    }

    #[test]
    fn random_floats_are_from_0_to_1_and_vary() {
        for (datatype, one) in [(DataType::Fp32, 4), (DataType::Fp64, 8)] {
            let size = TensorSize { datatype, elements: 1000, bytes: 1000 * one };
            let data = random("x", size, &mut ConfigTensors::new("m", None, CURE)).expect("little memory");
            let bytes = data.private_bytes().expect("made here");
            let values: Vec<f64> = bytes
                .chunks(one)
                .map(|chunk| match chunk.try_into() {
                    Ok(bits) => f64::from(f32::from_le_bytes(bits)),
                    Err(_) => f64::from_le_bytes(chunk.try_into().expect("eight bytes")),
                })
                .collect();
            assert!(values.iter().all(|value| (0.0..1.0).contains(value)));
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            assert!((0.4..0.6).contains(&mean), "{mean}");
        }
    }
}
