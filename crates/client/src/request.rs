//! What does a caller ask of a model?

use nerite_request::{Parameter, Parameters, RegionRef};
use nerite_tensor::{DataType, Shape, byte_size};

use crate::{Error, RegisteredRegion, Tensor};

/// An inference request, built up call by call.
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
    pub(crate) parameters: Parameters,
    pub(crate) inputs: Vec<Input>,
    pub(crate) outputs: Vec<Wanted>,
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
}

impl Request {
    /// A request to the highest ready version of `model`, for all of its outputs.
    pub fn new(model: &str) -> Request {
        let (model, parameters) = (model.to_owned(), Parameters::new());
        Request { model, version: String::new(), id: String::new(), parameters, inputs: vec![], outputs: vec![] }
    }

    /// Asks one version.
    pub fn version(mut self, version: u64) -> Request {
        self.version = version.to_string();
        self
    }

    /// Names the request; the answer repeats the name.
    pub fn id(mut self, id: &str) -> Request {
        id.clone_into(&mut self.id);
        self
    }

    /// Adds a parameter, such as `priority`, `timeout`, `sequence_id`, `sequence_start`, or one the model understands.
    pub fn parameter(mut self, key: &str, value: Parameter) -> Request {
        self.parameters.insert(key, value);
        self
    }

    /// Adds an input that travels in the message.
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
            reason: "only its writer knows the size of a BYTES tensor: use input_in_window".to_owned(),
        })?;
        Ok(self.input_in_window(name, datatype, shape, window(region.name(), offset, byte_size)))
    }

    /// Adds an input that lies in a window of any region the server knows, its size given.
    pub fn input_in_window(mut self, name: &str, datatype: DataType, shape: &[i64], window: RegionRef) -> Request {
        let (name, shape) = (name.to_owned(), Shape::from_slice(shape));
        self.inputs.push(Input::Region { name, datatype, shape, window });
        self
    }

    /// Asks for an output in the answer. Without any, all outputs are sent.
    pub fn output(self, name: &str) -> Request {
        self.want(name, None, 0)
    }

    /// Asks for an output in `region`, at most `byte_size` bytes from `offset` on.
    pub fn output_in_region(self, name: &str, region: &RegisteredRegion, offset: usize, byte_size: usize) -> Request {
        self.want(name, Some(window(region.name(), offset, byte_size)), 0)
    }

    /// Asks for an output in a window of any region the server knows.
    pub fn output_in_window(self, name: &str, window: RegionRef) -> Request {
        self.want(name, Some(window), 0)
    }

    /// Asks for the `classes` best classes of an output, as `value:index:label` strings.
    pub fn classification(self, name: &str, classes: u64) -> Request {
        self.want(name, None, classes)
    }

    fn want(mut self, name: &str, window: Option<RegionRef>, classes: u64) -> Request {
        self.outputs.push(Wanted { name: name.to_owned(), window, classes });
        self
    }
}

fn window(region: &str, offset: usize, byte_size: usize) -> RegionRef {
    RegionRef { name: region.to_owned(), offset: offset as u64, byte_size: byte_size as u64 }
}
