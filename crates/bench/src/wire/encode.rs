//! Which bytes are one request?

use nerite_client::{DataType, Request, encoded};
use prost::Message as _;
use serde_json::{Value, json};

use super::Endpoint;
use super::grpc::framed;
use crate::options::{Compression, Options, Protocol};

/// How requests of a measurement are written.
#[derive(Clone, Debug)]
pub(crate) struct Encoder {
    protocol: Protocol,
    compression: Compression,
    /// The first lines of a request over HTTP, without the lengths.
    head: String,
    is_input_json: bool,
    is_output_json: bool,
    /// The names of inputs, with what is needed to write them as JSON.
    types: Vec<(String, DataType)>,
}

impl Encoder {
    pub(crate) fn new(options: &Options, endpoint: &Endpoint, types: Vec<(String, DataType)>) -> Encoder {
        let version = if options.version.is_empty() { String::new() } else { format!("/versions/{}", options.version) };
        let mut head =
            format!("POST /v2/models/{}{version}/infer HTTP/1.1\r\nHost: {}\r\n", options.model, endpoint.authority());
        options.headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        Encoder {
            protocol: options.protocol,
            compression: options.compression,
            head,
            is_input_json: options.tensors.is_input_json,
            is_output_json: options.tensors.is_output_json,
            types,
        }
    }

    /// The headers of calls over gRPC, besides those of each.
    pub(crate) fn grpc_headers(&self, options: &Options) -> Vec<(String, String)> {
        let algorithm = match self.compression {
            Compression::None => None,
            Compression::Gzip => Some("gzip"),
            Compression::Deflate => Some("deflate"),
        };
        let encoding = algorithm.map(|name| ("grpc-encoding".to_owned(), name.to_owned()));
        encoding.into_iter().chain(options.headers.iter().cloned()).collect()
    }

    /// The bytes of this request.
    pub(crate) fn encode(&self, request: &Request) -> Result<Vec<u8>, String> {
        match self.protocol {
            Protocol::Grpc => Ok(framed(&encoded::grpc_message(request).encode_to_vec(), self.compression)),
            Protocol::Http | Protocol::Session => self.http(request),
        }
    }

    fn http(&self, request: &Request) -> Result<Vec<u8>, String> {
        let (mut text, mut tensors) = encoded::http_body(request);
        if self.is_input_json || self.is_output_json {
            let mut document: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            if self.is_input_json {
                let contents = tensors.iter().map(|tensor| &tensor[..]).collect::<Vec<_>>();
                self.inputs_in_json(&mut document, &contents)?;
                tensors.clear();
            }
            if self.is_output_json {
                for output in document["outputs"].as_array_mut().into_iter().flatten() {
                    if output["parameters"].get("binary_data").is_some() {
                        output["parameters"]["binary_data"] = json!(false);
                    }
                }
            }
            text = document.to_string();
        }
        let tensor_bytes: usize = tensors.iter().map(bytes::Bytes::len).sum();
        let kind = if tensors.is_empty() {
            "Content-Type: application/json\r\n".to_owned()
        } else {
            format!("Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {}\r\n", text.len())
        };
        let mut bytes =
            format!("{}{kind}Content-Length: {}\r\n\r\n{text}", self.head, text.len() + tensor_bytes).into_bytes();
        bytes.reserve_exact(tensor_bytes);
        for tensor in &tensors {
            bytes.extend_from_slice(tensor);
        }
        Ok(bytes)
    }

    /// Moves the inputs that follow the JSON into it.
    fn inputs_in_json(&self, document: &mut Value, tensors: &[&[u8]]) -> Result<(), String> {
        let mut tensors = tensors.iter();
        for input in document["inputs"].as_array_mut().into_iter().flatten() {
            if input["parameters"].get("binary_data_size").is_none() {
                continue;
            }
            let name = input["name"].as_str().unwrap_or_default();
            let datatype = self.types.iter().find(|(known, _)| known == name).map(|(_, datatype)| *datatype);
            let (Some(datatype), Some(bytes)) = (datatype, tensors.next()) else { continue };
            let data = elements(datatype, bytes)
                .ok_or_else(|| format!("input '{name}' of {} has no form in JSON", datatype.name()))?;
            input["data"] = Value::Array(data);
            input["parameters"] = json!({});
        }
        Ok(())
    }
}

