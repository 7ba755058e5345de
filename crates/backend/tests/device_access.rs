//! Does an instance use memory of its device in place and other devices' memory through the host, and are rows joined on the device?
//!
//! The tests use a stand-in for the CUDA driver. It cannot compute, so the runtime only copies bytes.
#![allow(clippy::unwrap_used)]

#[path = "../../cuda/tests/stand_in/compile.rs"]
mod stand_in;

use std::sync::{Arc, Mutex, MutexGuard};

use nerite_backend::limits::DEVICE_BATCH_BYTES_MAX;
use nerite_backend::{
    Batch, DeviceAccess, Execute, Instance, Job, Joined, ModelVersion, NoMeter, Ragged, Staged, Times, Work,
};
use nerite_cuda::{DeviceMemory, Driver, PinnedPool};
use nerite_memory::{Buffer, Extent, HeapStaging, Place, Reason, Slot, Staging, copied_bytes};
use nerite_request::{AdmittedRequest, InferResponse, Recycled, Reply, Status, Wanted};
use nerite_tensor::{DataType, Shape, Tensor};

/// Held by each test, because copies are counted for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

type Runs = Arc<Mutex<Vec<(Place, Option<Place>)>>>;

/// Copies X to Y on a device, and records where both lay. Without `declares`, it requests no memory for Y and makes Y on the host.
struct Echo {
    device: u32,
    declares: bool,
    runs: Runs,
}

impl Execute for Echo {
    fn execute(&mut self, work: &mut Work<'_>, _: &mut Times) -> Result<(), Status> {
        let input = work.input("X").unwrap().clone();
        let slot =
            if self.declares { work.slot_on(Some(self.device), "Y", DataType::Uint8, &input.shape)? } else { None };
        self.runs.lock().unwrap().push((input.data.place(), slot.as_ref().map(Slot::place)));
        let direct = slot.is_some();
        let mut slot = slot.unwrap_or_else(|| Slot::heap(input.data.len()));
        slot.fill_from(0, &input.data, Reason::Model).unwrap();
        if direct {
            return work.put_slot("Y", DataType::Uint8, &input.shape, slot);
        }
        work.put_buffer("Y", DataType::Uint8, &input.shape, slot.filled().into_buffer());
        Ok(())
    }
}

fn on_device(ordinal: u32, bytes: &[u8]) -> Arc<DeviceMemory> {
    let device = Driver::open(Some(stand_in::library())).unwrap().device(ordinal).unwrap();
    let memory = DeviceMemory::allocate(&device, bytes.len()).unwrap();
    memory.slot(Extent::whole(bytes.len())).write(0, bytes, Reason::Model).unwrap();
    memory
}

fn part(at: usize, len: usize) -> Extent {
    Extent::new(at, len, 1024).unwrap()
}

fn bytes_of(memory: &Arc<DeviceMemory>, extent: Extent) -> Vec<u8> {
    let mut home = Slot::heap(extent.len());
    home.fill_from(0, &memory.buffer(extent), Reason::Model).unwrap();
    home.filled().into_buffer().private_bytes().unwrap().to_vec()
}

type Seen = Arc<Mutex<Vec<Result<Recycled<InferResponse>, Status>>>>;

fn job(seen: &Seen, data: Buffer, slot: Option<Slot>) -> Job {
    job_of_row(4, seen, data, slot)
}

/// A job whose rows have this many bytes.
fn job_of_row(row: i64, seen: &Seen, data: Buffer, slot: Option<Slot>) -> Job {
    let into = Arc::clone(seen);
    let shape = Shape::from_slice(&[data.len() as i64 / row, row]);
    let request = AdmittedRequest {
        rows: shape[0] as u32,
        inputs: vec![Tensor { name: "X".into(), datatype: DataType::Uint8, shape, data }].into(),
        wanted: vec![Wanted { name: "Y".into(), slot }].into(),
        ..AdmittedRequest::new(Reply::new(move |response| into.lock().unwrap().push(response.into_content().unwrap())))
    };
    Job::new(request, ModelVersion::unmetered("echo").begin(), 0)
}

