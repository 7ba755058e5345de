//! Which memory of a GPU does an instance take without a copy to the host?

use nerite_backend::DeviceAccess;
use nerite_config::ModelConfig;

/// The memory of this device that an instance takes as it is, if its model's parameter says so. By default, as in Triton, all inputs are on the host.
pub(crate) fn device_access(config: &ModelConfig, device: Option<u32>) -> DeviceAccess {
    let device = device.filter(|_| config.parameter(DeviceAccess::PARAMETER) == Some("no"));
    device.map_or(DeviceAccess::Host, |ordinal| DeviceAccess::on(ordinal, config))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use super::*;

    #[track_caller]
    fn check(parameter: Option<&str>, device: Option<u32>, expected: DeviceAccess) {
        let mut text = String::from(
            "input { name: 'a' data_type: TYPE_FP32 dims: 1 } input { name: 's' data_type: TYPE_STRING dims: 1 } \
             output { name: 'b' data_type: TYPE_INT8 dims: 1 } output { name: 't' data_type: TYPE_STRING dims: 1 }",
        );
        if let Some(value) = parameter {
            let key = DeviceAccess::PARAMETER;
            text += &format!(" parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}");
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
