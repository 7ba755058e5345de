//! How does a backend get another model's response?

use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::sync::{Arc, PoisonError};

use nerite_backend::ClassLabels;
use nerite_locks::Mutex;
use nerite_memory::{Buffer, Place, Reason};
use nerite_request::{InferResponse, Output, Recycled, Status};
use nerite_tensor::{DataType, Shape};

use super::{Allocated, Allocating, Counted, ErrorObject, ServerObject, Value, c_text, object};
use crate::fault::Fault;
use crate::table::Handle;

/// `TRITONSERVER_InferenceResponse`.
pub struct InferenceResponse {
    /// The model that answered.
    pub model: CString,
    /// The version of that model.
    pub version: i64,
    /// The request's id.
    pub id: CString,
    /// The error; NULL if there are outputs.
    pub error: Handle<ErrorObject>,
    /// The parameters of the response.
    pub parameters: Vec<(CString, Value)>,
    /// Its outputs.
    pub outputs: Vec<ReturnedOutput>,
    labels: Labels,
    _held: Counted,
}

/// The labels of the classes of a response's outputs.
enum Labels {
    /// The model has none.
    None,
    /// The labels of the model, and the texts that the backend got.
    Some { all: Arc<ClassLabels>, c_texts: Mutex<BTreeMap<(u32, usize), CString>> },
    /// Another process has them.
    Elsewhere,
}

object!(InferenceResponse, 20, "inference response");

/// One output, in memory that the backend gave.
pub struct ReturnedOutput {
    /// Its name.
    pub name: CString,
    /// Type of its elements.
    pub datatype: DataType,
    /// Its dimensions.
    pub shape: Shape,
    /// How many bytes it has.
    pub bytes: usize,
    /// The memory, which is released when the response is deleted.
    pub allocated: Arc<Allocated>,
}

impl InferenceResponse {
    /// The response to the request called `id` of the model called `model`, whose classes may have labels.
    pub fn new(
        server: &ServerObject,
        (model, has_labels): (&str, bool),
        id: &CString,
        content: Result<Returned, Status>,
    ) -> Result<InferenceResponse, Fault> {
        let held = server.held.add();
        let mut made = InferenceResponse {
            model: c_text(model),
            version: -1,
            id: id.clone(),
            error: Handle::NULL,
            parameters: Vec::new(),
            outputs: Vec::new(),
            labels: Labels::None,
            _held: held,
        };
        match content {
            Ok(Returned { response, outputs }) => {
                made.model = c_text(&response.model);
                made.version = response.version.parse().unwrap_or(-1);
                made.parameters =
                    response.parameters.iter().map(|(key, value)| (c_text(key), Value::from(value))).collect();
                made.outputs = outputs;
                if has_labels {
                    made.labels = Labels::of(server, model, made.version);
                }
            }
            Err(status) => made.error = Handle::to(Arc::new(ErrorObject::from(&status)))?,
        }
        Ok(made)
    }
}

impl InferenceResponse {
    /// The label of this class of an output; NULL if it has none. The text lives as long as the response.
    pub fn label(&self, index: u32, output: &ReturnedOutput, class: usize) -> Result<*const c_char, Fault> {
        let (all, c_texts) = match &self.labels {
            Labels::None => return Ok(std::ptr::null()),
            Labels::Some { all, c_texts } => (all, c_texts),
            Labels::Elsewhere => {
                return Err(Status::unsupported(
                    "TRITONSERVER_InferenceResponseOutputClassificationLabel is not supported in a process of its own, which does not have the \
                     labels of other models; a backend in the server's own process has them ('isolated' is 'false')",
                )
                .into());
            }
        };
        let labels = output.name.to_str().ok().and_then(|name| all.get(name));
        let Some(label) = labels.and_then(|labels| labels.get(class)).filter(|label| !label.is_empty()) else {
            return Ok(std::ptr::null());
        };
        let mut c_texts = c_texts.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(c_texts.entry((index, class)).or_insert_with(|| c_text(label)).as_ptr())
    }
}

impl Labels {
    /// The labels of the version that answered.
    fn of(server: &ServerObject, model: &str, version: i64) -> Labels {
        let models = server.models("TRITONSERVER_InferenceResponseOutputClassificationLabel");
        let all = models.ok().and_then(|models| models.labels(model, Some(version)));
        all.map_or(Labels::Elsewhere, |all| Labels::Some { all, c_texts: Mutex::default() })
    }
}

impl Drop for InferenceResponse {
    fn drop(&mut self) {
        if !self.error.is_null() {
            // It is missing only if the backend deleted an object that is not its own.
            drop(self.error.take());
        }
    }
}

/// A response whose outputs lie in memory that the backend allocated.
pub struct Returned {
    response: Recycled<InferResponse>,
    outputs: Vec<ReturnedOutput>,
}

/// The memory that was allocated for the next response of one request so far.
pub struct OutputAllocations {
    allocating: Allocating,
    has_started: bool,
    made: Vec<Arc<Allocated>>,
}

impl OutputAllocations {
    /// No memory was allocated yet.
    pub fn new(allocating: Allocating) -> OutputAllocations {
        OutputAllocations { allocating, has_started: false, made: Vec::new() }
    }

    /// The allocator that allocates it.
    pub fn allocating(&self) -> &Allocating {
        &self.allocating
    }

    /// Announces a response, with outputs or without.
    pub fn start(&mut self) -> Result<(), Status> {
        if std::mem::replace(&mut self.has_started, true) { Ok(()) } else { self.allocating.start() }
    }

    /// Allocates memory for an output of the next response.
    pub fn place(&mut self, output: &str, bytes: usize, preferred: Place) -> Result<Arc<Allocated>, Status> {
        self.start()?;
        let allocated = self.allocating.allocate(output, bytes, preferred)?;
        self.made.push(Arc::clone(&allocated));
        Ok(allocated)
    }

    /// Copies outputs to the backend's memory, unless the model wrote them there.
    pub fn fill(&mut self, mut response: Recycled<InferResponse>) -> Result<Returned, Status> {
        let outputs = std::mem::take(&mut response.outputs);
        let outputs = outputs.into_iter().map(|output| self.fill_one(output)).collect::<Result<_, _>>()?;
        Ok(Returned { response, outputs })
    }

    /// Begins the next response. Memory that the model requested and did not use is released.
    pub fn next(&mut self) {
        (self.has_started, self.made) = (false, Vec::new());
    }

    fn fill_one(&mut self, output: Output) -> Result<ReturnedOutput, Status> {
        let Output { name, datatype, shape, data, .. } = output;
        let bytes = data.len();
        let is_there = |one: &Arc<Allocated>| bytes > 0 && one.memory.base.0.cast_const().cast::<u8>() == data.as_ptr();
        let allocated = match self.made.iter().position(is_there) {
            Some(at) => self.made.swap_remove(at),
            None => self.copy(&name, &data)?,
        };
        Ok(ReturnedOutput { name: c_text(&name), datatype, shape, bytes, allocated })
    }

    fn copy(&mut self, name: &str, data: &Buffer) -> Result<Arc<Allocated>, Status> {
        let allocated = self.place(name, data.len(), Place::Host)?;
        self.made.pop();
        if let Some(mut slot) = allocated.slot() {
            let copied = slot.fill_from(0, data, Reason::OutputPlacement);
            copied.map_err(|error| Status::internal(format!("output '{name}': {error}")))?;
        }
        Ok(allocated)
    }
}