/// Runs `jobs` on an instance on device 1.
fn run_with(engine: impl Execute + 'static, ragged: Ragged, jobs: Vec<Job>) {
    let access = DeviceAccess::Device { ordinal: 1, align: 256, host_tensors: Arc::default() };
    Staged::over(Box::new(Joined::new(engine, true).with_ragged(ragged)), Arc::new(HeapStaging), access)
        .run(Batch { jobs: jobs.into(), meter: Arc::new(NoMeter) });
}

/// Runs `jobs` on an instance on device 1. Returns where the tensors of each run lay, and the number of bytes copied between devices and host.
fn run(declares: bool, jobs: Vec<Job>) -> (Vec<(Place, Option<Place>)>, u64) {
    let runs = Runs::default();
    let engine = Echo { device: 1, declares, runs: Arc::clone(&runs) };
    let before = copied_bytes(Reason::CrossDevice);
    run_with(engine, Ragged::default(), jobs);
    let crossed = copied_bytes(Reason::CrossDevice) - before;
    (runs.lock().unwrap().clone(), crossed)
}

/// Runs one job. `input` and `output` are each a device and an offset. Checks where the tensors lay during the run, and the number of bytes copied
/// between devices and host.
#[track_caller]
fn check(declares: bool, input: (u32, usize), output: (u32, usize), saw: (Place, Option<Place>), crossed: u64) {
    let _alone = alone();
    let seen = Seen::default();
    let (from, to) = (on_device(input.0, &[7; 1024]), on_device(output.0, &[0; 1024]));
    let slot = to.slot(part(output.1, 8));
    let found = run(declares, vec![job(&seen, from.buffer(part(input.1, 8)), Some(slot))]);
    assert_eq!(found, (vec![saw], crossed));
    assert_eq!(bytes_of(&to, part(output.1, 8)), [7; 8]);
    assert!(seen.lock().unwrap()[0].as_ref().unwrap().outputs[0].placed);
}

const HERE: Place = Place::Device(1);

#[test]
fn what_lies_on_the_instances_device_is_taken_and_given_as_it_is() {
    check(true, (1, 0), (1, 0), (HERE, Some(HERE)), 0);
    check(true, (1, 256), (1, 512), (HERE, Some(HERE)), 0);
}

#[test]
fn what_lies_elsewhere_or_unaligned_is_carried_once_each_way() {
    check(true, (0, 0), (1, 0), (Place::Host, Some(HERE)), 8);
    check(true, (1, 0), (0, 0), (HERE, Some(Place::Host)), 8);
    check(true, (1, 8), (1, 512), (Place::Host, Some(HERE)), 8);
    check(true, (1, 0), (1, 520), (HERE, Some(Place::Host)), 8);
    check(true, (0, 0), (0, 8), (Place::Host, Some(Place::Host)), 16);
}

#[test]
fn an_output_that_was_made_on_the_host_is_carried_to_its_place() {
    check(false, (1, 0), (1, 0), (HERE, None), 8);
    check(false, (1, 0), (0, 0), (HERE, None), 8);
}

#[test]
fn an_output_over_the_input_is_made_elsewhere_first() {
    let _alone = alone();
    let (seen, memory) = (Seen::default(), on_device(1, &[7; 1024]));
    let jobs = vec![job(&seen, memory.buffer(part(0, 512)), Some(memory.slot(part(256, 512))))];
    assert_eq!(run(true, jobs), (vec![(HERE, None)], 512));
    assert!(seen.lock().unwrap()[0].is_ok());
}

/// The bytes that a run copied: into the batch, out of it, and between devices and host.
#[derive(Debug, PartialEq, Eq)]
struct Copied {
    gathered: u64,
    scattered: u64,
    crossed: u64,
}

