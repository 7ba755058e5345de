//! Does a model get device memory if it accepts it, and host memory otherwise?
//!
//! The tests use a simulated driver, not CUDA.
#![allow(clippy::unwrap_used)]

#[path = "../../cuda/tests/stand_in/compile.rs"]
mod stand_in;

use std::sync::{Arc, Mutex, mpsc};

use nerite_backend::{
    Compute, DeviceAccess, InOrder, Instance, InstanceSpec, Job, LoadContext, Model, OutputPlace, Runtime, Times,
};
use nerite_config::HostFacts;
use nerite_cuda::{DeviceMemory, Driver, PinnedPool};
use nerite_engine::{Engine, Loader, Options, QueueLimits, Runtimes};
use nerite_memory::{Extent, Place, Reason};
use nerite_repository::{ControlMode, Store, StoreOptions};
use nerite_request::{AdmittedRequest, Cancel, Parameters, Reply, Response, Sequence, Status, Wanted};
use nerite_tensor::{DataType, Shape, Tensor};

type Seen = Arc<Mutex<Vec<(Place, OutputPlace)>>>;

/// A runtime that copies IN to OUT, and notes the places of both.
#[derive(Clone)]
struct Noting {
    name: &'static str,
    reach: DeviceAccess,
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
        self.reach.clone()
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
fn ask(reach: DeviceAccess) -> (Place, OutputPlace, Vec<u8>) {
    let models = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(models.path().join("m/1")).unwrap();
    let config = "backend: \"noting\" input [{ name: \"IN\" data_type: TYPE_UINT8 dims: [-1] }] \
                  output [{ name: \"OUT\" data_type: TYPE_UINT8 dims: [-1] }]";
    std::fs::write(models.path().join("m/config.pbtxt"), config).unwrap();
    let driver = Driver::open(Some(stand_in::library())).unwrap();
    let seen = Seen::default();
    let mut runtimes = Runtimes::default();
    runtimes.add(Arc::new(Noting { name: "noting", reach, seen: Arc::clone(&seen) }));
    runtimes.stage_through(Arc::new(PinnedPool::new(&driver, 1 << 20)));
    let repositories = vec![models.path().to_owned()];
    let store = Store::open(StoreOptions { repositories, ..StoreOptions::default() }).unwrap();
    let loader = Loader {
        runtimes,
        host: HostFacts::cpu_only(),
        cores: 1,
        auto_complete: false,
        queues: QueueLimits::default(),
        services: nerite_engine::Services::default(),
        threads: 2,
    };
    let control = ControlMode::None;
    let engine = Engine::new(
        store,
        loader,
        Options { control, load_models: Vec::new(), load_threads: 1, load_retries: 0, models_bytes_max: None },
    );
    assert_eq!(engine.start().unwrap(), Vec::<String>::new());

    let memory = DeviceMemory::allocate(&driver.device(1).unwrap(), 8).unwrap();
    memory.slot(Extent::whole(4)).write(0, b"here", Reason::Model).unwrap();
    let half = |at| Extent::new(at, 4, 8).unwrap();
    let (to, from) = mpsc::channel();
    let data = memory.buffer(half(0));
    engine.admit("m", None).unwrap().submit(AdmittedRequest {
        id: String::new().into(),
        rows: 1,
        inputs: vec![Tensor { name: "IN".into(), datatype: DataType::Uint8, shape: Shape::from_slice(&[4]), data }]
            .into(),
        wanted: vec![Wanted { name: "OUT".into(), slot: Some(memory.slot(half(4))) }].into(),
        priority: 0,
        timeout_us: 0,
        sequence: Sequence::default(),
        parameters: Parameters::new(),
        cancel: Cancel::new(),
        reply: Reply::new(move |response: Response| to.send(response).unwrap()),
    });
    let response = from.recv().unwrap();
    assert!(matches!(&response, Response::Final(made) if made.outputs[0].placed), "{response:?}");
    let mut home = nerite_memory::Slot::heap(4);
    home.fill_from(0, &memory.buffer(half(4)), Reason::Model).unwrap();
    let (input, output) = seen.lock().unwrap()[0];
    (input, output, home.filled().into_buffer().private_bytes().unwrap().to_vec())
}

#[test]
fn a_model_on_the_host_gets_the_hosts_memory() {
    let place = OutputPlace { place: Place::Host, capacity: None };
    assert_eq!(ask(DeviceAccess::Host), (Place::Pinned, place, b"here".to_vec()));
}

#[test]
fn a_model_that_takes_device_memory_gets_it_as_it_is() {
    let place = OutputPlace { place: Place::Device(1), capacity: Some(4) };
    assert_eq!(ask(DeviceAccess::Everywhere), (Place::Device(1), place, b"here".to_vec()));
}

#[test]
fn a_model_on_a_device_gets_the_memory_of_that_one_alone() {
    let on = |ordinal, align| DeviceAccess::Device { ordinal, align, at_home: Arc::default() };
    let there = OutputPlace { place: Place::Device(1), capacity: Some(4) };
    let home = OutputPlace { place: Place::Host, capacity: None };
    assert_eq!(ask(on(1, 1)), (Place::Device(1), there, b"here".to_vec()));
    assert_eq!(ask(on(0, 1)), (Place::Pinned, home, b"here".to_vec()));
    // The output begins in the middle of an allocation.
    assert_eq!(ask(on(1, 8)), (Place::Device(1), home, b"here".to_vec()));
}
