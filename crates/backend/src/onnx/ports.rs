//! What does a graph take and give, and in which shape?

use nerite_config::{GraphSignature, TensorSignature, config_data_type, proto};
use nerite_tensor::{DataType, Shape, Tensor, element_count};

/// The inputs and outputs of a graph, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// Without those that have a value of their own.
    pub inputs: Vec<Port>,
    /// All of them.
    pub outputs: Vec<Port>,
}

/// An input or output as the graph declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its datatype; `None` for one that no request can carry.
    pub datatype: Option<DataType>,
    /// Its dimensions, the batch's too; none for a scalar, `None` where the graph does not even tell how many.
    pub dims: Option<Vec<Dim>>,
}

/// One dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dim {
    /// Always this size.
    Fixed(i64),
    /// Any size, the same wherever this name stands.
    Named(String),
    /// Any size.
    Open,
}

impl Ports {
    /// As the configuration's checks want it.
    pub fn signature(&self) -> GraphSignature {
        let all = |ports: &[Port]| ports.iter().map(Port::signature).collect();
        GraphSignature { inputs: all(&self.inputs), outputs: all(&self.outputs) }
    }

    /// The output called `name`.
    pub fn output(&self, name: &str) -> Option<&Port> {
        self.outputs.iter().find(|port| port.name == name)
    }

    /// The shape that an output will have for these inputs, if the graph's declarations tell: fixed dimensions, named ones
    /// that an input has too, and rows. They may lie, so whoever relies on it must notice.
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

impl Port {
    /// The shape in which the graph wants a client's tensor: one element stands for a scalar.
    pub fn graph_shape(&self, shape: &Shape) -> Shape {
        let scalar = self.dims.as_ref().is_some_and(Vec::is_empty) && element_count(shape) == Ok(1);
        if scalar { Shape::new() } else { shape.clone() }
    }

    /// The shape in which clients get a graph's tensor.
    pub fn client_shape(shape: &[i64]) -> Shape {
        Shape::from_slice(if shape.is_empty() { &[1] } else { shape })
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
        Port { name: name.into(), datatype: Some(DataType::Fp32), dims: Some(dims.to_vec()) }
    }

    fn named(name: &str) -> Dim {
        Dim::Named(name.into())
    }

    #[track_caller]
    fn check(output: &[Dim], batching: bool, expected: Option<&[i64]>) {
        let inputs = vec![port("a", &[named("n"), Dim::Fixed(4)]), port("b", &[Dim::Open, named("k")])];
        let ports = Ports { inputs, outputs: vec![port("y", output)] };
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
        assert_eq!(Port::client_shape(&[])[..], [1]);
    }
}
