//! Does each request of a batch get its own rows, and no others?
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use nerite_memory::Extent;
use nerite_request::limits::SHARED_BYTES_MIN;
use nerite_request::{AdmittedRequest, Deliver, InputMemory, PlaceQuery, Reply, Response, Wanted};

use super::*;
use crate::{ModelVersion, NoMeter};

/// Doubles X, fails on a negative value, and counts its executions.
struct Doubling {
    runs: Arc<Mutex<Vec<i64>>>,
}

impl Execute for Doubling {
    fn execute(&mut self, work: &mut Work<'_>, times: &mut Times) -> Result<(), Status> {
        let input = work.input("X").unwrap().clone();
        let numbers = input.data.numbers::<i32>().unwrap();
        self.runs.lock().unwrap().push(input.shape[0]);
        times.mark_input_end();
        if numbers.iter().any(|n| *n < 0) {
            return Err(Status::invalid("a negative value"));
        }
        let doubled: Vec<i32> = numbers.iter().map(|n| n * 2).collect();
        times.mark_infer_end();
        if work.wanted().find("S").is_some() {
            let texts: Vec<String> = doubled.iter().map(i32::to_string).collect();
            work.put_strings("S", &input.shape, texts.iter().map(String::as_bytes))?;
        }
        let Some(mut slot) = work.slot("Y", DataType::Int32, &input.shape)? else {
            work.put_buffer("Y", DataType::Int32, &input.shape, Buffer::from_numbers(doubled));
            return Ok(());
        };
        slot.cells_mut::<i32>().unwrap().copy_from(0, &doubled);
        work.put_slot("Y", DataType::Int32, &input.shape, slot)
    }
}

type Seen = Arc<Mutex<Vec<Response>>>;

fn job(seen: &Seen, id: &str, data: Buffer, row: i64, wanted: Vec<Wanted>) -> Job {
    let seen = Arc::clone(seen);
    let reply = Reply::new(move |response| seen.lock().unwrap().push(response));
    job_of(reply, id, data, row, wanted)
}

fn job_of(reply: Reply, id: &str, data: Buffer, row: i64, wanted: Vec<Wanted>) -> Job {
    let rows = (data.len() / 4) as i64 / row;
    let shape = Shape::from_slice(&[rows, row]);
    let request = AdmittedRequest {
        id: id.into(),
        rows: rows as u32,
        inputs: vec![Tensor { name: "X".into(), datatype: DataType::Int32, shape, data }].into(),
        wanted: wanted.into_iter().map(|output| (usize::from(output.name == "S"), output)).collect(),
        ..AdmittedRequest::new(reply)
    };
    Job::new(request, ModelVersion::unmetered("doubling").begin(), 0)
}

fn inline(name: &str) -> Vec<Wanted> {
    vec![Wanted { name: name.into(), slot: None }]
}

fn placed(bytes: usize) -> Vec<Wanted> {
    vec![Wanted { name: "Y".into(), slot: Some(Slot::heap(bytes)) }]
}

fn run(jobs: Vec<Job>) -> Vec<i64> {
    let runs = Arc::new(Mutex::new(Vec::new()));
    let mut instance = Joined::new(Doubling { runs: Arc::clone(&runs) }, true);
    instance.run(Batch { jobs: jobs.into(), meter: Arc::new(NoMeter) });
    drop(instance);
    Arc::into_inner(runs).unwrap().into_inner().unwrap()
}

fn numbers(response: &Response) -> Result<Vec<i32>, String> {
    let content = response.clone().into_content().unwrap();
    content.map(|made| made.outputs[0].data.numbers::<i32>().unwrap().to_vec()).map_err(|error| error.message)
}

