//! How does one session run a batch?

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nerite_backend::onnx::{Nodes, Ports, UntrustedInputs, snapshot};
use nerite_backend::{Execute, StopGuard, Times, Work};
use nerite_memory::{Buffer, Place, Reason, Slot, run_bytes_max, run_with_memory};
use nerite_request::{Code, Status, Wanted};
use nerite_tensor::{DataType, Shape, Tensor, byte_size, element_count};
use ort::session::{NoSelectedOutputs, RunOptions};
use ort::{AsPointer, sys};

use crate::fence::Fence;
use crate::fragile::Fragile;
use crate::options::Options;
use crate::session_share::SessionShare;
use crate::status::library_status;
use crate::strings::{self, StringsFault};
use crate::traps::no_such_number;
use crate::value::{Memory, Value, done};

/// The properties of a model's graph that its instances need, beside its ports.
pub struct Traits {
    outputs: Vec<Output>,
    pub untrusted_inputs: UntrustedInputs,
    pub fragile: Fragile,
}

struct Output {
    name: CString,
    /// Whether the declared shape has always been right. Cleared permanently once it was wrong.
    bindable: AtomicBool,
}

impl Traits {
    /// The properties of a graph with these ports and nodes.
    pub fn new(ports: &Ports, nodes: &Nodes, fragile: Fragile) -> Result<Arc<Traits>, Status> {
        let outputs = ports.outputs.iter().map(|port| {
            // No operator writes an output that is an input too.
            let passes_through = ports.inputs.iter().any(|input| input.name == port.name);
            Ok(Output { name: c_name(&port.name)?, bindable: AtomicBool::new(!passes_through) })
        });
        Ok(Arc::new(Traits {
            outputs: outputs.collect::<Result<_, Status>>()?,
            untrusted_inputs: UntrustedInputs::of(&nodes.graph),
            fragile,
        }))
    }
}

/// Runs a session, one run at a time. Other instances may run the same session.
pub struct OrtInstance {
    share: SessionShare,
    ports: Arc<Ports>,
    traits: Arc<Traits>,
    inputs: Vec<CString>,
    batching: bool,
    memory: Memory,
    /// The fence for runs whose tensors are not all on the host.
    fence: Option<Fence>,
    /// Whether it waits for the device even if all tensors are on the host.
    fenced: bool,
    run_options: Arc<RunOptions<NoSelectedOutputs>>,
    /// The bytes that a run may use.
    bytes_max: usize,
}

/// An output that a run has to make: its index in the requests, and in the graph.
#[derive(Clone, Copy)]
struct WantedPort {
    output: usize,
    port: usize,
}

/// The memory that an output is computed into: the graph's output of this index, in this shape.
struct Bound {
    slot: Slot,
    shape: Shape,
    datatype: DataType,
}

/// Why a run has no outputs.
enum RunFault {
    /// The library's error.
    Library(ort::Error),
    /// An error that is not the library's. Another kind of run would not help.
    Request(Status),
}

impl RunFault {
    fn status(self) -> Status {
        match self {
            RunFault::Library(error) => library_status(&error),
            RunFault::Request(status) => status,
        }
    }
}

impl From<ort::Error> for RunFault {
    fn from(error: ort::Error) -> RunFault {
        RunFault::Library(error)
    }
}

/// Where an instance computes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The device; `None` for the host.
    pub device: Option<u32>,
    /// Whether it waits for its device after every run, even on the host.
    pub fenced: bool,
}

impl OrtInstance {
    /// An instance on a session that was made for the device of `target`.
    pub fn new(
        share: SessionShare,
        options: &Options,
        ports: &Arc<Ports>,
        traits: &Arc<Traits>,
        batching: bool,
        target: Target,
    ) -> Result<OrtInstance, Status> {
        let failed = |e: ort::Error| library_status(&e);
        let fence = (target.fenced || target.device.is_some()).then(|| Fence::new(share.session()));
        let mut run_options = RunOptions::new().map_err(failed)?;
        if let Some(devices) = &options.arena_shrinkage {
            run_options.set("memory.enable_memory_arena_shrinkage", devices).map_err(failed)?;
        }
        Ok(OrtInstance {
            share,
            ports: Arc::clone(ports),
            traits: Arc::clone(traits),
            inputs: ports.inputs.iter().map(|port| c_name(&port.name)).collect::<Result<_, _>>()?,
            batching,
            memory: Memory::new(target.device).map_err(failed)?,
            fence: fence.transpose().map_err(failed)?,
            fenced: target.fenced,
            run_options: Arc::new(run_options),
            bytes_max: run_bytes_max(),
        })
    }

