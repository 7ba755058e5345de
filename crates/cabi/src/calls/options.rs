//! How does a program set the options of a server that it is about to make?

use std::ffi::c_void;
use std::sync::Arc;

use nerite_request::Status;

use super::exports;
use crate::abi::{Out, Text};
use crate::fault::Fault;
use crate::log_callback::{self, LogFn};
use crate::objects::{Control, ServerOptions};
use crate::server_calls::start;
use crate::table::Handle;

type Options = Handle<ServerOptions>;

/// C's `bool`: any value but 0 is true.
fn truth(value: u8) -> bool {
    value != 0
}

/// Sets up a response cache. Its configuration is JSON whose values are texts or numbers.
fn set_cache(options: Options, name: &str, config: &str) -> Result<(), Fault> {
    let json: serde_json::Value = serde_json::from_str(config)
        .map_err(|cause| Status::invalid(format!("failed to parse the configuration of cache '{name}': {cause}")))?;
    let size = match json.get("size") {
        Some(serde_json::Value::String(size)) => size.clone(),
        Some(serde_json::Value::Number(size)) => size.to_string(),
        _ => return Err(Status::invalid(format!("the configuration of cache '{name}' has no 'size': {config}")).into()),
    };
    options.get()?.set("cache-config", format_args!("{name},size={size}"))
}

/// The settings that a host policy may have.
const HOST_POLICY_SETTINGS: [&str; 2] = ["numa-node", "cpu-cores"];

