//! What does an inference request contain?

use nerite_request::{Parameter, Parameters, RegionRef};
use nerite_tensor::{DataType, Shape, byte_size};

use crate::trace::Trace;
use crate::{Error, Lease, RegisteredRegion, Session, Tensor, TensorBuffer};

/// An inference request. Each call of a method adds a part.
///
/// ```
/// use nerite_client::{Request, Tensor};
///
/// let ones = Tensor::from_slice("INPUT0", &[1, 16], &[1i32; 16])?;
/// let twos = Tensor::from_slice("INPUT1", &[1, 16], &[2i32; 16])?;
/// let request = Request::new("simple").input(ones).input(twos).output("OUTPUT0");
/// # Ok::<(), nerite_client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Request {
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) id: String,
    /// The headers of W3C Trace Context. Empty if there are none.
    trace_parent: String,
    trace_state: String,
    pub(crate) parameters: Parameters,
    pub(crate) inputs: Vec<Input>,
    pub(crate) outputs: Vec<Wanted>,
    /// The session whose leases the server uses for leased outputs.
    pub(crate) session: Option<Session>,
    /// The leases of its inputs. The request keeps them, so that the server does not lend them for something else.
    leases: Vec<Lease>,
}

#[derive(Clone, Debug)]
pub(crate) enum Input {
    Inline(Tensor),
    Region { name: String, datatype: DataType, shape: Shape, window: RegionRef },
}

#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) window: Option<RegionRef>,
    pub(crate) classes: u64,
    /// Whether the server chooses a lease for the output.
    pub(crate) leased: bool,
}

impl Request {
    /// A request to the highest ready version of `model`, for all its outputs.
    pub fn new(model: &str) -> Request {
        let (model, parameters) = (model.to_owned(), Parameters::new());
        let (version, id, trace_parent, trace_state) = Default::default();
        let (inputs, outputs, session, leases) = Default::default();
        Request { model, version, id, trace_parent, trace_state, parameters, inputs, outputs, session, leases }
    }

    /// Requests one version of the model.
    pub fn version(mut self, version: u64) -> Request {
        self.version = version.to_string();
        self
    }

    /// Sets the id of the request. The answer has the same id.
    pub fn id(mut self, id: &str) -> Request {
        id.clone_into(&mut self.id);
        self
    }

    /// Makes the server's spans children of this one, a `traceparent` of [W3C Trace Context](https://www.w3.org/TR/trace-context/). A malformed one is not
    /// sent. Requests in a [`grpc::InferStream`](crate::grpc::InferStream) send none, and calls of a [`Prepared`](crate::Prepared) have their own.
    ///
    /// ```
    /// let span = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    /// let request = nerite_client::Request::new("simple").trace_parent(span).trace_state("vendor=1");
    /// ```
    pub fn trace_parent(mut self, text: &str) -> Request {
        text.clone_into(&mut self.trace_parent);
        self
    }

    /// Sends the `tracestate` that belongs to [`Request::trace_parent`]. A malformed one, or one of more than 512 bytes, is not sent.
    pub fn trace_state(mut self, text: &str) -> Request {
        text.clone_into(&mut self.trace_state);
        self
    }

    /// Adds a parameter, such as `priority`, `timeout`, `sequence_id`, `sequence_start`, or one that the model understands.
    pub fn parameter(mut self, key: &str, value: Parameter) -> Request {
        self.parameters.insert(key, value);
        self
    }

    /// Adds an input that is sent in the message.
    pub fn input(mut self, tensor: Tensor) -> Request {
        self.inputs.push(Input::Inline(tensor));
        self
    }

