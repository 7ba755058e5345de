//! Do runtimes on the host compute with memory of devices, and is each byte copied once each way?
//!
//! The tests use a stand-in for the CUDA driver. Only the stand-in can access its device addresses.
#![allow(clippy::unwrap_used)]

#[path = "../../cuda/tests/stand_in/compile.rs"]
mod stand_in;

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use nerite_backend::{
    Batch, Compute, DeviceAccess, Execute, InOrder, Instance, Job, Joined, Meter, ModelVersion, NoMeter, OutputPlace,
    Staged, Times, Work,
};
use nerite_cuda::{DeviceMemory, Driver, PinnedPool};
use nerite_memory::{Buffer, Extent, HeapStaging, Place, Reason, Slot, Staging, copied_bytes};
use nerite_request::{AdmittedRequest, InferResponse, Recycled, Reply, Response, Status, Wanted};
use nerite_tensor::{DataType, Shape, Tensor};

/// Held by each test, because copies are counted for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Writes -X to Y, as a runtime that computes each job by itself.
#[derive(Clone, Default)]
struct Negate(Arc<Mutex<Vec<(Place, OutputPlace)>>>);

impl Compute for Negate {
    fn compute(&mut self, job: &mut Job, _: &mut Times) -> Result<(), Status> {
        let input = job.input("X").unwrap().clone();
        self.0.lock().unwrap().push((input.data.place(), job.output_place("Y")));
        let negated = input.data.numbers::<i32>().unwrap().iter().map(|n| -n).collect::<Vec<_>>();
        let mut slot = job.output("Y", DataType::Int32, &input.shape)?;
        slot.cells_mut::<i32>().unwrap().copy_from(0, &negated);
        job.put("Y", DataType::Int32, input.shape, slot.filled());
        Ok(())
    }
}

/// The same for the rows of a batch. The result goes to a slot that was requested, or stays where it was computed.
struct NegateRows {
    wants_slot: bool,
}

impl Execute for NegateRows {
    fn execute(&mut self, work: &mut Work<'_>, _: &mut Times) -> Result<(), Status> {
        let input = work.input("X").unwrap().clone();
        let negated: Vec<i32> = input.data.numbers::<i32>().unwrap().iter().map(|n| -n).collect();
        let slot = if self.wants_slot { work.slot("Y", DataType::Int32, &input.shape)? } else { None };
        let Some(mut slot) = slot else {
            work.put_buffer("Y", DataType::Int32, &input.shape, Buffer::from_numbers(negated));
            return Ok(());
        };
        slot.cells_mut::<i32>().unwrap().copy_from(0, &negated);
        work.put_slot("Y", DataType::Int32, &input.shape, slot)
    }
}

fn device() -> nerite_cuda::Device {
    Driver::open(Some(stand_in::library())).unwrap().device(0).unwrap()
}

fn on_device(numbers: &[i32]) -> Arc<DeviceMemory> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    let memory = DeviceMemory::allocate(&device(), bytes.len()).unwrap();
    memory.slot(Extent::whole(bytes.len())).write(0, &bytes, Reason::Model).unwrap();
    memory
}

fn numbers_of(memory: &Arc<DeviceMemory>) -> Vec<i32> {
    let mut home = Slot::heap(memory.len());
    home.fill_from(0, &memory.buffer(Extent::whole(memory.len())), Reason::Model).unwrap();
    home.filled().into_buffer().numbers::<i32>().unwrap().to_vec()
}

fn whole(memory: &Arc<DeviceMemory>) -> Buffer {
    memory.buffer(Extent::whole(memory.len()))
}

type Seen = Arc<Mutex<Vec<Result<Recycled<InferResponse>, Status>>>>;

fn job(seen: &Seen, data: Buffer, slot: Option<Slot>) -> Job {
    let seen = Arc::clone(seen);
    let reply = Reply::new(move |response| seen.lock().unwrap().push(response.into_content().unwrap()));
    Job::new(AdmittedRequest { reply, ..request(data, slot) }, ModelVersion::unmetered("negate").begin(), 0)
}

fn request(data: Buffer, slot: Option<Slot>) -> AdmittedRequest {
    let shape = Shape::from_slice(&[data.len() as i64 / 4, 1]);
    AdmittedRequest {
        rows: shape[0] as u32,
        inputs: vec![Tensor { name: "X".into(), datatype: DataType::Int32, shape, data }].into(),
        wanted: vec![Wanted { name: "Y".into(), slot }].into(),
        ..AdmittedRequest::new(Reply::new(drop))
    }
}

fn run(instance: impl Instance + 'static, staging: Arc<dyn Staging>, jobs: Vec<Job>) {
    let meter: Arc<dyn Meter> = Arc::new(NoMeter);
    Staged::over(Box::new(instance), staging, DeviceAccess::Host).run(Batch { jobs: jobs.into(), meter });
}

