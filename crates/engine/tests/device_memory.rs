//! Does a model get device memory if it accepts it, and host memory otherwise?
//!
//! The tests use a simulated driver, not CUDA.
#![allow(clippy::unwrap_used)]

#[path = "../../cuda/tests/stand_in/compile.rs"]
mod stand_in;
#[path = "support/test_engine.rs"]
mod test_engine;

use std::sync::{Arc, Mutex, mpsc};

use nerite_backend::{
    Compute, DeviceAccess, InOrder, Instance, InstanceSpec, Job, LoadContext, Model, OutputPlace, Runtime, Times,
};
use nerite_cuda::{DeviceMemory, Driver, PinnedPool};
use nerite_memory::{Extent, Place, Reason};
use nerite_request::{AdmittedRequest, Reply, Response, Status, Wanted};
use test_engine::{Setup, bytes_model, input};

type Seen = Arc<Mutex<Vec<(Place, OutputPlace)>>>;

/// A runtime that copies IN to OUT, and notes the places of both.
#[derive(Clone)]
struct Noting {
    name: &'static str,
    access: DeviceAccess,
    seen: Seen,
}

impl Runtime for Noting {
    fn name(&self) -> &str {
        self.name
    }

    fn engine(&self) -> String {
        "a test".into()
    }

    fn load(&self, _: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        Ok(Arc::new(self.clone()))
    }
}

impl Model for Noting {
    fn instance(&self, _: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(InOrder(self.clone())))
    }

    fn takes_device_memory(&self, _: &InstanceSpec) -> DeviceAccess {
        self.access.clone()
    }
}

impl Compute for Noting {
    fn compute(&mut self, job: &mut Job, _: &mut Times) -> Result<(), Status> {
        let input = job.inputs()[0].clone();
        self.seen.lock().unwrap().push((input.data.place(), job.output_place("OUT")));
        let mut slot = job.output_bytes("OUT", input.data.len())?;
        slot.fill_from(0, &input.data, Reason::Model).unwrap();
        job.put("OUT", input.datatype, input.shape, slot.filled());
        Ok(())
    }
}

/// Serves a model of a runtime with this device access, sends it a request with all tensors on a device, and returns what the model got.
fn infer(access: DeviceAccess) -> (Place, OutputPlace, Vec<u8>) {
    let driver = Driver::open(Some(stand_in::library())).unwrap();
    let seen = Seen::default();
    let runtime = Noting { name: "noting", access, seen: Arc::clone(&seen) };
    let mut setup = Setup::new([Arc::new(runtime) as _]).with_model(&bytes_model("noting", ""));
    setup.runtimes.stage_through(Arc::new(PinnedPool::new(&driver, 1 << 20)));
    let (engine, _folder) = setup.start();

    let memory = DeviceMemory::allocate(&driver.device(1).unwrap(), 8).unwrap();
    memory.slot(Extent::whole(4)).write(0, b"here", Reason::Model).unwrap();
    let half = |at| Extent::new(at, 4, 8).unwrap();
    let (to, from) = mpsc::channel();
    let data = memory.buffer(half(0));
    engine.admit("m", None).unwrap().submit(AdmittedRequest {
        inputs: vec![input(data)].into(),
        wanted: vec![Wanted { name: "OUT".into(), slot: Some(memory.slot(half(4))) }].into(),
        ..AdmittedRequest::new(Reply::new(move |response: Response| to.send(response).unwrap()))
    });
    let response = from.recv().unwrap();
    assert!(matches!(&response, Response::Final(made) if made.outputs[0].placed), "{response:?}");
    let mut home = nerite_memory::Slot::heap(4);
    home.fill_from(0, &memory.buffer(half(4)), Reason::Model).unwrap();
    let (place, output) = seen.lock().unwrap()[0];
    (place, output, home.filled().into_buffer().private_bytes().unwrap().to_vec())
}

#[test]
fn a_model_on_the_host_gets_the_hosts_memory() {
    let place = OutputPlace { place: Place::Host, capacity: None };
    assert_eq!(infer(DeviceAccess::Host), (Place::Pinned, place, b"here".to_vec()));
}

#[test]
fn a_model_that_takes_device_memory_gets_it_as_it_is() {
    let place = OutputPlace { place: Place::Device(1), capacity: Some(4) };
    assert_eq!(infer(DeviceAccess::Everywhere), (Place::Device(1), place, b"here".to_vec()));
}

#[test]
fn a_model_on_a_device_gets_the_memory_of_that_one_alone() {
    let on = |ordinal, align| DeviceAccess::Device { ordinal, align, host_tensors: Arc::default() };
    let there = OutputPlace { place: Place::Device(1), capacity: Some(4) };
    let home = OutputPlace { place: Place::Host, capacity: None };
    assert_eq!(infer(on(1, 1)), (Place::Device(1), there, b"here".to_vec()));
    assert_eq!(infer(on(0, 1)), (Place::Pinned, home, b"here".to_vec()));
    // The output begins in the middle of an allocation.
    assert_eq!(infer(on(1, 8)), (Place::Device(1), home, b"here".to_vec()));
}