    /// Ends the run at its next operator if the clients of all its requests go away.
    fn stopping(&self, work: &Work<'_>) -> StopGuard {
        let options = Arc::clone(&self.run_options);
        work.stopping(move || {
            if let Err(error) = options.terminate() {
                log::warn!("a run whose client has gone goes on: {error}");
            }
        })
    }

    /// Clears the flag that ends runs, so that these options can be used again.
    fn go_on(&self) -> Result<(), Status> {
        let options = self.run_options.ptr().cast_mut();
        // SAFETY: the options are alive; no run uses them, because `execute` has `&mut self`, and its guard is gone, so nobody sets the flag.
        done(unsafe { (ort::api().RunOptionsUnsetTerminate)(options) }).map_err(|error| library_status(&error))
    }

    /// The outputs that the work wants.
    fn wanted(&self, work: &Work<'_>) -> Result<Vec<WantedPort>, Status> {
        let port = |(output, Wanted { name, .. }): (usize, &Wanted)| {
            let port = self.ports.output_index(name, output);
            let port = port.ok_or_else(|| Status::invalid(format!("the model has no output '{name}'")))?;
            Ok(WantedPort { output, port })
        };
        work.wanted().indexed().map(port).collect()
    }

    /// Memory for an output whose size is known in advance.
    fn bind(&self, work: &mut Work<'_>, wanted: WantedPort) -> Result<Option<Bound>, Status> {
        let (port, output) = (&self.ports.outputs[wanted.port], &self.traits.outputs[wanted.port]);
        let Some(datatype) = port.datatype.filter(|d| *d != DataType::Bytes) else { return Ok(None) };
        if !output.bindable.load(Ordering::Relaxed) || self.traits.untrusted_inputs.contains(&port.name) {
            return Ok(None);
        }
        let Some(shape) = self.ports.output_shape(port, work.inputs(), self.batching) else { return Ok(None) };
        let slot = work.slot_on(self.memory.device(), wanted.output, datatype, &shape)?;
        Ok(slot.map(|slot| Bound { slot, shape, datatype }))
    }

    /// The inputs, aligned, in the order of the request, each with the graph's index and the shape that the graph
    /// takes.
    fn feeds(&self, work: &Work<'_>) -> Result<Vec<Feed>, Status> {
        let feed = |(at, tensor): (usize, &Tensor)| {
            let index = self.ports.input_index(&tensor.name, work.index_of(at));
            let index = index.ok_or_else(|| Status::invalid(format!("the model has no input '{}'", tensor.name)))?;
            self.traits.fragile.check(tensor)?;
            let shape = self.ports.inputs[index].graph_shape(&tensor.shape);
            let data = match tensor.data.place() {
                // Memory on a device cannot change here: see `cuda::device_access`.
                Place::Device(at) if Some(at) == self.memory.device() => tensor.data.clone(),
                _ => snapshot(tensor, &self.traits.untrusted_inputs)?,
            };
            Ok(Feed { index, tensor: Tensor { data, shape, ..tensor.clone() } })
        };
        work.inputs().iter().enumerate().map(feed).collect()
    }