#[track_caller]
fn check(jobs: impl FnOnce(&Seen) -> Vec<Job>, runs: &[i64], answers: &[Result<&[i32], &str>]) {
    let seen = Seen::default();
    assert_eq!(run(jobs(&seen)), runs);
    let seen = seen.lock().unwrap();
    let got: Vec<_> = seen.iter().map(numbers).collect();
    let got: Vec<_> = got.iter().map(|r| r.as_deref().map_err(String::as_str)).collect();
    assert_eq!(got.len(), answers.len());
    for (got, expected) in got.iter().zip(answers) {
        match (got, expected) {
            (Err(text), Err(part)) => assert!(text.contains(part), "{text}"),
            _ => assert_eq!(got, expected),
        }
    }
}

#[test]
fn rows_of_several_jobs_run_once_and_return_in_order() {
    check(
        |seen| {
            let data = |values: &[i32]| Buffer::from_numbers(values.to_vec());
            vec![
                job(seen, "a", data(&[1, 2, 3, 4]), 2, inline("Y")),
                job(seen, "b", data(&[5, 6]), 2, placed(8)),
                job(seen, "c", data(&[7, 8]), 2, placed(64)),
            ]
        },
        &[4],
        &[Ok(&[2, 4, 6, 8]), Ok(&[10, 12]), Ok(&[14, 16])],
    );
}

#[test]
fn jobs_of_other_shapes_run_by_themselves() {
    check(
        |seen| {
            let data = |values: &[i32]| Buffer::from_numbers(values.to_vec());
            vec![
                job(seen, "a", data(&[1, 2]), 2, inline("Y")),
                job(seen, "b", data(&[5, 6, 7]), 3, inline("Y")),
                job(seen, "c", data(&[7, 8, 9]), 3, inline("Y")),
            ]
        },
        &[1, 2],
        &[Ok(&[2, 4]), Ok(&[10, 12, 14]), Ok(&[14, 16, 18])],
    );
}

#[test]
fn one_bad_request_or_small_place_fails_alone() {
    check(
        |seen| {
            let data = |values: &[i32]| Buffer::from_numbers(values.to_vec());
            vec![
                job(seen, "a", data(&[1]), 1, inline("Y")),
                job(seen, "b", data(&[-1]), 1, inline("Y")),
                job(seen, "c", data(&[3]), 1, placed(4)),
            ]
        },
        &[3, 1, 1, 1],
        &[Ok(&[2]), Err("negative"), Ok(&[6])],
    );
    check(
        |seen| {
            let data = |values: &[i32]| Buffer::from_numbers(values.to_vec());
            vec![job(seen, "a", data(&[1]), 1, placed(3)), job(seen, "b", data(&[2]), 1, placed(4))]
        },
        &[2],
        &[Err("for output 'Y' (3 bytes) should be at least 4 bytes"), Ok(&[4])],
    );
}

#[test]
fn strings_come_apart_at_their_elements() {
    let seen = Seen::default();
    let data = |values: &[i32]| Buffer::from_numbers(values.to_vec());
    run(vec![job(&seen, "a", data(&[1, 50]), 1, inline("S")), job(&seen, "b", data(&[500]), 1, inline("S"))]);
    let seen: Vec<_> = seen.lock().unwrap().drain(..).map(|r| r.into_content().unwrap().unwrap()).collect();
    let bytes: Vec<_> = seen.iter().map(|made| made.outputs[0].data.private_bytes().unwrap()).collect();
    assert_eq!(bytes, [&b"\x01\0\0\x002\x03\0\0\x00100"[..], &b"\x04\0\0\x001000"[..]]);
}

#[test]
fn rows_that_lie_end_to_end_are_not_gathered() {
    let whole = Buffer::from_numbers(vec![1i32, 2, 3, 4]);
    let part = |at| whole.slice(Extent::new(at, 8, 16).unwrap());
    let seen = Seen::default();
    let mut jobs = vec![job(&seen, "a", part(0), 2, inline("Y")), job(&seen, "b", part(8), 2, inline("Y"))];
    let ragged = Ragged::default();
    let mut blocks = DeviceBlocks::default();
    let work = Work::new(&mut jobs, &ragged, &mut blocks).unwrap();
    assert_eq!(work.inputs()[0].data.as_ptr(), whole.as_ptr());
    assert_eq!(work.inputs()[0].shape[..], [2, 2]);
}