#[track_caller]
fn check_success(seen: &Seen, count: usize) {
    let seen = seen.lock().unwrap();
    let errors: Vec<_> = seen.iter().filter_map(|response| response.as_ref().err()).collect();
    assert!(errors.is_empty() && seen.len() == count, "{} answers, {errors:?}", seen.len());
    assert!(seen.iter().flatten().all(|response| response.outputs[0].placed));
}

/// Runs one job whose input and output lie on the device. Checks that the result is there, and that the bytes were copied once each way, through
/// pinned memory.
#[track_caller]
fn check_one(instance: impl Instance + 'static) {
    let _alone = alone();
    let (seen, input, output) = (Seen::default(), on_device(&[1, -2, 3]), on_device(&[0, 0, 0, 77]));
    let driver = Driver::open(Some(stand_in::library())).unwrap();
    let pool = Arc::new(PinnedPool::new(&driver, 1 << 20));
    let before = Reason::ALL.iter().map(|reason| copied_bytes(*reason)).sum::<u64>();
    let across = copied_bytes(Reason::CrossDevice);
    let jobs = vec![job(&seen, whole(&input), Some(output.slot(Extent::whole(16))))];
    run(instance, Arc::<PinnedPool>::clone(&pool), jobs);
    check_success(&seen, 1);
    assert_eq!(copied_bytes(Reason::CrossDevice) - across, 24);
    assert_eq!(Reason::ALL.iter().map(|reason| copied_bytes(*reason)).sum::<u64>() - before, 24);
    assert_eq!(numbers_of(&output), [-1, 2, -3, 77]);
    assert_eq!(pool.pinned().used, 0);
}

#[test]
fn every_adapter_computes_on_the_host_and_each_byte_goes_once_each_way() {
    check_one(InOrder(Negate::default()));
    check_one(Joined::new(NegateRows { wants_slot: true }, true));
    check_one(Joined::new(NegateRows { wants_slot: false }, true));
}

#[test]
fn a_runtime_on_the_host_sees_no_device() {
    let _alone = alone();
    let negate = Negate::default();
    let (seen, input, output) = (Seen::default(), on_device(&[1]), on_device(&[0, 0]));
    let jobs = vec![job(&seen, whole(&input), Some(output.slot(Extent::whole(8))))];
    run(InOrder(negate.clone()), Arc::new(HeapStaging), jobs);
    assert_eq!(*negate.0.lock().unwrap(), [(Place::Host, OutputPlace { place: Place::Host, capacity: None })]);
}

/// Negates, and checks that the client's memory is held during the run.
struct Watching(Weak<DeviceMemory>);

impl Compute for Watching {
    fn compute(&mut self, job: &mut Job, times: &mut Times) -> Result<(), Status> {
        assert!(self.0.strong_count() > 0, "released while the model runs");
        Negate::default().compute(job, times)
    }
}

#[test]
fn memory_of_devices_is_held_until_the_answer_and_not_longer() {
    let _alone = alone();
    let input = on_device(&[1]);
    let (held, watching) = (Arc::downgrade(&input), Arc::downgrade(&input));
    let request = AdmittedRequest {
        reply: Reply::new(move |response: Response| {
            assert!(matches!(response, Response::Final(_)));
            // The client may unregister its region as soon as it has the answer, so nothing may hold it now.
            assert_eq!(held.strong_count(), 0);
        }),
        ..request(whole(&input), None)
    };
    drop(input);
    let job = Job::new(request, ModelVersion::unmetered("negate").begin(), 0);
    run(InOrder(Watching(watching)), Arc::new(HeapStaging), vec![job]);
}

#[test]
fn carrying_counts_as_making_the_inputs_ready() {
    /// Keeps the times that are reported.
    #[derive(Default)]
    struct Kept(Mutex<Vec<Times>>);
    impl Meter for Kept {
        fn request(&self, request_times: &nerite_backend::RequestTimes, _: nerite_backend::Outcome) {
            self.0.lock().unwrap().push(request_times.times);
        }
        fn batch(&self, _: u64, _: &Times) {}
    }
    /// Notes when a slot was last requested.
    #[derive(Default)]
    struct ReservedAt(Mutex<u64>);
    impl Staging for ReservedAt {
        fn slot(&self, len: usize) -> Result<Slot, nerite_memory::StagingFull> {
            *self.0.lock().unwrap() = nerite_backend::now_ns();
            Ok(Slot::heap(len))
        }
    }
    let _alone = alone();
    let instances: [Box<dyn Instance>; 2] =
        [Box::new(InOrder(Negate::default())), Box::new(Joined::new(NegateRows { wants_slot: true }, true))];
    for instance in instances {
        let (input, kept, reserved_at) = (on_device(&[1]), Arc::new(Kept::default()), Arc::new(ReservedAt::default()));
        let version = ModelVersion::new("negate", "1", Arc::<Kept>::clone(&kept));
        let jobs = vec![Job::new(request(whole(&input), None), version.begin(), 0)];
        Staged::over(instance, Arc::<ReservedAt>::clone(&reserved_at), DeviceAccess::Host)
            .run(Batch { jobs: jobs.into(), meter: Arc::<Kept>::clone(&kept) });
        let (times, reserved_at) = (kept.0.lock().unwrap()[0], *reserved_at.0.lock().unwrap());
        assert!(times.start <= reserved_at && reserved_at <= times.input_end, "{times:?}, reserved at {reserved_at}");
    }
}