    /// Runs the graph. Outputs with memory are written there. The library allocates the others, and they are returned.
    fn run(
        &mut self,
        feeds: &[Value<'_>],
        indices: &[usize],
        wanted: &[WantedPort],
        bound: &mut [Option<Bound>],
    ) -> Result<Vec<Option<Value<'static>>>, RunFault> {
        let memory = &self.memory;
        let places = bound.iter_mut().map(|bound| bound.as_mut().map(|bound| bound.value(memory)).transpose());
        let places: Vec<Option<Value<'_>>> = places.collect::<Result<_, ort::Error>>()?;
        let options = self.run_options.ptr();
        let input_names: Vec<_> = indices.iter().map(|index| self.inputs[*index].as_ptr()).collect();
        let inputs: Vec<*const sys::OrtValue> = feeds.iter().map(|value| value.as_ptr().cast_const()).collect();
        let output_names: Vec<_> = wanted.iter().map(|wanted| self.traits.outputs[wanted.port].name.as_ptr()).collect();
        let mut outputs: Vec<*mut sys::OrtValue> =
            places.iter().map(|place| place.as_ref().map_or(std::ptr::null_mut(), Value::as_ptr)).collect();
        let run = ort::api().Run;
        let session = self.share.session_ptr();
        let traps = self.share.traps();
        let before = traps.count();
        // SAFETY: the session and the options are alive. The library documents that several threads may run a session at a time; `&mut self` makes
        // this the only run with these options. Names and values are arrays of the lengths given, alive until the end of this function; a null
        // output is the library's to make, any other is a tensor over memory that `places` borrows.
        let call = || unsafe {
            run(
                session,
                options,
                input_names.as_ptr(),
                inputs.as_ptr(),
                inputs.len(),
                output_names.as_ptr(),
                output_names.len(),
                outputs.as_mut_ptr(),
            )
        };
        let (status, refused) = traps.counting(|| run_with_memory(self.bytes_max, call)).map_err(RunFault::Request)?;
        let mut made = done(status).and_then(|()| {
            let made = outputs.into_iter().zip(&places).map(|(output, place)| match place {
                None => Value::from_made(output).map(Some),
                Some(_) => Ok(None),
            });
            made.collect()
        });
        let away = feeds.iter().chain(places.iter().flatten()).any(Value::is_on_device);
        if let Some(fence) = self.fence.as_mut().filter(|_| away || self.fenced) {
            let names = wanted.iter().map(|wanted| self.traits.outputs[wanted.port].name.as_c_str());
            let placed = names.zip(&places).filter_map(|(name, place)| Some((name, place.as_ref()?)));
            // This waits after a failed run too, parts of which may still access the client's memory.
            let waited = fence.wait(placed);
            made = made.and_then(|made| waited.map(|()| made));
        }
        if traps.count() != before {
            return Err(RunFault::Request(no_such_number()));
        }
        // The library may do without an allocation that was refused, and then the run has outputs.
        made.map_err(|error| {
            refused.map_or(RunFault::Library(error), |refused| RunFault::Request(Status::no_memory_to_compute(refused)))
        })
    }

    /// Passes the outputs of a run to `work`.
    fn put(
        &self,
        work: &mut Work<'_>,
        wanted: &[WantedPort],
        bound: Vec<Option<Bound>>,
        made: Vec<Option<Value<'static>>>,
        feeds: &[Feed],
    ) -> Result<(), Status> {
        for ((wanted, bound), made) in wanted.iter().zip(bound).zip(made) {
            let port = &self.ports.outputs[wanted.port];
            match (bound, made) {
                (Some(Bound { slot, shape, datatype }), _) => {
                    work.put_slot(wanted.output, datatype, &port.client_shape(&shape), slot)?;
                }
                (None, Some(made)) => self.put_made(work, *wanted, made, feeds)?,
                (None, None) => return Err(Status::internal(format!("output '{}' was not made", port.name))),
            }
        }
        Ok(())
    }

    fn put_made(
        &self,
        work: &mut Work<'_>,
        wanted: WantedPort,
        made: Value<'static>,
        feeds: &[Feed],
    ) -> Result<(), Status> {
        let port = &self.ports.outputs[wanted.port];
        let failed = |e: ort::Error| library_status(&e);
        let (datatype, shape) = made.describe().map_err(failed)?;
        let datatype = datatype.ok_or_else(|| {
            Status::internal(format!("output '{}' has a datatype that no response can carry", port.name))
        })?;
        if port.datatype != Some(datatype) {
            return Err(Status::internal(format!("output '{}' came as {datatype}, which is not declared", port.name)));
        }
        let no_memory = |refused| Status::no_memory(format_args!("output '{}'", port.name), refused);
        let of_shape = |e: nerite_tensor::ShapeError| Status::internal(format!("output '{}': {e}", port.name));
        let client = port.client_shape(&shape);
        if let Some(size) = byte_size(datatype, &shape).map_err(of_shape)? {
            let data = made.into_buffer(size, self.share.session().inner()).map_err(failed)?;
            // An input that is also an output is still the request's memory, which `data` does not keep alive.
            let borrowed = feeds.iter().any(|feed| overlap(&data, &feed.tensor.data));
            let data = if borrowed { data.try_private(Reason::OutputPlacement).map_err(no_memory)? } else { data };
            work.put_buffer(wanted.output, datatype, &client, data);
            return Ok(());
        }
        let count = element_count(&shape).map_err(of_shape)? as usize;
        let (bytes, starts) = strings::from_value(&made, count).map_err(|fault| match fault {
            StringsFault::Client(text) => Status::internal(text),
            StringsFault::Library(error) => library_status(&error),
            StringsFault::NoMemory(refused) => no_memory(refused),
        })?;
        let bytes = bytes.private_bytes().expect("a heap slot is this process's own");
        work.put_strings(wanted.output, &client, strings::elements(bytes, &starts))
    }

