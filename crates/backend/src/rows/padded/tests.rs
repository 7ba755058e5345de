//! Is every element of a padded tensor at the right place, and is it cut out again?
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use nerite_memory::copied_bytes;
use nerite_request::{AdmittedRequest, Reply, Response, Wanted};

use super::super::{Execute, Joined, Ragged, Work};
use super::*;
use crate::{Batch, Instance, ModelVersion, NoMeter, Times};

#[track_caller]
fn check(small: &[i64], large: &[i64], expect: &[(usize, usize, usize)]) {
    let found: Vec<_> = Runs::new(small, large).map(|run| (run.small, run.large, run.len)).collect();
    assert_eq!(found, expect, "{small:?} in {large:?}");
}

#[test]
fn runs_are_as_long_as_both_tensors_have_them_in_one_piece() {
    check(&[2, 3], &[2, 3], &[(0, 0, 6)]);
    check(&[2, 3], &[2, 4], &[(0, 0, 3), (3, 4, 3)]);
    check(&[2, 1, 2], &[2, 3, 2], &[(0, 0, 2), (2, 6, 2)]);
    check(&[1, 2, 2], &[1, 3, 4], &[(0, 0, 2), (2, 4, 2)]);
    check(&[2, 2, 1], &[2, 3, 2], &[(0, 0, 1), (1, 2, 1), (2, 6, 1), (3, 8, 1)]);
    check(&[2, 0], &[2, 4], &[]);
    check(&[0, 3], &[0, 4], &[]);
    check(&[1], &[1], &[(0, 0, 1)]);
}

/// The position of each element of the small tensor in both tensors, computed from its indices.
fn places(small: &[i64], large: &[i64]) -> Vec<(usize, usize)> {
    let place = |at: i64| {
        let (mut rest, mut place, mut step) = (at, 0, 1);
        for (small, large) in small.iter().zip(large).rev() {
            place += rest % small * step;
            rest /= small;
            step *= large;
        }
        (at as usize, place as usize)
    };
    (0..small.iter().product()).map(place).collect()
}

#[test]
fn each_element_is_in_one_run_and_lies_where_its_indices_say() {
    // Three dimensions, each of size 0 to 3 in the small tensor and up to 2 larger in the large one.
    for number in 0..12i64.pow(3) {
        let dims = [number % 12, number / 12 % 12, number / 144];
        let (small, large) = (dims.map(|dim| dim % 4), dims.map(|dim| dim % 4 + dim / 4));
        let runs = Runs::new(&small, &large);
        let found: Vec<_> = runs.flat_map(|run| (0..run.len).map(move |at| (run.small + at, run.large + at))).collect();
        assert_eq!(found, places(&small, &large), "{small:?} in {large:?}");
    }
}

const MODEL: &str = "name: 'm' backend: 'onnxruntime' max_batch_size: 8 \
    input { name: 'T' data_type: TYPE_INT32 dims: -1 } output { name: 'Y' data_type: TYPE_INT32 dims: -1 } \
    output { name: 'WHOLE' data_type: TYPE_INT32 dims: -1 } \
    batch_input { kind: BATCH_ITEM_SHAPE target_name: 'LENGTHS' data_type: TYPE_INT32 source_input: 'T' } \
    batch_output { target_name: 'Y' source_input: 'T' } \
    parameters { key: 'nerite.pad' value { string_value: 'T: 4,8' } } \
    parameters { key: 'nerite.pad_value' value { string_value: 'T: -1' } }";

/// What the model got in each execution: the shape and the values of `T`, and the values of `LENGTHS`.
type Got = Arc<Mutex<Vec<(Vec<i64>, Vec<i32>, Vec<i32>)>>>;

/// A model whose outputs Y and WHOLE are T plus 10.
struct PlusTen(Got);

impl Execute for PlusTen {
    fn execute(&mut self, work: &mut Work<'_>, _times: &mut Times) -> Result<(), Status> {
        let (input, lengths) = (work.input("T").unwrap().clone(), work.input("LENGTHS").unwrap().clone());
        let numbers = input.data.numbers::<i32>().unwrap().to_vec();
        assert_eq!(lengths.shape.as_slice(), [input.shape[0], 1]);
        self.0.lock().unwrap().push((
            input.shape.to_vec(),
            numbers.clone(),
            lengths.data.numbers::<i32>().unwrap().to_vec(),
        ));
        let more: Vec<i32> = numbers.iter().map(|number| number + 10).collect();
        for name in ["Y", "WHOLE"] {
            match work.slot(name, DataType::Int32, &input.shape)? {
                Some(mut slot) => {
                    slot.cells_mut::<i32>().unwrap().copy_from(0, &more);
                    work.put_slot(name, DataType::Int32, &input.shape, slot)?;
                }
                None => work.put_buffer(name, DataType::Int32, &input.shape, Buffer::from_numbers(more.clone())),
            }
        }
        Ok(())
    }
}