#[test]
fn jobs_of_a_batch_lie_where_they_like() {
    let _alone = alone();
    for wants_slot in [true, false] {
        let (seen, input, output) = (Seen::default(), on_device(&[1, 2]), on_device(&[0, 0]));
        let host = || Buffer::from_numbers(vec![5i32]);
        let jobs = vec![
            job(&seen, whole(&input), Some(output.slot(Extent::whole(8)))),
            job(&seen, host(), Some(output.slot(Extent::new(4, 4, 8).unwrap()))),
            job(&seen, host(), None),
        ];
        run(Joined::new(NegateRows { wants_slot }, true), Arc::new(HeapStaging), jobs);
        assert_eq!(numbers_of(&output), [-1, -5]);
        let seen = seen.lock().unwrap();
        assert_eq!(seen[2].as_ref().unwrap().outputs[0].data.numbers::<i32>(), Some(&[-5][..]));
        assert_eq!(
            seen.iter().flatten().map(|response| response.outputs[0].placed).collect::<Vec<_>>(),
            [true, true, false]
        );
    }
}

#[test]
fn jobs_of_a_batch_are_carried_side_by_side_and_not_gathered_again() {
    let _alone = alone();
    let (seen, one, other) = (Seen::default(), on_device(&[1, 2, 3]), on_device(&[4]));
    let part = |at, len| one.buffer(Extent::new(at, len, 12).unwrap());
    let before = (copied_bytes(Reason::CrossDevice), copied_bytes(Reason::BatchGather));
    let jobs = vec![
        job(&seen, part(0, 4), None),
        job(&seen, part(4, 8), Some(one.slot(Extent::new(0, 8, 12).unwrap()))),
        job(&seen, whole(&other), Some(other.slot(Extent::whole(4)))),
    ];
    run(Joined::new(NegateRows { wants_slot: false }, true), Arc::new(HeapStaging), jobs);
    let after = (copied_bytes(Reason::CrossDevice), copied_bytes(Reason::BatchGather));
    assert_eq!((after.0 - before.0, after.1 - before.1), (16 + 12, 0));
    assert_eq!((numbers_of(&one), numbers_of(&other)), (vec![-2, -3, 3], vec![-4]));
    assert_eq!(seen.lock().unwrap()[0].as_ref().unwrap().outputs[0].data.numbers::<i32>(), Some(&[-1][..]));
}

#[test]
fn a_place_that_is_too_small_is_refused_in_tritons_words() {
    let _alone = alone();
    let text = "shared memory size specified with the request for output 'Y' (4 bytes) should be at least 8 bytes to hold \
                the results";
    let instances: [Box<dyn Instance>; 3] = [
        Box::new(InOrder(Negate::default())),
        Box::new(Joined::new(NegateRows { wants_slot: true }, true)),
        Box::new(Joined::new(NegateRows { wants_slot: false }, true)),
    ];
    for instance in instances {
        let (seen, input, output) = (Seen::default(), on_device(&[1, 2]), on_device(&[7]));
        let jobs = vec![job(&seen, whole(&input), Some(output.slot(Extent::whole(4))))];
        Staged::over(instance, Arc::new(HeapStaging), DeviceAccess::Host)
            .run(Batch { jobs: jobs.into(), meter: Arc::new(NoMeter) });
        assert_eq!(seen.lock().unwrap()[0].as_ref().unwrap_err().message, text);
        assert_eq!(numbers_of(&output), [7]);
    }
}

/// Runs in a process of its own, in which the stand-in refuses to copy from the device.
#[test]
fn a_driver_that_fails_fails_the_request_alone() {
    if std::env::var_os("STAND_IN_FAIL").is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "a_driver_that_fails_fails_the_request_alone"]);
        assert!(child.env("STAND_IN_FAIL", "cuMemcpyDtoHAsync_v2").status().unwrap().success());
        return;
    }
    let (seen, input) = (Seen::default(), on_device(&[1]));
    let jobs = vec![job(&seen, whole(&input), None), job(&seen, Buffer::from_numbers(vec![3i32]), None)];
    run(InOrder(Negate::default()), Arc::new(HeapStaging), jobs);
    let seen = seen.lock().unwrap();
    let error = &seen[0].as_ref().unwrap_err().message;
    assert!(
        error.starts_with("input 'X': cannot copy between host and device: cuMemcpyDtoHAsync_v2: out of"),
        "{error}"
    );
    assert_eq!(seen[1].as_ref().unwrap().outputs[0].data.numbers::<i32>(), Some(&[-3][..]));
}
