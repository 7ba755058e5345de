//! Which inputs and outputs does a graph have, and which shapes do they have?

use nerite_config::{GraphSignature, ModelConfig, TensorSignature, config_data_type, proto};
use nerite_tensor::{DataType, Shape, Tensor, element_count};

/// The inputs and outputs of a graph. They are in the order of the graph until [`Ports::arrange`] is called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// The inputs without an initializer, and after [`Ports::open`] also the initializers that the configuration lists.
    pub inputs: Vec<Port>,
    /// Inputs that have an initializer. A request could replace its value.
    pub initializers: Vec<Port>,
    /// All outputs.
    pub outputs: Vec<Port>,
}

/// An input or output as the graph declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its datatype. `None` for a datatype that tensors of requests cannot have.
    pub datatype: Option<DataType>,
    /// Its dimensions with the batch dimension. Empty for a scalar. `None` if the graph does not say how many there are.
    pub dims: Option<Vec<Dim>>,
    /// The shape in which clients get a scalar. All its dimensions are 1. A scalar has no dimensions in ONNX, but a configuration must list some.
    pub scalar_shape: Shape,
}

/// One dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dim {
    /// Always this size.
    Fixed(i64),
    /// Any size, the same for all dimensions of this name.
    Named(String),
    /// Any size.
    Open,
}

impl Ports {
    /// Takes the shapes of scalar outputs from the configuration, which was checked against the graph.
    pub fn shape_scalars(&mut self, config: &ModelConfig) {
        for given in &config.output {
            let dims = given.reshape.as_ref().map_or(&given.dims, |reshape| &reshape.shape);
            let shape: Shape = config.batches().then_some(1).into_iter().chain(dims.iter().copied()).collect();
            if let Some(port) = self.outputs.iter_mut().find(|port| port.name == given.name && port.is_scalar()) {
                port.scalar_shape = shape;
            }
        }
    }

    /// The ports in the form that the checks of the configuration need.
    pub fn signature(&self) -> GraphSignature {
        let all = |ports: &[Port]| ports.iter().map(Port::signature).collect();
        GraphSignature { inputs: all(&self.inputs), initializers: all(&self.initializers), outputs: all(&self.outputs) }
    }

    /// Moves the initializers that the configuration lists to the inputs. Requests may send these inputs from then on, so no rule may rely on their
    /// values. Returns their names.
    pub fn open(&mut self, config: &ModelConfig) -> Vec<String> {
        let is_listed = |port: &Port| config.input.iter().any(|input| input.name == port.name);
        let (listed, others) = std::mem::take(&mut self.initializers).into_iter().partition(is_listed);
        self.initializers = others;
        let listed: Vec<Port> = listed;
        let names = listed.iter().map(|port| port.name.clone()).collect();
        self.inputs.extend(listed);
        names
    }

    /// Puts inputs and outputs into the order of the configuration, so that a tensor has the same index in both. Tensors that the configuration does
    /// not list, such as inputs that the server adds, come last.
    pub fn arrange(&mut self, config: &ModelConfig) {
        let place = |listed: Option<usize>| listed.unwrap_or(usize::MAX);
        self.inputs.sort_by_cached_key(|port| place(config.input.iter().position(|input| input.name == port.name)));
        self.outputs.sort_by_cached_key(|port| place(config.output.iter().position(|output| output.name == port.name)));
    }

    /// The index of the input called `name`. The search begins at `in_requests`, the index that the input has in requests.
    pub fn input_index(&self, name: &str, in_requests: usize) -> Option<usize> {
        index(&self.inputs, name, in_requests)
    }

    /// The index of the output called `name`. The search begins at `in_requests`, the index that the output has in requests.
    pub fn output_index(&self, name: &str, in_requests: usize) -> Option<usize> {
        index(&self.outputs, name, in_requests)
    }

    /// The output called `name`.
    pub fn output(&self, name: &str) -> Option<&Port> {
        self.outputs.iter().find(|port| port.name == name)
    }

    /// The shape that an output will have for these inputs, if the graph declares enough. A dimension is known if it is fixed, if an input has a
    /// dimension of the same name, or if it counts rows. The declarations may be wrong, so the caller must check the real shape.
    pub fn output_shape(&self, output: &Port, inputs: &[Tensor], batching: bool) -> Option<Shape> {
        let rows = batching.then(|| inputs.first()?.shape.first().copied()).flatten();
        let dims = output.dims.as_ref()?.iter().enumerate();
        dims.map(|(axis, dim)| match dim {
            Dim::Fixed(size) => Some(*size),
            Dim::Named(name) => self.named(name, inputs).or(rows.filter(|_| axis == 0)),
            Dim::Open => rows.filter(|_| axis == 0),
        })
        .collect()
    }

    fn named(&self, name: &str, inputs: &[Tensor]) -> Option<i64> {
        self.inputs.iter().find_map(|port| {
            let axis = port.dims.as_ref()?.iter().position(|dim| matches!(dim, Dim::Named(other) if other == name))?;
            inputs.iter().find(|input| input.name == port.name)?.shape.get(axis).copied()
        })
    }
}

fn index(ports: &[Port], name: &str, expected: usize) -> Option<usize> {
    let is_named = |at: &usize| ports.get(*at).is_some_and(|port| port.name == name);
    Some(expected).filter(is_named).or_else(|| ports.iter().position(|port| port.name == name))
}

impl Port {
    /// A port of that name. If it is a scalar, clients see the shape `[1]`.
    pub fn new(name: impl Into<String>, datatype: Option<DataType>, dims: Option<Vec<Dim>>) -> Port {
        Port { name: name.into(), datatype, dims, scalar_shape: Shape::from_slice(&[1]) }
    }

