//! How is an inference request written as JSON with binary tensors?

use bytes::Bytes;
use nerite_request::{Parameter, RegionRef};

use crate::request::{Input, Request, Wanted};

/// The body of a request whose outputs the server places in no leases.
pub(crate) fn body_of(request: &Request) -> (String, Vec<Bytes>) {
    infer(request, None)
}

/// The JSON, and the tensors that follow it in the body. Outputs that the server is to place in leases name `key` as their region.
pub(super) fn infer(request: &Request, key: Option<&str>) -> (String, Vec<Bytes>) {
    let mut json = Object::new();
    if !request.id.is_empty() {
        json.key("id").text(&request.id);
    }
    parameters(&mut json, request);
    let mut tensors = Vec::new();
    json.key("inputs").list(&request.inputs, |out, one| input(out, one, &mut tensors));
    if !request.outputs.is_empty() {
        json.key("outputs").list(&request.outputs, |out, wanted| output(out, wanted, key));
    }
    (json.close(), tensors)
}

/// The request's parameters. Without a list of outputs, all outputs are requested in binary.
fn parameters(json: &mut Object, request: &Request) {
    if request.parameters.is_empty() && !request.outputs.is_empty() {
        return;
    }
    let mut inner = Object::new();
    for (key, value) in request.parameters.iter() {
        let out = inner.key(key);
        match value {
            Parameter::Bool(value) => out.raw(&value.to_string()),
            Parameter::Int(value) => out.raw(&value.to_string()),
            Parameter::Double(value) => out.raw(&double(*value)),
            Parameter::String(value) => out.text(value),
        }
    }
    if request.outputs.is_empty() && request.parameters.get("binary_data_output").is_none() {
        inner.key("binary_data_output").raw("true");
    }
    json.key("parameters").raw(&inner.close());
}

/// A number that readers of JSON read as a floating-point number, even if it is whole.
fn double(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity".to_owned() } else { "-Infinity".to_owned() }
    } else {
        format!("{value:?}")
    }
}

fn input(out: &mut Object, input: &Input, tensors: &mut Vec<Bytes>) {
    let (name, datatype, shape) = match input {
        Input::Inline(tensor) => (&tensor.name, tensor.datatype, &tensor.shape),
        Input::Region { name, datatype, shape, .. } => (name, *datatype, shape),
    };
    out.key("name").text(name);
    out.key("shape").raw(&nerite_tensor::show_shape(shape));
    out.key("datatype").text(datatype.name());
    let mut inner = Object::new();
    match input {
        Input::Inline(tensor) => {
            inner.key("binary_data_size").raw(&tensor.data.len().to_string());
            tensors.push(tensor.data.clone());
        }
        Input::Region { window, .. } => region(&mut inner, window),
    }
    out.key("parameters").raw(&inner.close());
}

fn output(out: &mut Object, wanted: &Wanted, key: Option<&str>) {
    out.key("name").text(&wanted.name);
    let mut inner = Object::new();
    match (&wanted.window, key.filter(|_| wanted.leased)) {
        (Some(window), _) => region(&mut inner, window),
        (None, Some(key)) => inner.key("shared_memory_region").text(key),
        (None, None) => inner.key("binary_data").raw("true"),
    }
    if wanted.classes > 0 {
        inner.key("classification").raw(&wanted.classes.to_string());
    }
    out.key("parameters").raw(&inner.close());
}

fn region(out: &mut Object, window: &RegionRef) {
    out.key("shared_memory_region").text(&window.name);
    if window.offset > 0 {
        out.key("shared_memory_offset").raw(&window.offset.to_string());
    }
    out.key("shared_memory_byte_size").raw(&window.byte_size.to_string());
}

/// A JSON object that is being written.
pub(super) struct Object(String);

impl Object {
    pub(super) fn new() -> Object {
        Object("{".to_owned())
    }

    pub(super) fn key(&mut self, key: &str) -> &mut Object {
        if self.0.len() > 1 && !self.0.ends_with('{') {
            self.0.push(',');
        }
        self.text(key);
        self.0.push(':');
        self
    }

    pub(super) fn raw(&mut self, json: &str) {
        self.0.push_str(json);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.0.push('"');
        for c in text.chars() {
            match c {
                '"' => self.0.push_str("\\\""),
                '\\' => self.0.push_str("\\\\"),
                c if (c as u32) < 0x20 => self.0.extend(format!("\\u{:04x}", c as u32).chars()),
                c => self.0.push(c),
            }
        }
        self.0.push('"');
    }

    fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Object, &T)) {
        self.0.push('[');
        for (i, item) in items.iter().enumerate() {
            self.0.push_str(if i > 0 { "," } else { "" });
            let mut inner = Object::new();
            write(&mut inner, item);
            self.0.push_str(&inner.close());
        }
        self.0.push(']');
    }

    pub(super) fn close(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

#[cfg(test)]
mod tests {
    use nerite_tensor::DataType;

    use super::*;
    use crate::Tensor;

    fn ones() -> Tensor {
        Tensor::from_slice("INPUT0", &[1, 2], &[1i32, 1]).expect("two of two")
    }

    fn window(offset: u64) -> RegionRef {
        RegionRef { name: "in".into(), offset, byte_size: 8 }
    }

    #[track_caller]
    fn check(request: &Request, json: &str, tensor_bytes: usize) {
        let (text, tensors) = infer(request, Some("session-1"));
        assert_eq!(text, json);
        assert_eq!(tensors.iter().map(Bytes::len).sum::<usize>(), tensor_bytes);
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON");
    }

    #[test]
    fn inline_inputs_follow_the_json_and_all_outputs_come_back_in_binary() {
        check(
            &Request::new("simple").id("7").input(ones()),
            r#"{"id":"7","parameters":{"binary_data_output":true},"inputs":[{"name":"INPUT0","shape":[1,2],"datatype":"INT32","parameters":{"binary_data_size":8}}]}"#,
            8,
        );
    }

    #[test]
    fn an_output_in_a_region_asks_for_no_binary() {
        let request = Request::new("simple")
            .input_in_window("INPUT0", DataType::Int32, &[1, 2], window(0))
            .output_in_window("OUTPUT0", window(64))
            .output("OUTPUT1");
        check(
            &request,
            r#"{"inputs":[{"name":"INPUT0","shape":[1,2],"datatype":"INT32","parameters":{"shared_memory_region":"in","shared_memory_byte_size":8}}],"outputs":[{"name":"OUTPUT0","parameters":{"shared_memory_region":"in","shared_memory_offset":64,"shared_memory_byte_size":8}},{"name":"OUTPUT1","parameters":{"binary_data":true}}]}"#,
            0,
        );
    }

    #[test]
    fn texts_are_escaped_and_fractions_stay_fractions() {
        let request = Request::new("m")
            .parameter("a\"b", Parameter::String("\n\\".into()))
            .parameter("x", Parameter::Double(2.0))
            .classification("OUTPUT0", 3);
        check(
            &request,
            r#"{"parameters":{"a\"b":"\u000a\\","x":2.0},"inputs":[],"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true,"classification":3}}]}"#,
            0,
        );
    }
}