/// The outputs that a response has: name, shape and values.
fn outputs(response: &Response) -> Vec<(String, Vec<i64>, Vec<i32>)> {
    let Response::Final(response) = response else { panic!("no outputs: {response:?}") };
    let outputs = response.outputs.iter();
    outputs.map(|one| (one.name.to_string(), one.shape.to_vec(), one.data.numbers::<i32>().unwrap().to_vec())).collect()
}

/// Runs requests of these rows together. Returns the inputs of each execution, and the answer to each request.
fn run(requests: &[&[&[i32]]], wanted: &[&str]) -> (Got, Vec<Response>) {
    let config = nerite_config::parse_text("", MODEL.as_bytes()).unwrap();
    let index = |name: &str| config.output.iter().position(|output| output.name == *name).unwrap();
    let (got, seen) = (Got::default(), Arc::new(Mutex::new(Vec::new())));
    let jobs = requests.iter().map(|rows| {
        let shape = Shape::from_slice(&[rows.len() as i64, rows[0].len() as i64]);
        let data = Buffer::from_numbers(rows.concat());
        let to = Arc::clone(&seen);
        let request = AdmittedRequest {
            rows: rows.len() as u32,
            inputs: vec![Tensor { name: "T".into(), datatype: DataType::Int32, shape, data }].into(),
            wanted: wanted.iter().map(|name| (index(name), Wanted { name: (*name).into(), slot: None })).collect(),
            ..AdmittedRequest::new(Reply::new(move |response| to.lock().unwrap().push(response)))
        };
        Job::new(request, ModelVersion::unmetered("m").begin(), 0)
    });
    let jobs = jobs.collect();
    let mut instance = Joined::new(PlusTen(Arc::clone(&got)), true).with_ragged(Ragged::of(&config));
    instance.run(Batch { jobs, meter: Arc::new(NoMeter) });
    let answers = std::mem::take(&mut *seen.lock().unwrap());
    (got, answers)
}

#[test]
fn requests_of_unequal_lengths_run_as_one_and_get_their_own_lengths_back() {
    let before = copied_bytes(Reason::BatchGather);
    let (got, answers) = run(&[&[&[1, 2, 3]], &[&[4, 5], &[6, 7]]], &["Y"]);
    assert!(copied_bytes(Reason::BatchGather) >= before + 48, "what is padded is counted");
    let padded = vec![1, 2, 3, -1, 4, 5, -1, -1, 6, 7, -1, -1];
    assert_eq!(*got.lock().unwrap(), [(vec![3, 4], padded, vec![3, 2, 2])]);
    assert_eq!(outputs(&answers[0]), [("Y".to_owned(), vec![1, 3], vec![11, 12, 13])]);
    assert_eq!(outputs(&answers[1]), [("Y".to_owned(), vec![2, 2], vec![14, 15, 16, 17])]);
}

#[test]
fn an_output_that_is_not_cut_keeps_its_padding() {
    let (_, answers) = run(&[&[&[1]]], &["Y", "WHOLE"]);
    assert_eq!(
        outputs(&answers[0]),
        [("Y".to_owned(), vec![1, 1], vec![11]), ("WHOLE".to_owned(), vec![1, 4], vec![11, 9, 9, 9])]
    );
}

#[test]
fn one_bucket_runs_apart_from_another_and_what_is_too_long_as_it_is() {
    let long: Vec<i32> = (0..9).collect();
    let (got, answers) = run(&[&[&[1, 2]], &[&[1, 2, 3, 4, 5]], &[&long]], &["Y"]);
    let shapes: Vec<Vec<i64>> = got.lock().unwrap().iter().map(|(shape, _, _)| shape.clone()).collect();
    assert_eq!(shapes, [[1, 4], [1, 8], [1, 9]]);
    let lengths: Vec<usize> = answers.iter().map(|answer| outputs(answer)[0].2.len()).collect();
    assert_eq!(lengths, [2, 5, 9]);
}

#[test]
fn requests_that_fill_their_bucket_are_not_padded() {
    let (got, answers) = run(&[&[&[1, 2, 3, 4]], &[&[5, 6, 7, 8]]], &["Y"]);
    assert_eq!(*got.lock().unwrap(), [(vec![2, 4], (1..9).collect(), vec![4, 4])]);
    assert_eq!(outputs(&answers[1]), [("Y".to_owned(), vec![1, 4], vec![15, 16, 17, 18])]);
}