    /// The shape in which the graph takes a client's tensor. For clients, a scalar is a tensor of one element.
    pub fn graph_shape(&self, shape: &Shape) -> Shape {
        if self.is_scalar() && element_count(shape) == Ok(1) { Shape::new() } else { shape.clone() }
    }

    /// The shape in which clients get a tensor of this port.
    pub fn client_shape(&self, shape: &[i64]) -> Shape {
        if shape.is_empty() { self.scalar_shape.clone() } else { Shape::from_slice(shape) }
    }

    fn is_scalar(&self) -> bool {
        self.dims.as_ref().is_some_and(Vec::is_empty)
    }

    fn signature(&self) -> TensorSignature {
        let size = |dim: &Dim| match dim {
            Dim::Fixed(size) => *size,
            Dim::Named(_) | Dim::Open => -1,
        };
        TensorSignature {
            name: self.name.clone(),
            data_type: self.datatype.map_or(proto::DataType::TypeInvalid, config_data_type),
            dims: self.dims.iter().flatten().map(size).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use nerite_tensor::Buffer;

    use super::*;

    fn port(name: &str, dims: &[Dim]) -> Port {
        Port::new(name, Some(DataType::Fp32), Some(dims.to_vec()))
    }

    fn named(name: &str) -> Dim {
        Dim::Named(name.into())
    }

    #[track_caller]
    fn check(output: &[Dim], batching: bool, expected: Option<&[i64]>) {
        let inputs = vec![port("a", &[named("n"), Dim::Fixed(4)]), port("b", &[Dim::Open, named("k")])];
        let ports = Ports { inputs, outputs: vec![port("y", output)], ..Ports::default() };
        let tensor = |name: &str, shape: &[i64]| Tensor {
            name: name.into(),
            datatype: DataType::Fp32,
            shape: Shape::from_slice(shape),
            data: Buffer::empty(),
        };
        let inputs = [tensor("b", &[3, 7]), tensor("a", &[3, 4])];
        let shape = ports.output_shape(&ports.outputs[0], &inputs, batching);
        assert_eq!(shape.as_deref(), expected, "{output:?}");
    }

    #[test]
    fn an_output_shape_follows_from_fixed_and_named_dimensions_and_rows() {
        check(&[Dim::Fixed(2), Dim::Fixed(5)], false, Some(&[2, 5]));
        check(&[named("n"), named("k")], false, Some(&[3, 7]));
        check(&[named("n"), named("unheard_of")], false, None);
        check(&[named("unheard_of"), Dim::Fixed(9)], true, Some(&[3, 9]));
        check(&[Dim::Open, Dim::Fixed(9)], true, Some(&[3, 9]));
        check(&[Dim::Open, Dim::Fixed(9)], false, None);
        check(&[Dim::Fixed(2), Dim::Open], true, None);
        check(&[], false, Some(&[]));
    }

    #[test]
    fn one_element_stands_for_a_scalar() {
        let scalar = port("s", &[]);
        assert_eq!(scalar.graph_shape(&Shape::from_slice(&[1]))[..], [0i64; 0]);
        assert_eq!(scalar.graph_shape(&Shape::from_slice(&[2]))[..], [2]);
        assert_eq!(scalar.client_shape(&[])[..], [1]);
        assert_eq!(scalar.client_shape(&[3])[..], [3]);
    }

    #[track_caller]
    fn check_scalar(config: &str, expected: &[i64]) {
        let mut ports = Ports { outputs: vec![port("s", &[])], ..Ports::default() };
        let config = nerite_config::parse_text("config.pbtxt", config.as_bytes()).expect("a configuration");
        ports.shape_scalars(&config);
        assert_eq!(ports.outputs[0].client_shape(&[])[..], *expected);
    }

    #[test]
    fn a_scalar_output_has_the_configured_dims() {
        check_scalar("", &[1]);
        check_scalar("output { name: 's' dims: [ 1, 1 ] }", &[1, 1]);
        check_scalar("max_batch_size: 4 output { name: 's' dims: [ 1 ] }", &[1, 1]);
        check_scalar("max_batch_size: 4 output { name: 's' dims: [ 1 ] reshape { shape: [] } }", &[1]);
    }

    #[test]
    fn a_tensor_has_the_same_index_in_the_graph_and_in_the_configuration() {
        let text = "input [{ name: 'b' }, { name: 'a' }] output [{ name: 'z' }, { name: 'y' }]";
        let config = nerite_config::parse_text("config.pbtxt", text.as_bytes()).expect("a configuration");
        let all = |names: &[&str]| names.iter().map(|name| port(name, &[])).collect::<Vec<_>>();
        let mut ports = Ports { inputs: all(&["START", "a", "b"]), outputs: all(&["y", "z"]), ..Ports::default() };
        ports.arrange(&config);
        assert_eq!((&ports.inputs, &ports.outputs), (&all(&["b", "a", "START"]), &all(&["z", "y"])));
        assert_eq!((ports.input_index("a", 1), ports.input_index("START", 0)), (Some(1), Some(2)));
        assert_eq!((ports.output_index("y", 0), ports.output_index("x", 0)), (Some(1), None));
    }

    #[test]
    fn an_initializer_that_the_configuration_lists_becomes_an_input() {
        let text = "input [{ name: 'x' dims: [ 1 ] }, { name: 'w' dims: [ 1 ] optional: true }]";
        let config = nerite_config::parse_text("config.pbtxt", text.as_bytes()).expect("a configuration");
        let one = |name: &str| port(name, &[Dim::Fixed(1)]);
        let mut ports = Ports { inputs: vec![one("x")], initializers: vec![one("v"), one("w")], ..Ports::default() };
        assert_eq!(ports.open(&config), ["w"]);
        assert_eq!((ports.inputs, ports.initializers), (vec![one("x"), one("w")], vec![one("v")]));
    }
}