exports! {
    "TRITONSERVER_ServerOptionsNew" = options_new(options: Out<Options>) {
        options.put(Handle::to(Arc::new(ServerOptions::new()))?)?;
    }

    "TRITONSERVER_ServerOptionsDelete" = options_delete(options: Options) {
        options.delete()?;
    }

    "TRITONSERVER_ServerOptionsSetServerId" = set_server_id(options: Options, id: Text) {
        options.get()?.set("id", id.read()?)?;
    }

    "TRITONSERVER_ServerOptionsSetModelRepositoryPath" = set_model_repository_path(options: Options, path: Text) {
        options.get()?.set("model-repository", path.read()?)?;
    }

    "TRITONSERVER_ServerOptionsSetModelControlMode" = set_model_control_mode(options: Options, mode: u32) {
        let control = match mode {
            0 => Control::None,
            1 => Control::Poll,
            2 => Control::Explicit,
            other => return Err(Status::invalid(format!("unknown control mode '{other}'")).into()),
        };
        options.get()?.set_control(control);
    }

    "TRITONSERVER_ServerOptionsSetStartupModel" = set_startup_model(options: Options, model: Text) {
        options.get()?.add_startup(model.read()?)?;
    }

    "TRITONSERVER_ServerOptionsSetStrictModelConfig" = set_strict_model_config(options: Options, is_strict: u8) {
        options.get()?.set_strict(truth(is_strict));
    }

    "TRITONSERVER_ServerOptionsSetModelConfigName" = set_model_config_name(options: Options, name: Text) {
        let (options, name) = (options.get()?, name.read()?);
        // An empty name counts as not set, because the flag would refuse it.
        if !name.is_empty() {
            options.set("model-config-name", name)?;
        }
    }

    "TRITONSERVER_ServerOptionsSetRateLimiterMode" = set_rate_limiter_mode(options: Options, mode: u32) {
        let word = match mode {
            0 => "off",
            1 => "execution_count",
            other => return Err(Status::invalid(format!("unknown rate limit mode '{other}'")).into()),
        };
        options.get()?.set("rate-limit", word)?;
    }

    "TRITONSERVER_ServerOptionsAddRateLimiterResource" =
        add_rate_limiter_resource(options: Options, name: Text, count: usize, device: i32) {
        let name = name.read()?;
        if name.contains(':') {
            return Err(Status::invalid(format!("the resource '{name}' has a colon in its name")).into());
        }
        let options = options.get()?;
        match device {
            0.. => options.set("rate-limit-resource", format_args!("{name}:{count}:{device}"))?,
            _ => options.set("rate-limit-resource", format_args!("{name}:{count}"))?,
        }
    }

    "TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize" = set_pinned_pool(options: Options, bytes: u64) {
        options.get()?.set("pinned-memory-pool-byte-size", bytes)?;
    }

    "TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize" = set_cuda_pool(options: Options, device: i32, bytes: u64) {
        options.get()?.set("cuda-memory-pool-byte-size", format_args!("{device}:{bytes}"))?;
    }

    "TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize" = set_cuda_addresses(options: Options, device: i32, bytes: usize) {
        options.get()?.set("cuda-virtual-address-size", format_args!("{device}:{bytes}"))?;
    }

    "TRITONSERVER_ServerOptionsSetResponseCacheByteSize" = set_response_cache_size(options: Options, bytes: u64) {
        options.get()?.set("response-cache-byte-size", bytes)?;
    }

    "TRITONSERVER_ServerOptionsSetCacheConfig" = set_cache_config(options: Options, name: Text, config: Text) {
        set_cache(options, &name.read()?, &config.read()?)?;
    }

    "TRITONSERVER_ServerOptionsSetCacheDirectory" = set_cache_directory(options: Options, directory: Text) {
        options.get()?.set("cache-directory", directory.read()?)?;
    }

    "TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability" = set_min_compute_capability(options: Options, least: f64) {
        options.get()?.set("min-supported-compute-capability", least)?;
    }

    "TRITONSERVER_ServerOptionsSetExitOnError" = set_exit_on_error(options: Options, exits: u8) {
        options.get()?.set("exit-on-error", truth(exits))?;
    }

    "TRITONSERVER_ServerOptionsSetStrictReadiness" = set_strict_readiness(options: Options, is_strict: u8) {
        options.get()?.set("strict-readiness", truth(is_strict))?;
    }

    "TRITONSERVER_ServerOptionsSetExitTimeout" = set_exit_timeout(options: Options, seconds: u32) {
        options.get()?.set("exit-timeout-secs", seconds)?;
    }

    "TRITONSERVER_ServerOptionsSetBufferManagerThreadCount" = set_buffer_threads(options: Options, count: u32) {
        options.get()?.set("buffer-manager-thread-count", count)?;
    }

    "TRITONSERVER_ServerOptionsSetModelLoadThreadCount" = set_load_threads(options: Options, count: u32) {
        options.get()?.set("model-load-thread-count", count)?;
    }

    "TRITONSERVER_ServerOptionsSetModelLoadRetryCount" = set_load_retries(options: Options, count: u32) {
        options.get()?.set("model-load-retry-count", count)?;
    }

    "TRITONSERVER_ServerOptionsSetModelNamespacing" = set_namespacing(options: Options, is_on: u8) {
        options.get()?.set("model-namespacing", truth(is_on))?;
    }

    "TRITONSERVER_ServerOptionsSetEnablePeerAccess" = set_peer_access(options: Options, is_on: u8) {
        options.get()?.set("enable-peer-access", truth(is_on))?;
    }

    "TRITONSERVER_ServerOptionsSetLogFile" = set_log_file(options: Options, file: Text) {
        options.get()?.set("log-file", file.read()?)?;
    }

    "TRITONSERVER_ServerOptionsSetLogInfo" = set_log_info(options: Options, is_on: u8) {
        options.get()?.set("log-info", truth(is_on))?;
    }

    "TRITONSERVER_ServerOptionsSetLogWarn" = set_log_warn(options: Options, is_on: u8) {
        options.get()?.set("log-warning", truth(is_on))?;
    }

    "TRITONSERVER_ServerOptionsSetLogError" = set_log_error(options: Options, is_on: u8) {
        options.get()?.set("log-error", truth(is_on))?;
    }

    "TRITONSERVER_ServerOptionsSetLogFormat" = set_log_format(options: Options, format: u32) {
        let word = match format {
            0 => "default",
            1 => "ISO8601",
            other => return Err(Status::invalid(format!("unknown log format '{other}'")).into()),
        };
        options.get()?.set("log-format", word)?;
    }

    "TRITONSERVER_ServerOptionsSetLogVerbose" = set_log_verbose(options: Options, level: i32) {
        options.get()?.set("log-verbose", level)?;
    }

    "TRITONSERVER_ServerOptionsSetLogCallback" =
        set_log_callback(options: Options, function: Option<LogFn>, userp: *mut c_void) {
        options.get()?;
        // Only a program that makes servers may set the function. A backend must not redirect the log of `nerite` itself.
        if start().is_some() {
            log_callback::set(function, userp);
        }
    }

    "TRITONSERVER_ServerOptionsSetMetrics" = set_metrics(options: Options, is_on: u8) {
        options.get()?.set("allow-metrics", truth(is_on))?;
    }

    "TRITONSERVER_ServerOptionsSetGpuMetrics" = set_gpu_metrics(options: Options, is_on: u8) {
        options.get()?.set("allow-gpu-metrics", truth(is_on))?;
    }

    "TRITONSERVER_ServerOptionsSetCpuMetrics" = set_cpu_metrics(options: Options, is_on: u8) {
        options.get()?.set("allow-cpu-metrics", truth(is_on))?;
    }

    "TRITONSERVER_ServerOptionsSetMetricsInterval" = set_metrics_interval(options: Options, milliseconds: u64) {
        options.get()?.set("metrics-interval-ms", milliseconds)?;
    }

    "TRITONSERVER_ServerOptionsSetBackendDirectory" = set_backend_directory(options: Options, directory: Text) {
        options.get()?.set("backend-directory", directory.read()?)?;
    }

    "TRITONSERVER_ServerOptionsSetRepoAgentDirectory" = set_repoagent_directory(options: Options, directory: Text) {
        options.get()?.set("repoagent-directory", directory.read()?)?;
    }

    "TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit" =
        set_device_limit(options: Options, kind: u32, device: i32, fraction: f64) {
        // Only GPUs are accepted, as in Triton.
        if kind != 2 {
            return Err(Status::invalid(format!("given device kind '{kind}' is not supported, only that of a GPU, 2")).into());
        }
        options.get()?.set("model-load-gpu-limit", format_args!("{device}:{fraction}"))?;
    }

    "TRITONSERVER_ServerOptionsSetBackendConfig" =
        set_backend_config(options: Options, backend: Text, setting: Text, value: Text) {
        let (backend, setting, value) = (backend.read()?, setting.read()?, value.read()?);
        if backend.contains(',') {
            return Err(Status::invalid(format!("the backend '{backend}' has a comma in its name")).into());
        }
        let options = options.get()?;
        // An empty name stands for all backends. The flag has no name then.
        if backend.is_empty() {
            options.set("backend-config", format_args!("{setting}={value}"))?;
        } else {
            options.set("backend-config", format_args!("{backend},{setting}={value}"))?;
        }
    }

    "TRITONSERVER_ServerOptionsSetHostPolicy" = set_host_policy(options: Options, policy: Text, setting: Text, value: Text) {
        let (policy, setting, value) = (policy.read()?, setting.read()?, value.read()?);
        if !HOST_POLICY_SETTINGS.contains(&setting.as_str()) {
            let known = HOST_POLICY_SETTINGS.map(|known| format!("'{known}'")).join(", ");
            let text = format!("Unsupported host policy setting '{setting}' is specified, supported settings are {known}");
            return Err(Status::unsupported(text).into());
        }
        options.get()?.set("host-policy", format_args!("{policy},{setting}={value}"))?;
    }

    "TRITONSERVER_ServerOptionsSetMetricsConfig" =
        set_metrics_config(options: Options, name: Text, setting: Text, value: Text) {
        let (name, setting, value) = (name.read_if_given().unwrap_or_default(), setting.read()?, value.read()?);
        let options = options.get()?;
        // Settings of parts of Triton that this server does not have are ignored.
        if name.is_empty() {
            options.set("metrics-config", format_args!("{setting}={value}"))?;
        }
    }
}