    /// Adds an input that lies in `region`, `offset` bytes from its start. Datatype and shape give its size.
    pub fn input_in_region(
        self,
        name: &str,
        datatype: DataType,
        shape: &[i64],
        region: &RegisteredRegion,
        offset: usize,
    ) -> Result<Request, Error> {
        let size = byte_size(datatype, shape).map_err(|source| Error::Shape { name: name.to_owned(), source })?;
        let byte_size = size.ok_or_else(|| Error::Strings {
            name: name.to_owned(),
            reason: "the size of a BYTES tensor does not follow from its shape: use input_in_window".to_owned(),
        })?;
        Ok(self.input_in_window(name, datatype, shape, window(region.name(), offset, byte_size)))
    }

    /// Adds an input that lies in a window of any region that is registered with the server, or of a lease.
    pub fn input_in_window(mut self, name: &str, datatype: DataType, shape: &[i64], window: RegionRef) -> Request {
        let (name, shape) = (name.to_owned(), Shape::from_slice(shape));
        self.inputs.push(Input::Region { name, datatype, shape, window });
        self
    }

    /// Adds an input that lies in a buffer. The request keeps the memory until the request is dropped.
    pub fn input_buffer(mut self, name: &str, buffer: &TensorBuffer) -> Request {
        let (datatype, shape) = (buffer.datatype(), Shape::from_slice(buffer.shape()));
        if let Some(lease) = buffer.lease() {
            self.leases.push(lease.clone());
            return self.input_in_window(name, datatype, &shape, lease.window(0, buffer.byte_size()));
        }
        self.input(Tensor { name: name.to_owned(), datatype, shape, data: buffer.bytes() })
    }

    /// Requests an output in the answer. If no output is requested, all outputs are sent.
    pub fn output(self, name: &str) -> Request {
        self.want(name, None, 0, false)
    }

    /// Requests an output of any size, which the server writes to a lease of this session that it chooses. This works over any protocol. Without a session, or
    /// if the session has no memory left, the output is sent in the answer. The last session that is given is used for all such outputs.
    ///
    /// ```no_run
    /// # async fn call(image: nerite_client::Tensor) -> Result<(), nerite_client::Error> {
    /// use nerite_client::{Request, grpc};
    ///
    /// let client = grpc::Client::new("http://localhost:8001")?;
    /// let session = client.session().await?; // None with a server on another host, or of another kind
    /// let request = Request::new("detector").input(image).output_leased("boxes", session.as_ref());
    /// println!("{:?}", client.infer(&request).await?.output("boxes")?.as_slice::<f32>()?);
    /// # Ok(()) }
    /// ```
    pub fn output_leased<'s>(mut self, name: &str, session: impl Into<Option<&'s Session>>) -> Request {
        let session = session.into().filter(|session| session.places());
        let leased = session.is_some();
        if let Some(session) = session {
            self.session = Some(session.clone());
        }
        self.want(name, None, 0, leased)
    }

    /// Requests an output in `region`, at most `byte_size` bytes from `offset` on.
    pub fn output_in_region(self, name: &str, region: &RegisteredRegion, offset: usize, byte_size: usize) -> Request {
        self.want(name, Some(window(region.name(), offset, byte_size)), 0, false)
    }

    /// Requests an output in a window of any region that is registered with the server, or of a lease.
    pub fn output_in_window(self, name: &str, window: RegionRef) -> Request {
        self.want(name, Some(window), 0, false)
    }

    /// Requests the `classes` best classes of an output, as `value:index:label` strings.
    pub fn classification(self, name: &str, classes: u64) -> Request {
        self.want(name, None, classes, false)
    }

    pub(crate) fn trace(&self) -> Option<Trace<'_>> {
        Trace::of(&self.trace_parent, &self.trace_state)
    }

    fn want(mut self, name: &str, window: Option<RegionRef>, classes: u64, leased: bool) -> Request {
        self.outputs.push(Wanted { name: name.to_owned(), window, classes, leased });
        self
    }
}

fn window(region: &str, offset: usize, byte_size: usize) -> RegionRef {
    RegionRef { name: region.into(), offset: offset as u64, byte_size: byte_size as u64 }
}