    /// Notes which declared shapes were wrong in this run.
    fn learn(&self, wanted: &[WantedPort], expected: &[Option<Shape>], made: &[Option<Value<'static>>]) {
        for ((wanted, expected), made) in wanted.iter().zip(expected).zip(made) {
            let actual = made.as_ref().and_then(|made| made.describe().ok()).map(|(_, shape)| shape);
            if expected.is_some() && actual != *expected {
                self.traits.outputs[wanted.port].bindable.store(false, Ordering::Relaxed);
            }
        }
    }
}

impl Execute for OrtInstance {
    fn execute(&mut self, work: &mut Work<'_>, times: &mut Times) -> Result<(), Status> {
        let wanted = self.wanted(work)?;
        let feeds = self.feeds(work)?;
        let indices: Vec<usize> = feeds.iter().map(|feed| feed.index).collect();
        let values = feeds.iter().map(|feed| feed.value(&self.memory)).collect::<Result<Vec<_>, _>>()?;
        let bound = wanted.iter().map(|wanted| self.bind(work, *wanted));
        let mut bound = bound.collect::<Result<Vec<_>, _>>()?;
        times.mark_input_end();
        let stopping = self.stopping(work);
        let mut result = self.run(&values, &indices, &wanted, &mut bound);
        let may_run_again = !stopping.is_stopped() && bound.iter().any(Option::is_some);
        if may_run_again && matches!(result, Err(RunFault::Library(_))) {
            // The reason may only be a wrong declared shape. Then the run is repeated, and the library allocates the
            // outputs.
            let expected: Vec<_> = bound.iter().map(|b| b.as_ref().map(|b| b.shape.clone())).collect();
            for (wanted, bound) in wanted.iter().zip(&mut bound) {
                if let Some(Bound { slot, .. }) = bound.take() {
                    work.give_back(wanted.output, slot);
                }
            }
            result = self.run(&values, &indices, &wanted, &mut bound);
            if let Ok(made) = &result {
                self.learn(&wanted, &expected, made);
            }
        }
        // Its clients may go until the watch ends, which sets the flag. It is then cleared, because otherwise no later run would begin.
        if stopping.end() {
            self.go_on()?;
            return Err(Status::new(Code::Cancelled, "every client of this run has gone; it was stopped"));
        }
        times.mark_infer_end();
        let made = result.map_err(RunFault::status)?;
        drop(values);
        self.put(work, &wanted, bound, made, &feeds)
    }
}

/// An input that is about to be passed to the graph.
struct Feed {
    index: usize,
    tensor: Tensor,
}

impl Feed {
    fn value(&self, memory: &Memory) -> Result<Value<'_>, Status> {
        let Tensor { data, datatype, shape, .. } = &self.tensor;
        if *datatype != DataType::Bytes {
            return Value::over(memory, data, *datatype, shape).map_err(|e| library_status(&e));
        }
        strings::to_value(&self.tensor, shape).map_err(|fault| match fault {
            StringsFault::Client(text) => Status::invalid(text),
            StringsFault::Library(error) => library_status(&error),
            StringsFault::NoMemory(refused) => {
                Status::no_memory(format_args!("the strings of input '{}'", self.tensor.name), refused)
            }
        })
    }
}

impl Bound {
    fn value(&mut self, memory: &Memory) -> Result<Value<'_>, ort::Error> {
        let size = byte_size(self.datatype, &self.shape).ok().flatten().unwrap_or_default();
        Value::into_slot(memory, &mut self.slot, size, self.datatype, &self.shape)
    }
}

fn overlap(a: &Buffer, b: &Buffer) -> bool {
    let (at, other) = (a.as_ptr().addr(), b.as_ptr().addr());
    at < other + b.len() && other < at + a.len()
}

fn c_name(name: &str) -> Result<CString, Status> {
    CString::new(name).map_err(|_| Status::internal(format!("the name {name:?} has a zero in it")))
}