impl Copied {
    fn so_far() -> Copied {
        let [gathered, scattered, crossed] =
            [Reason::BatchGather, Reason::BatchScatter, Reason::CrossDevice].map(copied_bytes);
        Copied { gathered, scattered, crossed }
    }
}

/// Runs `jobs` as one batch. Checks where the tensors of each run lay, and how many bytes were copied.
#[track_caller]
fn check_batch(jobs: Vec<Job>, saw: &[(Place, Option<Place>)], gathered: u64, scattered: u64, crossed: u64) {
    let before = Copied::so_far();
    let (runs, _) = run(true, jobs);
    let now = Copied::so_far();
    let copied = Copied {
        gathered: now.gathered - before.gathered,
        scattered: now.scattered - before.scattered,
        crossed: now.crossed - before.crossed,
    };
    assert_eq!((&runs[..], copied), (saw, Copied { gathered, scattered, crossed }));
}

/// The outputs of the responses, or their errors, in the order of the responses.
fn answers(seen: &Seen) -> Vec<Result<Vec<u8>, String>> {
    let bytes = |data: &Buffer| {
        let mut home = Slot::heap(data.len());
        home.fill_from(0, data, Reason::Model).unwrap();
        home.filled().into_buffer().private_bytes().unwrap().to_vec()
    };
    let answer = |answer: &Result<Recycled<InferResponse>, Status>| match answer {
        Ok(response) => Ok(bytes(&response.outputs[0].data)),
        Err(error) => Err(error.message.clone()),
    };
    seen.lock().unwrap().iter().map(answer).collect()
}

#[test]
fn rows_that_lie_end_to_end_on_the_device_are_used_in_place() {
    let _alone = alone();
    let (seen, from, to) = (Seen::default(), on_device(1, &[1; 1024]), on_device(1, &[0; 1024]));
    from.slot(part(256, 256)).write(0, &[2; 256], Reason::Model).unwrap();
    let jobs = vec![
        job(&seen, from.buffer(part(0, 256)), Some(to.slot(part(256, 256)))),
        job(&seen, from.buffer(part(256, 256)), Some(to.slot(part(512, 512)))),
    ];
    check_batch(jobs, &[(HERE, Some(HERE))], 0, 0, 0);
    assert_eq!(answers(&seen), [Ok(vec![1; 256]), Ok(vec![2; 256])]);
    let outputs = [vec![0; 256], vec![1; 256], vec![2; 256], vec![0; 256]].concat();
    assert_eq!(bytes_of(&to, part(0, 1024)), outputs);
}

#[test]
fn rows_of_several_regions_are_gathered_and_scattered_on_the_device() {
    let _alone = alone();
    let (seen, one, other) = (Seen::default(), on_device(1, &[1; 1024]), on_device(1, &[2; 1024]));
    let jobs = vec![
        job(&seen, one.buffer(part(0, 256)), Some(one.slot(part(512, 256)))),
        job(&seen, other.buffer(part(0, 512)), Some(other.slot(part(512, 512)))),
    ];
    check_batch(jobs, &[(HERE, Some(HERE))], 768, 768, 0);
    assert_eq!(answers(&seen), [Ok(vec![1; 256]), Ok(vec![2; 512])]);
    assert!(seen.lock().unwrap().iter().all(|answer| answer.as_ref().unwrap().outputs[0].placed));
}

#[test]
fn outputs_over_inputs_are_computed_elsewhere_first() {
    let _alone = alone();
    for [one, other] in [[0, 256], [256, 0]] {
        let (seen, memory) = (Seen::default(), on_device(1, &[1; 1024]));
        memory.slot(part(other, 256)).write(0, &[2; 256], Reason::Model).unwrap();
        // The outputs are in the order of their addresses. The inputs are in the same order, or in the reverse one.
        let jobs = vec![
            job(&seen, memory.buffer(part(one, 256)), Some(memory.slot(part(0, 256)))),
            job(&seen, memory.buffer(part(other, 256)), Some(memory.slot(part(256, 256)))),
        ];
        check_batch(jobs, &[(HERE, Some(HERE))], if one == 0 { 0 } else { 512 }, 512, 0);
        assert_eq!(answers(&seen), [Ok(vec![1; 256]), Ok(vec![2; 256])]);
    }
}

