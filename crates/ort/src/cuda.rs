//! Which options does ONNX Runtime's CUDA provider get, and what is the error if the provider is missing?
//!
//! The decisions are here, the calls in `provider`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use nerite_backend::onnx::{Ports, UntrustedInputs, parameter_or_setting};
use nerite_backend::{DeviceAccess, LoadContext};
use nerite_config::proto::model_optimization_policy::execution_accelerators::Accelerator;
use nerite_request::Status;
use nerite_tensor::DataType;

/// Addresses of tensors on a device must be multiples of this, like those that the library itself allocates there.
/// Some kernels read several numbers at once, and a kernel that is given another address makes the whole context
/// unusable.
const ALIGN: usize = 256;

/// Options that a model's author must not set. With them the provider would use resources of others, or would keep addresses between runs, although
/// they differ in each run.
const REFUSED: [&str; 6] = [
    "enable_cuda_graph",
    "gpu_external_alloc",
    "gpu_external_empty_cache",
    "gpu_external_free",
    "has_user_compute_stream",
    "user_compute_stream",
];

/// The provider's options, by its own names; without the device, which differs from instance to instance.
pub type CudaOptions = BTreeMap<String, String>;

/// The author's options for the provider: parameters of the accelerator `cuda`, or four parameters of the model as in older versions of Triton, which
/// take precedence.
pub fn options(context: &LoadContext) -> Result<CudaOptions, Status> {
    let accelerators = context.config.optimization.as_ref().and_then(|o| o.execution_accelerators.as_ref());
    let mut options = CudaOptions::new();
    for accelerator in accelerators.iter().flat_map(|a| &a.gpu_execution_accelerator) {
        take_accelerator(context, accelerator, &mut options)?;
    }
    let chosen = |key: &str, words: &[&str]| choice(context, key, words);
    let search = chosen("cudnn_conv_algo_search", &["EXHAUSTIVE", "HEURISTIC", "DEFAULT"])?;
    let extend = chosen("arena_extend_strategy", &["kNextPowerOfTwo", "kSameAsRequested"])?;
    let plain = |key: &str| parameter_or_setting(context, key).map(str::to_owned);
    let older = [
        ("cudnn_conv_algo_search", search),
        ("arena_extend_strategy", extend),
        ("gpu_mem_limit", plain("gpu_mem_limit")),
        ("do_copy_in_default_stream", plain("do_copy_in_default_stream")),
    ];
    options.extend(older.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    for (key, value) in &options {
        check_option(context, key, value)?;
    }
    // Each instance has its own device.
    options.remove("device_id");
    Ok(options)
}

fn take_accelerator(context: &LoadContext, accelerator: &Accelerator, to: &mut CudaOptions) -> Result<(), Status> {
    if accelerator.name != "cuda" {
        return Err(Status::invalid(format!(
            "unknown Execution Accelerator '{}' is requested by model '{}'; this server has 'cuda'",
            accelerator.name, context.model
        )));
    }
    to.extend(accelerator.parameters.iter().map(|(key, value)| (key.clone(), value.clone())));
    Ok(())
}

fn check_option(context: &LoadContext, key: &str, value: &str) -> Result<(), Status> {
    if REFUSED.contains(&key) && !matches!(value, "0" | "false" | "False") {
        let text = format!("model '{}' sets the option '{key}' of the CUDA provider, which this server", context.model);
        return Err(Status::unsupported(format!("{text} does not offer; remove it")));
    }
    if key.contains('\0') || value.contains('\0') {
        return Err(Status::invalid(format!("the option {key:?} of model '{}' has a zero in it", context.model)));
    }
    Ok(())
}

/// The word at the position in `words` that a parameter names.
fn choice(context: &LoadContext, key: &str, words: &[&str]) -> Result<Option<String>, Status> {
    let Some(text) = parameter_or_setting(context, key) else { return Ok(None) };
    let word = text.parse().ok().and_then(|at: usize| words.get(at));
    word.map(|word| Some((*word).to_owned())).ok_or_else(|| {
        let all: Vec<_> = words.iter().enumerate().map(|(at, word)| format!("{at} ({word})")).collect();
        let (model, all) = (&context.model, all.join(", "));
        Status::invalid(format!("unsupported {key} value '{text}' is requested by model '{model}'; there are {all}"))
    })
}

/// The error text for a library without the provider.
pub fn missing(library: &Path) -> String {
    format!(
        "ONNX Runtime at '{}' has no CUDA provider: install the one that has (pip install onnxruntime-gpu) or name its \
         library with --onnxruntime-library",
        library.display()
    )
}

/// Which part of making a session on a device failed, with the library's error text.
pub enum Failure {
    /// The provider did not start, or refused its options.
    Provider(String),
    /// The provider started, but no session could be made of the graph on this device.
    Session(String),
}

impl Failure {
    /// The error for the client that loads the model.
    pub fn status(&self, model: &str, device: u32) -> Status {
        let begin = format!("unable to load model '{model}' on device {device}");
        let (Failure::Provider(reason) | Failure::Session(reason)) = self;
        // Some of the library's error texts end with a new line.
        let reason = reason.trim_end();
        Status::internal(match self {
            Failure::Provider(_) => format!(
                "{begin}, ONNX Runtime's CUDA provider does not start: {reason}; see that the CUDA and cuDNN libraries it was \
                 built for are where the loader looks (LD_LIBRARY_PATH), or use KIND_CPU"
            ),
            Failure::Session(_) => format!("{begin}: {reason}; KIND_CPU loads it on the host"),
        })
    }
}

/// The tensors that an instance uses where they lie. Three kinds are not taken on the device: strings, which the library keeps on the host; inputs
/// that must not change while the graph runs; and outputs that are inputs too, because no operator writes them.
pub fn device_access(device: Option<u32>, ports: &Ports, untrusted_inputs: &UntrustedInputs) -> DeviceAccess {
    let Some(ordinal) = device else { return DeviceAccess::Host };
    let all = || ports.inputs.iter().chain(&ports.outputs);
    let passes = |name: &str| {
        ports.inputs.iter().any(|port| port.name == name) && ports.outputs.iter().any(|port| port.name == name)
    };
    let host_tensors = all().filter(|port| {
        port.datatype == Some(DataType::Bytes) || untrusted_inputs.contains(&port.name) || passes(&port.name)
    });
    let host_tensors: Arc<[String]> = host_tensors.map(|port| port.name.clone()).collect();
    DeviceAccess::Device { ordinal, align: ALIGN, host_tensors }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nerite_backend::conformance::context;
    use nerite_backend::onnx::Port;

    use super::*;

    #[track_caller]
    fn check(config: &str, expected: Result<&[(&str, &str)], &str>) {
        let config = nerite_config::parse_text("m/config.pbtxt", config.as_bytes()).unwrap();
        let found = options(&context(Path::new("m"), config)).map_err(|refused| refused.message);
        let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        assert_eq!(found, expected.map(pairs).map_err(str::to_owned));
    }

    fn accelerator(name: &str, parameters: &[(&str, &str)]) -> String {
        let pair = |(key, value): &(&str, &str)| format!("parameters {{ key: '{key}' value: '{value}' }}");
        let parameters: String = parameters.iter().map(pair).collect();
        format!(
            "name: 'm' optimization {{ execution_accelerators {{ \
             gpu_execution_accelerator {{ name: '{name}' {parameters} }} }} }}"
        )
    }

    fn parameter(key: &str, value: &str) -> String {
        format!(" parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}")
    }

    #[test]
    fn options_come_from_the_accelerator_and_from_the_models_parameters() {
        check("name: 'm'", Ok(&[]));
        check(&accelerator("cuda", &[("use_tf32", "0"), ("device_id", "7")]), Ok(&[("use_tf32", "0")]));
        for (key, value, expected) in [
            ("cudnn_conv_algo_search", "0", "EXHAUSTIVE"),
            ("cudnn_conv_algo_search", "1", "HEURISTIC"),
            ("cudnn_conv_algo_search", "2", "DEFAULT"),
            ("arena_extend_strategy", "0", "kNextPowerOfTwo"),
            ("arena_extend_strategy", "1", "kSameAsRequested"),
            ("gpu_mem_limit", "4294967200", "4294967200"),
            ("do_copy_in_default_stream", "0", "0"),
        ] {
            check(&format!("name: 'm'{}", parameter(key, value)), Ok(&[(key, expected)]));
        }
        let both = accelerator("cuda", &[("gpu_mem_limit", "1"), ("use_tf32", "0")]) + &parameter("gpu_mem_limit", "2");
        check(&both, Ok(&[("gpu_mem_limit", "2"), ("use_tf32", "0")]));
        // Parameters that are no options of this provider are not taken.
        check(&format!("name: 'm'{}", parameter("intra_op_thread_count", "2")), Ok(&[]));
    }

    #[test]
    fn what_cannot_be_offered_is_refused_and_not_passed_over() {
        let text = "unknown Execution Accelerator 'tensorrt' is requested by model 'm'; this server has 'cuda'";
        check(&accelerator("tensorrt", &[]), Err(text));
        let text = "model 'm' sets the option 'enable_cuda_graph' of the CUDA provider, which this server does not offer; \
                    remove it";
        check(&accelerator("cuda", &[("enable_cuda_graph", "1")]), Err(text));
        check(&accelerator("cuda", &[("enable_cuda_graph", "0")]), Ok(&[("enable_cuda_graph", "0")]));
        let text = "unsupported arena_extend_strategy value '2' is requested by model 'm'; there are 0 (kNextPowerOfTwo), 1 \
                    (kSameAsRequested)";
        check(&format!("name: 'm'{}", parameter("arena_extend_strategy", "2")), Err(text));
        for key in ["user_compute_stream", "gpu_external_alloc"] {
            let text = format!(
                "model 'm' sets the option '{key}' of the CUDA provider, which this server does not offer; remove it"
            );
            check(&accelerator("cuda", &[(key, "140000000000")]), Err(&text));
        }
    }

    #[test]
    fn failures_name_the_device_the_reason_and_the_cure() {
        let of = |failure: &Failure| failure.status("m", 1).message;
        assert_eq!(
            of(&Failure::Provider("libcublas.so is not there\n".into())),
            "unable to load model 'm' on device 1, ONNX Runtime's CUDA provider does not start: libcublas.so is not there; see \
             that the CUDA and cuDNN libraries it was built for are where the loader looks (LD_LIBRARY_PATH), or use KIND_CPU"
        );
        assert_eq!(
            of(&Failure::Session("no memory".into())),
            "unable to load model 'm' on device 1: no memory; KIND_CPU loads it on the host"
        );
        let text = missing(Path::new("/lib/ort.so"));
        assert!(text.starts_with("ONNX Runtime at '/lib/ort.so' has no CUDA provider: install"), "{text}");
    }

    #[test]
    fn strings_and_what_passes_through_stay_on_the_host() {
        let port = |name: &str, datatype| Port::new(name, Some(datatype), None);
        let (bytes, fp32) = (DataType::Bytes, DataType::Fp32);
        let ports = Ports {
            inputs: vec![port("text", bytes), port("x", fp32), port("through", fp32)],
            outputs: vec![port("y", fp32), port("through", fp32), port("words", bytes)],
            ..Ports::default()
        };
        assert_eq!(device_access(None, &ports, &UntrustedInputs::default()), DeviceAccess::Host);
        let host_tensors = ["text", "through", "through", "words"].map(str::to_owned);
        let expected = DeviceAccess::Device { ordinal: 1, align: 256, host_tensors: Arc::new(host_tensors) };
        assert_eq!(device_access(Some(1), &ports, &UntrustedInputs::default()), expected);
    }
}
