//! Which memory of a GPU does an instance take as it is?

use std::sync::Arc;

use nerite_backend::DeviceAccess;
use nerite_config::ModelConfig;
use nerite_config::proto::DataType;

/// Addresses of tensors that a process gets must be multiples of this, as those of the CUDA runtime are. A client chooses the offset of its tensor,
/// and a kernel that reads numbers at another address makes the whole context unusable, for the requests of other clients too.
const ALIGN: usize = 256;
/// The model's parameter. By default, as in Triton, all inputs are on the host.
pub(crate) const PARAMETER: &str = "FORCE_CPU_ONLY_INPUT_TENSORS";

/// The memory of an instance on this device, if the model's author wants tensors where they are. Strings are on the host in any case.
pub(crate) fn device_access(config: &ModelConfig, device: Option<u32>) -> DeviceAccess {
    let Some(ordinal) = device.filter(|_| config.parameter(PARAMETER) == Some("no")) else { return DeviceAccess::Host };
    let inputs = config.input.iter().map(|input| (&input.name, input.data_type()));
    let outputs = config.output.iter().map(|output| (&output.name, output.data_type()));
    let strings = inputs.chain(outputs).filter(|(_, datatype)| *datatype == DataType::TypeString);
    let host_tensors: Arc<[String]> = strings.map(|(name, _)| name.clone()).collect();
    DeviceAccess::Device { ordinal, align: ALIGN, host_tensors }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[track_caller]
    fn check(parameter: Option<&str>, device: Option<u32>, expected: DeviceAccess) {
        let mut text = String::from(
            "input { name: 'a' data_type: TYPE_FP32 dims: 1 } input { name: 's' data_type: TYPE_STRING dims: 1 } \
             output { name: 'b' data_type: TYPE_INT8 dims: 1 } output { name: 't' data_type: TYPE_STRING dims: 1 }",
        );
        if let Some(value) = parameter {
            text += &format!(" parameters {{ key: '{PARAMETER}' value {{ string_value: '{value}' }} }}");
        }
        let config = nerite_config::parse_text("m/config.pbtxt", text.as_bytes()).unwrap();
        assert_eq!(device_access(&config, device), expected, "{parameter:?} {device:?}");
    }

    #[test]
    fn tensors_stay_on_the_gpu_where_the_author_wants_it() {
        for (parameter, device) in [(None, Some(1)), (Some("yes"), Some(1)), (Some("no"), None), (None, None)] {
            check(parameter, device, DeviceAccess::Host);
        }
        let host_tensors = Arc::new(["s".to_owned(), "t".to_owned()]);
        check(Some("no"), Some(1), DeviceAccess::Device { ordinal: 1, align: 256, host_tensors });
    }
}