#[test]
fn outputs_that_nobody_wants_on_the_device_are_computed_on_the_host() {
    let _alone = alone();
    let (seen, one, other) = (Seen::default(), on_device(1, &[1; 1024]), on_device(1, &[2; 1024]));
    let jobs = vec![job(&seen, one.buffer(part(0, 8)), None), job(&seen, other.buffer(part(0, 8)), None)];
    check_batch(jobs, &[(HERE, Some(Place::Host))], 16, 0, 0);
    assert_eq!(answers(&seen), [Ok(vec![1; 8]), Ok(vec![2; 8])]);
}

#[test]
fn rows_on_the_host_are_brought_to_those_on_the_device() {
    let _alone = alone();
    let (seen, one) = (Seen::default(), on_device(1, &[1; 1024]));
    let jobs = vec![
        job(&seen, Buffer::from(vec![2; 8]), None),
        job(&seen, one.buffer(part(0, 8)), Some(one.slot(part(256, 8)))),
        // The runtime does not take an address with this alignment. The tensors are staged before the run and after it.
        job(&seen, one.buffer(part(4, 8)), Some(one.slot(part(516, 8)))),
        // A tensor on another device is staged too.
        job(&seen, on_device(0, &[3; 8]).buffer(Extent::whole(8)), None),
    ];
    let (inputs, outputs) = (8 + 2 * 8 + 2 * 8, 8 + 2 * 8 + 8);
    check_batch(jobs, &[(HERE, Some(HERE))], 8, 8, inputs + outputs);
    assert_eq!(answers(&seen), [Ok(vec![2; 8]), Ok(vec![1; 8]), Ok(vec![1; 8]), Ok(vec![3; 8])]);
    // If all tensors are on the host, nothing is copied to the device.
    let (seen, jobs) = (Seen::default(), |seen: &Seen| job(seen, Buffer::from(vec![5; 8]), None));
    check_batch(vec![jobs(&seen), jobs(&seen)], &[(Place::Host, Some(Place::Host))], 16, 0, 0);
}

#[test]
fn page_locked_and_other_memory_of_the_host_share_a_batch() {
    let _alone = alone();
    let pool = PinnedPool::new(&Driver::open(Some(stand_in::library())).unwrap(), 4096);
    let mut pinned = pool.slot(8).unwrap();
    pinned.write(0, &[3; 8], Reason::Model).unwrap();
    assert_eq!(pinned.place(), Place::Pinned);
    let seen = Seen::default();
    let jobs = vec![job(&seen, pinned.filled().into_buffer(), None), job(&seen, Buffer::from(vec![4; 8]), None)];
    check_batch(jobs, &[(Place::Host, Some(Place::Host))], 16, 0, 0);
    assert_eq!(answers(&seen), [Ok(vec![3; 8]), Ok(vec![4; 8])]);
}

#[test]
fn an_output_that_is_too_large_for_its_region_fails_its_request_alone() {
    let _alone = alone();
    let (seen, one) = (Seen::default(), on_device(1, &[1; 1024]));
    let jobs = vec![
        job(&seen, one.buffer(part(0, 256)), Some(one.slot(part(512, 255)))),
        job(&seen, one.buffer(part(256, 256)), Some(one.slot(part(768, 256)))),
    ];
    check_batch(jobs, &[(HERE, Some(HERE))], 0, 256, 0);
    let answers = answers(&seen);
    let text = "shared memory size specified with the request for output 'Y' (255 bytes) should be at least 256 bytes";
    assert!(answers[0].as_ref().unwrap_err().starts_with(text), "{answers:?}");
    assert_eq!(answers[1], Ok(vec![1; 256]));
}

