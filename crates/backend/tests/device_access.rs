//! Does an instance on a device get that device's memory as it is, and other devices' memory on the host?
//!
//! Uses the stand-in driver, which is no CUDA. Nothing computes there, so the runtime only moves bytes.
#![allow(clippy::unwrap_used)]

#[path = "../../cuda/tests/stand_in/compile.rs"]
mod stand_in;

use std::sync::{Arc, Mutex, MutexGuard};

use nerite_backend::{Batch, DeviceAccess, Execute, Instance, Job, Joined, ModelVersion, NoMeter, Staged, Times, Work};
use nerite_cuda::{DeviceMemory, Driver};
use nerite_memory::{Buffer, Extent, HeapStaging, Place, Reason, Slot, copied_bytes};
use nerite_request::{AdmittedRequest, Cancel, InferResponse, Parameters, Reply, Sequence, Status, Wanted};
use nerite_tensor::{DataType, Shape, Tensor};

/// Copies are counted for the process, so one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

type Runs = Arc<Mutex<Vec<(Place, Option<Place>)>>>;

/// X to Y on a device, noting where they were. Without `declares` it knows the size of Y only afterwards and makes it
/// on the host.
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

type Seen = Arc<Mutex<Vec<Result<InferResponse, Status>>>>;

fn job(seen: &Seen, data: Buffer, slot: Option<Slot>) -> Job {
    let into = Arc::clone(seen);
    let shape = Shape::from_slice(&[data.len() as i64 / 4, 4]);
    let request = AdmittedRequest {
        id: String::new().into(),
        rows: shape[0] as u32,
        inputs: vec![Tensor { name: "X".into(), datatype: DataType::Uint8, shape, data }].into(),
        wanted: vec![Wanted { name: "Y".into(), slot }].into(),
        priority: 0,
        timeout_us: 0,
        sequence: Sequence::default(),
        parameters: Parameters::new(),
        cancel: Cancel::new(),
        reply: Reply::new(move |response| into.lock().unwrap().push(response.into_content().unwrap())),
    };
    Job::new(request, ModelVersion::unmetered("echo").begin(), 0)
}

/// Runs `jobs` on an instance on device 1 and gives where each run's tensors were, and the bytes that crossed.
fn run(declares: bool, jobs: Vec<Job>) -> (Vec<(Place, Option<Place>)>, u64) {
    let runs = Runs::default();
    let engine = Echo { device: 1, declares, runs: Arc::clone(&runs) };
    let access = DeviceAccess::Device { ordinal: 1, align: 256, host_tensors: Arc::default() };
    let before = copied_bytes(Reason::CrossDevice);
    Staged::over(Box::new(Joined::new(engine, true)), Arc::new(HeapStaging), access)
        .run(Batch { jobs: jobs.into(), meter: Arc::new(NoMeter) });
    let crossed = copied_bytes(Reason::CrossDevice) - before;
    (runs.lock().unwrap().clone(), crossed)
}

/// One job from `input` of one device to `output` of another: checks where the runtime saw them, and the bytes that
/// crossed.
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

#[test]
fn rows_run_together_only_where_they_lie_end_to_end() {
    let _alone = alone();
    let (seen, one, other) = (Seen::default(), on_device(1, &[1; 1024]), on_device(1, &[2; 1024]));
    let jobs = vec![
        job(&seen, one.buffer(part(0, 256)), None),
        job(&seen, one.buffer(part(256, 256)), Some(other.slot(part(768, 256)))),
        job(&seen, other.buffer(part(0, 256)), None),
    ];
    // The rows of the first two are divided on the host, and one half is copied to its device.
    assert_eq!(run(true, jobs), (vec![(HERE, Some(Place::Host)), (HERE, Some(Place::Host))], 256));
    let seen = seen.lock().unwrap();
    assert!(seen.iter().all(Result::is_ok) && seen.len() == 3);
    assert_eq!(bytes_of(&other, part(768, 256)), [1; 256]);
    assert_eq!(seen[2].as_ref().unwrap().outputs[0].data.private_bytes(), Some(&[2; 256][..]));
}