/// Takes a slot for Y, gives it back, and leaves Y in memory of its own.
struct Undecided;

impl Execute for Undecided {
    fn execute(&mut self, work: &mut Work<'_>, _: &mut Times) -> Result<(), Status> {
        let input = work.input("X").unwrap().clone();
        let slot = work.slot("Y", DataType::Int32, &[1, 1])?.unwrap();
        work.give_back("Y", slot);
        work.put_buffer("Y", DataType::Int32, &input.shape, input.data);
        Ok(())
    }
}

/// A reply that offers memory for each output, records the offers, and keeps the responses.
struct Offering(Seen, Arc<Mutex<Vec<(String, usize, usize)>>>);

impl Deliver for Offering {
    fn deliver(&mut self, response: Response) {
        self.0.lock().unwrap().push(response);
    }

    fn offers_places(&self) -> bool {
        true
    }

    fn place(&mut self, query: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        let mut slot = Slot::heap(query.bytes);
        self.1.lock().unwrap().push((query.output.to_owned(), query.bytes, slot.as_mut_ptr() as usize));
        Ok(Some(slot))
    }
}

#[test]
fn a_place_that_the_reply_offers_is_computed_into() {
    for given_back in [false, true] {
        let (seen, offered) = (Seen::default(), Arc::new(Mutex::new(Vec::new())));
        let reply = Reply::through(Offering(Arc::clone(&seen), Arc::clone(&offered)));
        let job = job_of(reply, "a", Buffer::from_numbers(vec![1, 2, 3, 4]), 2, inline("Y"));
        let batch = Batch { jobs: vec![job].into(), meter: Arc::new(NoMeter) };
        if given_back {
            Joined::new(Undecided, true).run(batch);
        } else {
            Joined::new(Doubling { runs: Arc::default() }, true).run(batch);
        }
        let (seen, offered) = (seen.lock().unwrap().remove(0), offered.lock().unwrap());
        let output = &seen.into_content().unwrap().unwrap().outputs[0];
        let expected: (&[i32], usize) = if given_back { (&[1, 2, 3, 4], 4) } else { (&[2, 4, 6, 8], 16) };
        assert_eq!(output.data.numbers::<i32>().unwrap(), expected.0);
        assert_eq!(offered.len(), 1);
        assert_eq!((offered[0].0.as_str(), offered[0].1), ("Y", expected.1));
        assert_eq!(output.data.as_ptr() as usize == offered[0].2, !given_back);
    }
}

/// Input memory of an instance that reads the outputs of several requests. It keeps the addresses of its slots.
#[derive(Default)]
struct Reader(Mutex<Vec<usize>>);

impl InputMemory for Reader {
    fn slot(&self, bytes: usize) -> Option<Slot> {
        let mut slot = Slot::heap(bytes);
        self.0.lock().unwrap().push(slot.as_mut_ptr() as usize);
        Some(slot)
    }

    fn can_read(&self, _: &Buffer) -> bool {
        true
    }
}

/// A reply to an ensemble, which knows the input memory of the model that reads the outputs.
struct ReadBy(Seen, Arc<Reader>);

impl Deliver for ReadBy {
    fn deliver(&mut self, response: Response) {
        self.0.lock().unwrap().push(response);
    }

    fn input_memory(&self, _: usize) -> Option<Arc<dyn InputMemory>> {
        Some(Arc::clone(&self.1) as _)
    }
}