/// The stand-in refuses to read memory with this content.
const LOST: [u8; 8] = *b"LOST\0\0\0\0";

#[test]
fn a_region_that_cannot_be_read_fails_its_request_alone() {
    let _alone = alone();
    let (seen, good, lost) = (Seen::default(), on_device(1, &[1; 1024]), on_device(1, &LOST));
    let lost = |seen: &Seen| job(seen, lost.buffer(Extent::whole(8)), None);
    let good = |seen: &Seen, at| job(seen, good.buffer(part(at, 8)), Some(good.slot(part(at + 512, 8))));
    let jobs = vec![lost(&seen), good(&seen, 0), lost(&seen), good(&seen, 256), lost(&seen)];
    // The other jobs run once, together.
    check_batch(jobs, &[(HERE, Some(HERE))], 16, 16, 0);
    let text = "input 'X': cannot copy between host and device: cuMemcpyDtoDAsync_v2: invalid argument \
                (CUDA_ERROR_INVALID_VALUE, 1)";
    let error = || Err(text.to_owned());
    assert_eq!(answers(&seen), [error(), Ok(vec![1; 8]), error(), Ok(vec![1; 8]), error()]);
    let seen = Seen::default();
    check_batch(vec![lost(&seen), lost(&seen)], &[], 0, 0, 0);
    assert_eq!(answers(&seen), [error(), error()]);
}

/// Fails each run.
struct Failing;

impl Execute for Failing {
    fn execute(&mut self, _: &mut Work<'_>, _: &mut Times) -> Result<(), Status> {
        Err(Status::internal("the engine failed"))
    }
}

#[test]
fn a_request_that_runs_alone_and_fails_is_answered_after_the_unread_ones_before_it() {
    let _alone = alone();
    let (seen, good, lost) = (Seen::default(), on_device(1, &[1; 1024]), on_device(1, &LOST));
    let lost = |seen: &Seen| job(seen, lost.buffer(Extent::whole(8)), None);
    let jobs = vec![lost(&seen), job(&seen, good.buffer(part(0, 8)), None), lost(&seen)];
    run_with(Failing, Ragged::default(), jobs);
    let failed: Vec<bool> =
        answers(&seen).iter().map(|answer| answer.as_ref().is_err_and(|error| error == "the engine failed")).collect();
    assert_eq!(failed, [false, true, false]);
}

#[test]
fn requests_with_an_input_on_the_device_do_not_share_a_batch_with_inputs_to_pad() {
    let _alone = alone();
    let model = "name: 'm' backend: 'onnxruntime' max_batch_size: 8 input { name: 'X' data_type: TYPE_UINT8 dims: -1 } \
        output { name: 'Y' data_type: TYPE_UINT8 dims: -1 } \
        parameters { key: 'nerite.pad' value { string_value: 'X: 4' } }";
    let ragged = || Ragged::of(&nerite_config::parse_text("", model.as_bytes()).unwrap());
    let (seen, there) = (Seen::default(), on_device(1, &[3; 1024]));
    let host = |row, number: u8| job_of_row(row, &seen, Buffer::from(vec![number; row as usize]), None);
    let device = |at| job(&seen, there.buffer(part(at, 8)), Some(there.slot(part(at + 512, 8))));
    let echo = |runs: &Runs| Echo { device: 1, declares: true, runs: Arc::clone(runs) };
    let on_host = (Place::Host, Some(Place::Host));
    let cases: [(Vec<Job>, &[_]); 3] = [
        (vec![host(2, 1), host(4, 2), device(0)], &[on_host, (HERE, Some(HERE))]),
        (vec![device(0), host(4, 2), host(2, 1)], &[(HERE, Some(HERE)), on_host]),
        (vec![device(0), device(256)], &[(HERE, Some(HERE))]),
    ];
    for (jobs, saw) in cases {
        let runs = Runs::default();
        run_with(echo(&runs), ragged(), jobs);
        assert_eq!(&runs.lock().unwrap()[..], saw);
    }
    let (small, whole, there) = (Ok(vec![1, 1, 0, 0]), Ok(vec![2; 4]), Ok(vec![3; 8]));
    let first = [small.clone(), whole.clone(), there.clone()];
    let all = [&first[..], &[there.clone(), whole, small], &[there.clone(), there]].concat();
    assert_eq!(answers(&seen), all);
}