/// The elements of a tensor. `None` for types that JSON cannot write.
fn elements(datatype: DataType, bytes: &[u8]) -> Option<Vec<Value>> {
    macro_rules! numbers {
        ($type:ty) => {
            bytes
                .chunks_exact(size_of::<$type>())
                .map(|chunk| chunk.try_into().ok().map(|bytes| json!(<$type>::from_le_bytes(bytes))))
                .collect()
        };
    }
    match datatype {
        DataType::Bool => Some(bytes.iter().map(|byte| json!(*byte != 0)).collect()),
        DataType::Uint8 => numbers!(u8),
        DataType::Uint16 => numbers!(u16),
        DataType::Uint32 => numbers!(u32),
        DataType::Uint64 => numbers!(u64),
        DataType::Int8 => numbers!(i8),
        DataType::Int16 => numbers!(i16),
        DataType::Int32 => numbers!(i32),
        DataType::Int64 => numbers!(i64),
        DataType::Fp32 => numbers!(f32),
        DataType::Fp64 => numbers!(f64),
        DataType::Fp16 | DataType::Bf16 => None,
        DataType::Bytes => {
            let (mut rest, mut texts) = (bytes, Vec::new());
            while let Some((len, after)) = rest.split_first_chunk::<4>() {
                let (text, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
                texts.push(json!(String::from_utf8_lossy(text)));
                rest = after;
            }
            Some(texts)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use nerite_client::Tensor;
    use nerite_client::grpc::proto::ModelInferRequest;

    use super::*;

    fn request() -> Request {
        Request::new("m").input(Tensor::from_slice("A", &[2], &[1i32, 2]).expect("two of two")).output("B")
    }

    fn encode(options: Options) -> Vec<u8> {
        let options = Options { model: "m".to_owned(), ..options };
        let encoder = Encoder::new(&options, &Endpoint::Unix(PathBuf::new()), vec![("A".to_owned(), DataType::Int32)]);
        encoder.encode(&request()).expect("sound")
    }

    #[test]
    fn a_request_over_http_says_where_its_tensor_begins() {
        let bytes = encode(Options { headers: vec![("a".into(), "b".into())], ..Options::default() });
        let text = String::from_utf8_lossy(&bytes);
        let (head, body) = text.split_once("\r\n\r\n").expect("head and body");
        assert!(head.starts_with("POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\na: b\r\n"), "{head}");
        let json_len = body.len() - 8;
        assert!(
            head.contains(&format!("Inference-Header-Content-Length: {json_len}\r\nContent-Length: {}", json_len + 8))
        );
        assert!(body.as_bytes()[..json_len].ends_with(b"}]}"), "{body}");
    }

    #[test]
    fn tensors_in_json_are_part_of_it() {
        let mut options = Options::default();
        (options.tensors.is_input_json, options.tensors.is_output_json) = (true, true);
        let text = String::from_utf8(encode(options)).expect("text");
        let body = text.split_once("\r\n\r\n").expect("head and body").1;
        let document: Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(document["inputs"][0]["data"], json!([1, 2]));
        assert_eq!(document["outputs"][0]["parameters"]["binary_data"], json!(false));
    }

    #[test]
    fn a_request_over_grpc_is_a_framed_message() {
        let bytes = encode(Options { protocol: Protocol::Grpc, ..Options::default() });
        let message = ModelInferRequest::decode(&bytes[5..]).expect("a message");
        assert_eq!((message.model_name.as_str(), message.raw_input_contents[0].len()), ("m", 8));
    }

    #[test]
    fn strings_are_read_by_their_lengths() {
        assert_eq!(elements(DataType::Bytes, b"\x01\0\0\0a\0\0\0\0"), Some(vec![json!("a"), json!("")]));
        assert_eq!(elements(DataType::Bytes, b"\x09\0\0\0a"), None);
    }
}
