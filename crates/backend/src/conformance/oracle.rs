//! Do a runtime's results agree with answers that were computed elsewhere?
//!
//! The cases are ONNX's own operator tests, written by `tests/models/export_node_tests.py`. A runtime may refuse a model or a request. If it answers,
//! the answer must be right.

use std::collections::BTreeMap;
use std::path::Path;

use nerite_memory::Buffer;
use nerite_request::{InferResponse, Wanted};
use nerite_tensor::{DataType, Shape, Tensor};

use super::{completed_instance, graph_context};
use crate::Runtime;

/// The differences that ONNX's own test runner accepts as rounding.
const RELATIVE_MAX: f64 = 1e-3;
const ABSOLUTE_MAX: f64 = 1e-5;

/// Parts of the names of cases with random answers. Such cases are skipped.
const RANDOM: &[&str] = &["bernoulli", "training_dropout"];

/// The results of all cases: the name of each case, and the error if there was one.
#[derive(Debug, Default)]
pub struct Verdicts {
    /// The cases with right answers.
    pub right: Vec<String>,
    /// The cases whose model the runtime refused to load.
    pub unloadable: Vec<(String, String)>,
    /// The cases whose request the runtime refused.
    pub refused: Vec<(String, String)>,
    /// The cases with wrong answers.
    pub wrong: Vec<(String, String)>,
}

#[derive(Default)]
struct Case {
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

/// Runs every case of `folder`.
pub fn run_all(runtime: &dyn Runtime, folder: &Path) -> std::io::Result<Verdicts> {
    let mut cases: BTreeMap<String, Case> = BTreeMap::new();
    for line in std::fs::read_to_string(folder.join("cases.txt"))?.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, side, tensor, datatype, dims, file] = fields[..] else { continue };
        if RANDOM.iter().any(|random| name.contains(random)) {
            continue;
        }
        let dims = dims.split('x').filter_map(|dim| dim.parse().ok()).collect();
        let data = std::fs::read(folder.join(file))?;
        let Some(datatype) = DataType::from_name(datatype) else { continue };
        // The copy is aligned, as the inputs of requests are.
        let data = Buffer::from(data).to_private(nerite_memory::Reason::Model);
        let tensor = Tensor { name: tensor.into(), datatype, shape: dims, data };
        let case = cases.entry(name.to_owned()).or_default();
        if side == "in" { case.inputs.push(tensor) } else { case.outputs.push(tensor) }
    }
    let mut verdicts = Verdicts::default();
    for (name, case) in cases {
        check_case(runtime, folder, name, case, &mut verdicts);
    }
    Ok(verdicts)
}

fn check_case(runtime: &dyn Runtime, folder: &Path, name: String, case: Case, verdicts: &mut Verdicts) {
    let mut instance = match completed_instance(runtime, graph_context(folder, &name)) {
        Ok(instance) => instance,
        Err(error) => return verdicts.unloadable.push((name, error.message)),
    };
    let wanted = case.outputs.iter().map(|output| Wanted { name: output.name.clone(), slot: None }).collect();
    let response = match super::infer(case.inputs, wanted, |batch| instance.run(batch)) {
        Ok(response) => response,
        Err(error) => return verdicts.refused.push((name, error.message)),
    };
    match case.outputs.iter().find_map(|expected| difference(&response, expected)) {
        Some(text) => verdicts.wrong.push((name, text)),
        None => verdicts.right.push(name),
    }
}

fn difference(response: &InferResponse, expected: &Tensor) -> Option<String> {
    let Some(output) = response.outputs.iter().find(|output| output.name == expected.name) else {
        return Some(format!("no output '{}'", expected.name));
    };
    let shape = if expected.shape.is_empty() { Shape::from_slice(&[1]) } else { expected.shape.clone() };
    if output.datatype != expected.datatype || output.shape != shape {
        let (datatype, shape) = (output.datatype, &output.shape);
        return Some(format!("{datatype} {shape:?}, not {} {:?}", expected.datatype, expected.shape));
    }
    let (got, wanted) = (values(output.datatype, &output.data), values(expected.datatype, &expected.data));
    let far = got.iter().zip(&wanted).position(|(got, wanted)| !close(*got, *wanted));
    match far {
        Some(at) => Some(format!("'{}'[{at}] is {}, not {}", output.name, got[at], wanted[at])),
        None if got.len() != wanted.len() => Some(format!("'{}' has {} values", output.name, got.len())),
        None => None,
    }
}

fn close(got: f64, wanted: f64) -> bool {
    (got.is_nan() && wanted.is_nan())
        || got.total_cmp(&wanted).is_eq()
        || (got - wanted).abs() <= ABSOLUTE_MAX + RELATIVE_MAX * wanted.abs()
}

fn values(datatype: DataType, data: &Buffer) -> Vec<f64> {
    let as_words = || data.numbers::<u16>().unwrap_or_default().iter().map(|word| f64::from(*word)).collect();
    match datatype {
        DataType::Fp32 => data.numbers::<f32>().unwrap_or_default().iter().map(|x| f64::from(*x)).collect(),
        DataType::Fp64 => data.numbers::<f64>().unwrap_or_default().to_vec(),
        DataType::Int64 => data.numbers::<i64>().unwrap_or_default().iter().map(|x| *x as f64).collect(),
        DataType::Uint64 => data.numbers::<u64>().unwrap_or_default().iter().map(|x| *x as f64).collect(),
        DataType::Int32 => data.numbers::<i32>().unwrap_or_default().iter().map(|x| f64::from(*x)).collect(),
        DataType::Uint32 => data.numbers::<u32>().unwrap_or_default().iter().map(|x| f64::from(*x)).collect(),
        DataType::Int16 => data.numbers::<i16>().unwrap_or_default().iter().map(|x| f64::from(*x)).collect(),
        DataType::Int8 => data.numbers::<i8>().unwrap_or_default().iter().map(|x| f64::from(*x)).collect(),
        // The bit patterns of half floats grow with their values. Comparing them is exact enough to tell right from
        // wrong.
        DataType::Uint16 | DataType::Fp16 | DataType::Bf16 => as_words(),
        DataType::Bool | DataType::Uint8 | DataType::Bytes => {
            data.numbers::<u8>().unwrap_or_default().iter().map(|x| f64::from(*x)).collect()
        }
    }
}

impl std::fmt::Display for Verdicts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (kind, list) in [("unloadable", &self.unloadable), ("refused", &self.refused), ("WRONG", &self.wrong)] {
            for (name, text) in list {
                writeln!(f, "{kind} {name}: {}", text.lines().next().unwrap_or_default())?;
            }
        }
        write!(
            f,
            "{} right, {} unloadable, {} refused, {} WRONG",
            self.right.len(),
            self.unloadable.len(),
            self.refused.len(),
            self.wrong.len()
        )
    }
}