#[test]
fn requests_run_alone_where_the_device_has_no_memory_to_gather_them() {
    let _alone = alone();
    let (seen, one, other) = (Seen::default(), on_device(1, &[1; 1024]), on_device(1, &[2; 1024]));
    let device = Driver::open(Some(stand_in::library())).unwrap().device(1).unwrap();
    let _rest = DeviceMemory::allocate(&device, device.free_bytes().unwrap() as usize).unwrap();
    let jobs = vec![
        job(&seen, one.buffer(part(0, 256)), Some(one.slot(part(512, 256)))),
        job(&seen, other.buffer(part(0, 256)), Some(other.slot(part(512, 256)))),
    ];
    check_batch(jobs, &[(HERE, Some(HERE)); 2], 0, 0, 0);
    assert_eq!(answers(&seen), [Ok(vec![1; 256]), Ok(vec![2; 256])]);
}

#[test]
fn a_batch_has_a_bounded_number_of_bytes_gathered_on_a_device() {
    let _alone = alone();
    let len = DEVICE_BATCH_BYTES_MAX / 2;
    let (seen, one, other) = (Seen::default(), on_device(1, &vec![1; 2 * len]), on_device(1, &vec![2; len + 4]));
    let of = |memory: &Arc<DeviceMemory>, at, len| memory.buffer(Extent::new(at, len, at + len).unwrap());
    let jobs = |len| vec![job(&seen, of(&one, 0, len), None), job(&seen, of(&other, 0, len), None)];
    check_batch(jobs(len), &[(HERE, Some(Place::Host))], DEVICE_BATCH_BYTES_MAX as u64, 0, 0);
    check_batch(jobs(len + 4), &[(HERE, Some(Place::Host)); 2], 0, 0, 0);
    // Inputs that are used in place have no limit.
    let joined = vec![job(&seen, of(&one, 0, len), None), job(&seen, of(&one, len, len), None)];
    check_batch(joined, &[(HERE, Some(Place::Host))], 0, 0, 0);
    assert!(seen.lock().unwrap().iter().all(Result::is_ok));
}

#[test]
fn an_instance_uses_its_memory_on_the_device_again_and_frees_it_with_itself() {
    let _alone = alone();
    let (seen, one, other) = (Seen::default(), on_device(1, &[1; 1024]), on_device(1, &[2; 1024]));
    let device = Driver::open(Some(stand_in::library())).unwrap().device(1).unwrap();
    let free = || device.free_bytes().unwrap();
    let before = free();
    let engine = Echo { device: 1, declares: true, runs: Runs::default() };
    let mut instance = Joined::new(engine, true);
    let mut used = Vec::new();
    for len in [512, 256, 512, 8] {
        let jobs =
            [&one, &other].map(|memory| job(&seen, memory.buffer(part(0, len)), Some(memory.slot(part(512, len)))));
        instance.run(Batch { jobs: jobs.into_iter().collect(), meter: Arc::new(NoMeter) });
        used.push(before - free());
    }
    // The instance keeps one block for the inputs and one for the outputs.
    assert_eq!(used, [2 * 1024; 4]);
    drop(instance);
    assert_eq!(free(), before);
    assert_eq!(answers(&seen).iter().filter(|answer| answer.is_ok()).count(), 8);
}
