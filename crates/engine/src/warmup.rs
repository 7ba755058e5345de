//! Which requests does an instance run before it serves clients?
//!
//! The samples of `model_warmup`. They bypass the queue and count in no statistics. If one fails, the load fails.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;

use nerite_backend::{Batch, Instance, Job, Jobs, ModelVersion, NoMeter, now_ns};
use nerite_config::proto::ModelWarmup;
use nerite_config::proto::model_warmup::Input;
use nerite_config::proto::model_warmup::input::InputDataType;
use nerite_config::{
    ModelConfig, WARMUP_FOLDER, check_warmup_file, tensor_data_type, validate_warmup, warmup_byte_size, warmup_failed,
};
use nerite_memory::Buffer;
use nerite_request::{AdmittedRequest, Cancel, Inputs, Parameters, Reply, Response, Sequence, Status, WantedOutputs};
use nerite_schedule::{Controls, SequenceId};
use nerite_tensor::{DataType, Tensor};

use crate::contract::{CheckedTensors, Contract, Prefix, Tensors};
use crate::model_file::{ModelFile, filled, zeros};
use crate::sequences::Sequences;

/// The sequence number of warmup requests. No scheduler uses it.
const SEQUENCE: u64 = u64::MAX;

/// One sample, read and checked.
struct Sample {
    name: String,
    /// The number of requests that run together, each with one row.
    requests: u32,
    times: u32,
    inputs: Inputs,
    wanted: Vec<String>,
}

/// Runs the warmup samples of a configuration on each of its instances. Files lie below `directory`.
pub(crate) fn warm_up(
    config: &ModelConfig,
    directory: &Path,
    sequences: Option<&Sequences>,
    instances: &mut [Box<dyn Instance>],
) -> Result<(), Status> {
    let invalid = |refused: nerite_config::ConfigError| Status::invalid(refused.to_string());
    validate_warmup(config).map_err(invalid)?;
    let used = config.model_warmup.iter().filter(|sample| sample.batch_size > 0);
    let samples = used.map(|sample| read(config, sample, directory)).collect::<Result<Vec<_>, Status>>()?;
    for sample in &samples {
        log::info!("model '{}': warming up with sample '{}'", config.name, sample.name);
        for instance in &mut *instances {
            for _ in 0..sample.times {
                run(&config.name, sample, sequences, instance.as_mut())
                    .map_err(|error| invalid(warmup_failed(&sample.name, &error.message)))?;
            }
        }
    }
    Ok(())
}

fn read(config: &ModelConfig, sample: &ModelWarmup, directory: &Path) -> Result<Sample, Status> {
    let rows_max = u32::try_from(config.max_batch_size).unwrap_or(0).max(1);
    if sample.batch_size > rows_max {
        return Err(Status::invalid(format!(
            "warmup sample '{}' has batch size {}, of {rows_max} that model '{}' may have; set max_batch_size, or a smaller batch_size",
            sample.name, sample.batch_size, config.name
        )));
    }
    let inputs = sample.inputs.iter().map(|(name, input)| tensor(config, name, input, directory));
    let inputs = inputs.collect::<Result<Inputs, Status>>()?;
    let (specs, outputs) = (config.inputs(), config.outputs());
    let contract =
        Contract { model: &config.name, batch_max: config.max_batch_size, inputs: &specs, outputs: &outputs };
    let tensors = Tensors { inputs, wanted: WantedOutputs::new(), is_raw: false };
    let checked = contract.check_all(Prefix(&sample.name), tensors);
    let failed = |error: Status| Status::invalid(warmup_failed(&sample.name, &error.message).to_string());
    let CheckedTensors { inputs, wanted, .. } = checked.map_err(failed)?;
    Ok(Sample {
        name: sample.name.clone(),
        requests: sample.batch_size,
        times: sample.count.max(1),
        inputs,
        wanted: wanted.iter().map(|wanted| wanted.name.to_string()).collect(),
    })
}

/// Makes one row of an input.
fn tensor(config: &ModelConfig, name: &str, input: &Input, directory: &Path) -> Result<Tensor, Status> {
    let invalid = |refused: nerite_config::ConfigError| Status::invalid(refused.to_string());
    let expected = warmup_byte_size(name, input).map_err(invalid)?;
    let bytes = usize::try_from(expected).unwrap_or(usize::MAX);
    let datatype = tensor_data_type(input.data_type)
        .ok_or_else(|| Status::invalid(format!("warmup input '{name}' has no valid data_type")))?;
    let what = format!("warmup input '{name}'");
    let data = match &input.input_data_type {
        Some(InputDataType::InputDataFile(file)) => {
            let source = ModelFile { directory, folder: WARMUP_FOLDER, file, what: &what };
            source.read(datatype, bytes, |found| {
                let found = i64::try_from(found).unwrap_or(i64::MAX);
                check_warmup_file(input, expected, file, found).map_err(invalid)
            })?
        }
        Some(InputDataType::RandomData(_)) if datatype != DataType::Bytes => random(&what, datatype, bytes)?,
        _ => zeros(&what, bytes)?,
    };
    let row = config.batches().then_some(1);
    Ok(Tensor { name: name.into(), datatype, shape: row.into_iter().chain(input.dims.iter().copied()).collect(), data })
}

/// Pseudo-random values: floats from 0 to 1, booleans, and any bits for other types. They are the same at each load.
fn random(what: &str, datatype: DataType, bytes: usize) -> Result<Buffer, Status> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = move || {
        // Marsaglia's xorshift.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let size = datatype.size().unwrap_or(1);
    filled(what, bytes, |all| {
        for element in all.chunks_mut(size) {
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
    })
}

/// Runs a sample once. Returns when all its requests are answered.
fn run(model: &str, sample: &Sample, sequences: Option<&Sequences>, instance: &mut dyn Instance) -> Result<(), Status> {
    let version = ModelVersion::unmetered(model);
    let (to, answers) = mpsc::channel();
    let jobs: Jobs = (0..sample.requests)
        .map(|_| {
            let to = to.clone();
            let reply = Reply::new(move |response: Response| {
                // Only the last response of a decoupled model matters here.
                if response.is_last() {
                    drop(to.send(response));
                }
            });
            let mut job = Job::new(request(sample, reply), version.begin(), now_ns());
            if let Some(sequences) = sequences {
                let id = SequenceId::Number(1);
                sequences.set_controls(&mut job, &Controls { start: true, end: true, id, state: SEQUENCE });
            }
            job
        })
        .collect();
    drop(to);
    instance.run(Batch { jobs, meter: Arc::new(NoMeter) });
    for response in answers {
        if let Response::Failed { error, .. } = response {
            return Err(error);
        }
    }
    Ok(())
}

fn request(sample: &Sample, reply: Reply) -> AdmittedRequest {
    let wanted = sample.wanted.iter().map(|name| nerite_request::Wanted { name: name.as_str().into(), slot: None });
    AdmittedRequest {
        id: "".into(),
        rows: 1,
        inputs: sample.inputs.clone(),
        wanted: wanted.collect(),
        priority: 0,
        timeout_us: 0,
        sequence: Sequence::default(),
        parameters: Parameters::new(),
        cancel: Cancel::new(),
        reply,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_floats_are_from_0_to_1_and_vary() {
        for (datatype, one) in [(DataType::Fp32, 4), (DataType::Fp64, 8)] {
            let data = random("x", datatype, 1000 * one).expect("little memory");
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