#[test]
fn rows_that_one_instance_reads_next_are_computed_in_its_memory() {
    const COUNT: usize = SHARED_BYTES_MIN / 4;
    for (is_same, is_there) in [(true, true), (false, false)] {
        let (seen, reader) = (Seen::default(), Arc::new(Reader::default()));
        let other = if is_same { Arc::clone(&reader) } else { Arc::default() };
        let jobs = [(1, &reader), (2, &other)].map(|(number, reader)| {
            let reply = Reply::through(ReadBy(Arc::clone(&seen), Arc::clone(reader)));
            job_of(reply, "", Buffer::from_numbers(vec![number; COUNT]), COUNT as i64, inline("Y"))
        });
        assert_eq!(run(jobs.into()), [2]);
        let seen = seen.lock().unwrap();
        assert_eq!([0, 1].map(|at| numbers(&seen[at]).unwrap()), [2, 4].map(|number| vec![number; COUNT]));
        let content = seen[1].clone().into_content().unwrap().unwrap();
        let begin = content.outputs[0].data.as_ptr() as usize - 4 * COUNT;
        assert_eq!(reader.0.lock().unwrap().contains(&begin), is_there);
    }
}

/// Computes ten times X plus the number of requests, which it gets from the batch input ENDS. If X begins with -1, the output has an element too
/// many.
struct Ends;

impl Execute for Ends {
    fn execute(&mut self, work: &mut Work<'_>, _: &mut Times) -> Result<(), Status> {
        let ends = work.input("ENDS").unwrap().clone();
        let input = work.input("X").unwrap().clone();
        let numbers = input.data.numbers::<i32>().unwrap();
        let ends_numbers = ends.data.numbers::<i32>().unwrap();
        assert_eq!(
            (&input.shape[..], ends_numbers.last()),
            (&[numbers.len() as i64][..], Some(&(numbers.len() as i32)))
        );
        let longer = usize::from(numbers.first() == Some(&-1));
        let made: Vec<i32> =
            numbers.iter().map(|n| 10 * n + ends_numbers.len() as i32).chain([0; 1].into_iter().take(longer)).collect();
        let shape = [made.len() as i64];
        work.put_buffer("Y", DataType::Int32, &shape, Buffer::from_numbers(made));
        Ok(())
    }
}

#[track_caller]
fn check_ragged(parts: &[&[i32]], answers: &[Result<&[i32], &str>]) {
    let config = nerite_config::parse_text(
        "",
        b"name: 'm' max_batch_size: 8 input { name: 'X' dims: -1 allow_ragged_batch: true } output { name: 'Y' dims: -1 } \
          batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: 'ENDS' data_type: TYPE_INT32 source_input: 'X' } \
          batch_output { target_name: 'Y' source_input: 'X' }",
    );
    let seen = Seen::default();
    let jobs = parts.iter().map(|part| {
        let data = Buffer::from_numbers(part.to_vec());
        job(&seen, "", data, part.len() as i64, inline("Y"))
    });
    let jobs = jobs.collect();
    let mut instance = Joined::new(Ends, true).with_ragged(Ragged::of(&config.unwrap()));
    instance.run(Batch { jobs, meter: Arc::new(NoMeter) });
    let seen = seen.lock().unwrap();
    let got: Vec<_> = seen.iter().map(numbers).collect();
    assert_eq!(got.len(), answers.len());
    for (got, answer) in got.iter().zip(answers) {
        match answer {
            Ok(numbers) => assert_eq!(got.as_deref(), Ok(*numbers)),
            Err(part) => assert!(got.as_ref().unwrap_err().contains(part), "{got:?}"),
        }
    }
    for (response, part) in seen.iter().zip(parts) {
        if let Response::Final(content) = response {
            assert_eq!(content.outputs[0].shape[..], [1, part.len() as i64], "as the input");
        }
    }
}

#[test]
fn requests_of_unequal_shapes_run_once_and_are_scattered_by_their_inputs() {
    check_ragged(&[&[1, 2, 3]], &[Ok(&[11, 21, 31])]);
    check_ragged(&[&[1, 2, 3], &[4], &[5, 6]], &[Ok(&[13, 23, 33]), Ok(&[43]), Ok(&[53, 63])]);
    let refusal = "output 'Y' has 3 elements, but the requests of the batch want 2 by the shapes of their inputs";
    check_ragged(&[&[-1, 1]], &[Err(refusal)]);
    // Jobs that ran together and failed run again, each alone.
    check_ragged(&[&[-1, 1], &[7]], &[Err(refusal), Ok(&[71])]);
}
