//! Which flags are there?
//!
//! The names, and what they take, are those of `tritonserver`, so that its command lines work here. `docs/flags.md` is written
//! from this table (`page.rs`).

/// Whether a flag wants a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// The flag takes no value.
    Nothing,
    /// The flag takes a value. The text names it in the usage.
    Value(&'static str),
}

/// What a flag does here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Honour {
    /// A flag of Triton's with the same effect.
    Yes,
    /// A flag that Triton does not have.
    Own,
    /// A flag of Triton's that is accepted and ignored: it tunes a part that this server does not have.
    Accepted,
}

/// One flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Its name, without the dashes.
    pub name: &'static str,
    /// Its value, if it takes one.
    pub takes: Takes,
    /// What it does here.
    pub honour: Honour,
    /// The heading it stands under.
    pub group: &'static str,
    /// What it means, for the usage.
    pub about: &'static str,
}

/// Flags of which all values count. For the others only the last value counts.
pub const REPEATED: [&str; 18] = [
    "model-repository",
    "model-store",
    "load-model",
    "http-restricted-api",
    "http-allowed-origins",
    "http-allowed-hosts",
    "trusted-proxies",
    "grpc-restricted-protocol",
    "metrics-config",
    "ui-host",
    "shm-key-prefix",
    "session-allow-uid",
    "backend-config",
    "cache-config",
    "trace-config",
    "trace-level",
    "rate-limit-resource",
    "host-policy",
];

/// Two flags that say the same, the old name first.
pub const SAME: [(&str, &str); 3] = [
    ("model-store", "model-repository"),
    ("response-cache-byte-size", "cache-config"),
    ("strict-model-config", "disable-auto-complete-config"),
];

impl Flag {
    /// Whether it changes what the server does.
    pub fn has_effect(&self) -> bool {
        self.honour != Honour::Accepted
    }

    /// Whether each of its values counts.
    pub fn repeats(&self) -> bool {
        REPEATED.contains(&self.name)
    }

    /// The setting that it sets. If two flags mean the same, it is the name of the newer one.
    pub fn setting(&self) -> &'static str {
        SAME.iter().find(|(old, _)| *old == self.name).map_or(self.name, |(_, new)| new)
    }
}

const BYTES: Takes = Takes::Value("<bytes>");
const INT: Takes = Takes::Value("<integer>");
const BOOL: Takes = Takes::Value("<boolean>");
const TEXT: Takes = Takes::Value("<string>");
const SECONDS: Takes = Takes::Value("<float>");
const ALONE: Takes = Takes::Nothing;

macro_rules! flags {
    ($($group:literal: { $($name:literal $takes:expr, $honour:ident, $about:literal;)* })*) => {
        /// All flags, in the order of the usage.
        pub const FLAGS: &[Flag] = &[$($(
            Flag { name: $name, takes: $takes, honour: Honour::$honour, group: $group, about: $about },
        )*)*];
    };
}

flags! {
    "General": {
        "help" ALONE, Yes, "Print usage";
        "config" Takes::Value("<path>"), Own, "TOML file with settings by the names of these flags. The command line wins over the environment (NERITE_HTTP_PORT for --http-port), the environment over the file.";
        "id" TEXT, Yes, "Identifier for this server. Default is 'triton'.";
        "exit-timeout-secs" INT, Yes, "Seconds that in-flight requests get to finish when the server stops. Default is 30.";
        "drain-seconds" INT, Own, "Seconds that the server drains before it stops: it is not ready, and still serves requests. Default is 0.";
        "parent-pid" INT, Own, "Process that started this server. The server stops as at SIGTERM when that process ends.";
    }
    "Logging": {
        "log-verbose" INT, Yes, "Verbose logging level; 0 (the default) is off. From 2 on each request is a line, as with --log-access.";
        "log-info" BOOL, Yes, "Whether informational lines are written. Default is true.";
        "log-warning" BOOL, Yes, "Whether warnings are written. Default is true.";
        "log-error" BOOL, Yes, "Whether errors are written. Default is true.";
        "log-format" TEXT, Yes, "Format of the log: 'default', 'ISO8601' or 'json'.";
        "log-access" BOOL, Own, "Write a log line for each request: the client, the call and the result. Default is false.";
        "log-access-health" BOOL, Own, "Whether --log-access also covers the health calls: live, ready and model ready. Default is true.";
        "log-file" TEXT, Yes, "File that all log lines go to; without it informational lines go to stdout, others to stderr.";
    }
    "Model Repository": {
        "model-repository" TEXT, Yes, "Path to a model repository. May be given several times.";
        "model-store" TEXT, Yes, "The same as --model-repository.";
        "exit-on-error" BOOL, Yes, "Exit when a model fails to load at start. Default is true.";
        "disable-auto-complete-config" ALONE, Yes, "Serve models exactly as their configuration says, complete nothing.";
        "strict-model-config" BOOL, Yes, "DEPRECATED: true is --disable-auto-complete-config, which wins over false.";
        "strict-readiness" BOOL, Yes, "Ready only when every model that should be up is ready. Default is true.";
        "model-control-mode" TEXT, Yes, "'none', 'poll', 'explicit' or 'demand': models load at start, after changes of the repository, by load requests, or by inference requests. Default is 'none'.";
        "repository-poll-secs" INT, Yes, "Control mode 'poll': seconds between two scans of the repositories; 0 for none. A change that inotify reports is loaded at once. Default is 15.";
        "load-model" TEXT, Yes, "Model to load at start in control mode 'explicit' or 'demand'; '*' for all. In mode 'demand' it stays. May be given several times.";
        "models-max-bytes" BYTES, Own, "Control mode 'demand': most bytes of all loaded models, measured or by their files. The least recently used is unloaded. Default is no limit.";
        "allow-model-upload" BOOL, Own, "Whether a load request may contain a model's files; Python code in them is run. Default is true in control mode 'explicit', else false.";
        "client-instances-max" INT, Own, "Most instances of models that one client loaded with its own configuration. No limit for root and the server's user. Default is 4 per core.";
        "model-config-name" TEXT, Yes, "Read configs/<name>.pbtxt in place of config.pbtxt where there is one.";
        "model-load-thread-count" INT, Yes, "Models that load at the same time, and instances of one model that start at the same time. Default is 4.";
        "model-load-retry-count" INT, Yes, "How often a load that failed is tried again. Default is 0.";
        "queue-requests-max" INT, Own, "Requests that may wait for one model version; more are refused with 503 or UNAVAILABLE. A larger max_queue_size wins over it. Default is 16384.";
        "sequence-scope" TEXT, Own, "Who shares the sequence of a correlation id: 'user' (one user of this host, all remote addresses), 'peer', 'all' (as in Triton). Default is 'user'.";
        "model-namespacing" BOOL, Yes, "Let models of different repositories have the same name. A request then names the model as repository::model. Default is false. Not in control mode 'demand'.";
    }
    "Connections": {
        "connections-max" INT, Own, "Connections of HTTP, gRPC and metrics that may be open. Default is three quarters of the limit of open files, at most 16384.";
        "connections-per-peer-max" INT, Own, "Of these, connections of one user of this host, or of one address. Default is half of --connections-max.";
        "http-header-timeout" SECONDS, Own, "Seconds for a request's head over HTTP, and for the beginning of a gRPC connection; 0 for no limit. Default is 30.";
        "http-idle-timeout" SECONDS, Own, "Seconds between two requests of an HTTP connection; 0 for no limit. Default is 900.";
        "grpc-idle-timeout" SECONDS, Own, "Seconds without a call on a gRPC connection; 0 for no limit. Default is 3600.";
        "http-handshake-timeout" SECONDS, Own, "Seconds for a TLS handshake over HTTP, and for a proxy's header before it; 0 for no limit. Default is 20.";
        "grpc-handshake-timeout" SECONDS, Own, "Seconds for a TLS handshake over GRPC, and for a proxy's header before it; 0 for no limit. Default is 20.";
        "body-progress-timeout" SECONDS, Own, "A request's body must average 1 KiB/s over this many seconds; 0 for no limit. Default is 60.";
        "write-timeout" SECONDS, Own, "Seconds after which a connection is closed whose client has taken no byte of a waiting response; 0 for no limit. Default is 60.";
        "trusted-proxies" Takes::Value("<network>"), Own, "Address or network of proxies. Their connections begin with a PROXY protocol v2 header that names the client. May be given several times.";
    }
    "Access": {
        "access-tokens-file" Takes::Value("<path>"), Own, "TOML file of tokens: who may make which calls, how many, of which models. Read again when it changes. Without it no token is needed.";
    }
    "HTTP": {
        "allow-http" BOOL, Yes, "Whether HTTP has a port. Default is true. With false and --http-socket there is the socket alone.";
        "http-address" TEXT, Yes, "Address that HTTP listens at. Default is 0.0.0.0.";
        "http-port" INT, Yes, "Port that HTTP listens at. Default is 8000.";
        "http-socket" Takes::Value("<path>"), Own, "Unix socket that HTTP listens at, besides its port or alone.";
        "http-socket-mode" Takes::Value("<mode>"), Own, "Mode of that socket's file, in octal: who may connect. Default is 0600, the server's own user and root.";
        "reuse-http-port" BOOL, Yes, "Let several servers share the HTTP port (SO_REUSEPORT). Default is false.";
        "http-header-forward-pattern" TEXT, Yes, "Regular expression for headers that become request parameters.";
        "http-thread-count" INT, Yes, "Threads that serve the front ends, at most one per core. Default is half of the cores, at most 8.";
        "http-max-input-size" INT, Yes, "Largest JSON, raw or decompressed input over HTTP, and largest decompressed message over gRPC, in bytes. Default is 67108864.";
        "http-use-ssl" BOOL, Own, "Whether the HTTP port uses TLS (https). Default is false.";
        "http-use-ssl-mutual" BOOL, Own, "Whether the HTTP port uses TLS and asks clients for a certificate. Default is false.";
        "http-server-cert" TEXT, Own, "File of the server's certificate, PEM. Read again when it changes.";
        "http-server-key" TEXT, Own, "File of the server's private key, PEM. Read again when it changes.";
        "http-root-cert" TEXT, Own, "File of the root certificates that clients are checked against, PEM. Read again when it changes.";
        "http-restricted-api" Takes::Value("<string>:<string>=<string>"), Yes, "Calls that need a header: <apis>:<header>=<value>.";
        "http-allowed-origins" Takes::Value("<origin>"), Own, "Web site whose pages may use the HTTP and metrics ports (CORS): scheme://host[:port], or '*' for all. May be given several times. Default is none.";
        "http-allowed-hosts" Takes::Value("<name>"), Own, "Name that HTTP and metrics requests may have in Host besides addresses, localhost and this machine's; '*' for all. May be given several times.";
    }
    "GRPC": {
        "allow-grpc" BOOL, Yes, "Whether GRPC has a port. Default is true. With false and --grpc-socket there is the socket alone.";
        "grpc-address" TEXT, Yes, "Address that GRPC listens at. Default is 0.0.0.0.";
        "grpc-port" INT, Yes, "Port that GRPC listens at. Default is 8001.";
        "grpc-socket" Takes::Value("<path>"), Own, "Unix socket that GRPC listens at, besides its port or alone.";
        "grpc-socket-mode" Takes::Value("<mode>"), Own, "Mode of that socket's file, in octal: who may connect. Default is 0600, the server's own user and root.";
        "reuse-grpc-port" BOOL, Yes, "Let several servers share the GRPC port (SO_REUSEPORT). Default is false.";
        "grpc-header-forward-pattern" TEXT, Yes, "Regular expression for metadata that become request parameters.";
        "grpc-infer-thread-count" INT, Accepted, "Accepted, ignored: Triton's threads for inference.";
        "grpc-infer-allocation-pool-size" INT, Accepted, "Accepted, ignored: Triton's pool of request objects.";
        "grpc-max-response-pool-size" INT, Yes, "Responses of one streamed request that may wait to be sent.";
        "grpc-use-ssl" BOOL, Yes, "Whether GRPC uses TLS. Default is false.";
        "grpc-use-ssl-mutual" BOOL, Yes, "Whether GRPC uses TLS and asks clients for a certificate. Default is false.";
        "grpc-server-cert" TEXT, Yes, "File of the server's certificate, PEM. Read again when it changes.";
        "grpc-server-key" TEXT, Yes, "File of the server's private key, PEM. Read again when it changes.";
        "grpc-root-cert" TEXT, Yes, "File of the root certificates that clients are checked against, PEM. Read again when it changes.";
        "grpc-infer-response-compression-level" TEXT, Yes, "'none', 'low', 'medium' or 'high'. Default is 'none'.";
        "grpc-keepalive-time" INT, Yes, "Milliseconds of silence after which a ping is sent. Default is 7200000.";
        "grpc-keepalive-timeout" INT, Yes, "Milliseconds that the answer to a ping may take. Default is 20000.";
        "grpc-keepalive-permit-without-calls" BOOL, Accepted, "Accepted, ignored: nerite always pings also while no call runs.";
        "grpc-http2-max-pings-without-data" INT, Accepted, "Accepted, ignored: a limit of Triton's gRPC library.";
        "grpc-http2-min-recv-ping-interval-without-data" INT, Accepted, "Accepted, ignored: a limit of Triton's gRPC library.";
        "grpc-http2-max-ping-strikes" INT, Accepted, "Accepted, ignored: a limit of Triton's gRPC library.";
        "grpc-max-connection-age" INT, Yes, "Milliseconds after which a connection is asked to close.";
        "grpc-max-connection-age-grace" INT, Yes, "Milliseconds after that until it is closed.";
        "grpc-restricted-protocol" Takes::Value("<string>:<string>=<string>"), Yes, "Calls that need metadata: <protocols>:<key>=<value>.";
    }
    "Metrics": {
        "allow-metrics" BOOL, Yes, "Whether to listen for metrics. Default is true.";
        "allow-gpu-metrics" BOOL, Yes, "Whether metrics of GPUs are shown. Default is true.";
        "allow-cpu-metrics" BOOL, Yes, "Whether metrics of the processor are shown. Default is true.";
        "metrics-address" TEXT, Yes, "Address that metrics listen at. Default is that of HTTP.";
        "metrics-port" INT, Yes, "Port that metrics listen at. Default is 8002.";
        "metrics-use-ssl" BOOL, Own, "Whether the metrics port and the page use TLS (https). Default is false.";
        "metrics-use-ssl-mutual" BOOL, Own, "Whether the metrics port uses TLS and asks clients for a certificate. Default is false.";
        "metrics-server-cert" TEXT, Own, "File of the server's certificate, PEM. Read again when it changes.";
        "metrics-server-key" TEXT, Own, "File of the server's private key, PEM. Read again when it changes.";
        "metrics-root-cert" TEXT, Own, "File of the root certificates that clients are checked against, PEM. Read again when it changes.";
        "metrics-interval-ms" Takes::Value("<float>"), Yes, "Milliseconds between two measurements of GPUs, and the shortest interval between two measurements of the processor. Default is 2000.";
        "metrics-config" Takes::Value("<string>=<string>"), Yes, "A setting of metrics: counter_latencies=false, summary_latencies=true, summary_quantiles=<quantile>:<error>,…, histogram_latencies=true.";
    }
    "Page": {
        "ui" BOOL, Own, "Whether the metrics port shows the page for browsers at /, to users of this host. Default is true where metrics are.";
        "ui-address" TEXT, Own, "Address of a separate port for the page, open to everyone who can reach it. Default is 127.0.0.1 if --ui-port is given, else no port.";
        "ui-port" INT, Own, "Separate port for the page. Default is 8003 if --ui-address is given.";
        "ui-host" TEXT, Own, "Name under which browsers may open the page, besides addresses, localhost and this machine's name. May be given several times.";
    }
    "Memory": {
        "memory-budget" BYTES, Own, "Bytes of bodies, unread responses and open calls of all clients. Default is half of the memory, or a third of what ulimit -v leaves.";
        "memory-budget-per-peer" BYTES, Own, "The same for one user of this host, or one address. Default is seven eighths of --memory-budget.";
        "memory-budget-per-connection" BYTES, Own, "The same for one connection. Default is --memory-budget-per-peer.";
    }
    "Shared Memory": {
        "shm-trust" TEXT, Own, "Which shared memory objects a client may register: 'peer', those that its user could open, or 'any', as in Triton. Default is 'peer'.";
        "shm-key-prefix" TEXT, Own, "Every client may register objects whose keys begin with this text. May be given several times.";
        "shm-scope" TEXT, Own, "Which regions a client may use by name: 'own', those that its user registered, or 'all', as in Triton. Default is 'own'.";
        "allow-client-shm" BOOL, Yes, "Whether clients may register shared memory. Default is true.";
        "session-socket" Takes::Value("<path>"), Own, "Unix socket for sessions; 'off' for none. Default is session.sock and session-<HTTP port>.sock in $XDG_RUNTIME_DIR/nerite, else in /tmp/nerite-<uid>.";
        "session-allow-uid" INT, Own, "Number of a user besides the server's own and root who may open sessions. May be repeated.";
        "sessions-per-user-max" INT, Own, "Of the 256 sessions, those of one user, unless it is the server's own. Default is 64.";
        "session-hello-timeout" SECONDS, Own, "Seconds for the first message of a session, Hello; 0 for no limit. Default is 10.";
        "lease-max-bytes" INT, Own, "Bytes lent to all sessions together. Default is half of the memory of the host or of the control group.";
        "session-max-bytes" INT, Own, "Bytes lent to one session. Default is half of --lease-max-bytes.";
    }
    "GPU": {
        "cuda-library" Takes::Value("<path>"), Own, "Library of the CUDA driver; 'none' for no GPU. Default is $NERITE_CUDA_LIBRARY, else the system's.";
        "pinned-memory-pool-byte-size" INT, Yes, "Bytes of page-locked memory that tensors pass through between host and device; locked when first needed. Default is 268435456.";
        "page-lock-client-memory" BOOL, Own, "Whether system regions and leases are page-locked on a host with a GPU. Default is true.";
        "min-supported-compute-capability" Takes::Value("<float>"), Yes, "Oldest GPU that models run on. Default is 6.0.";
    }
    "Backend": {
        "backend-directory" TEXT, Yes, "Directory of backends, compiled or in Python. They win over built-in ones of the same name, except in the default, /opt/tritonserver/backends.";
        "backend-config" Takes::Value("<string>,<string>=<string>"), Yes, "A setting of a backend: <backend>,<setting>=<value>.";
        "onnxruntime-library" Takes::Value("<path>"), Own, "Shared library of ONNX Runtime; 'none' for the embedded engine.";
    }
    "Tracing": {
        "trace-config" TEXT, Yes, "A setting of tracing: level=OFF|TIMESTAMPS|TENSORS (may be given twice), rate=<integer>, count=<integer>, mode=triton|opentelemetry; triton,file=<path>, triton,log-frequency=<integer>; opentelemetry,url=<url>, opentelemetry,resource=<key>=<value> (may be given several times), opentelemetry,bsp_max_queue_size=<integer>, opentelemetry,bsp_schedule_delay=<ms>, opentelemetry,bsp_max_export_batch_size=<integer>.";
        "trace-file" TEXT, Yes, "DEPRECATED: use --trace-config=triton,file=<path>.";
        "trace-level" TEXT, Yes, "DEPRECATED: use --trace-config=level=<level>.";
        "trace-rate" INT, Yes, "DEPRECATED: use --trace-config=rate=<integer>.";
        "trace-count" INT, Yes, "DEPRECATED: use --trace-config=count=<integer>.";
        "trace-log-frequency" INT, Yes, "DEPRECATED: use --trace-config=triton,log-frequency=<integer>.";
    }
    "Response Cache": {
        "cache-config" Takes::Value("<string>,<string>=<string>"), Yes, "The response cache: local,size=<bytes>. Models whose configuration has response_cache { enable: true } use it. Default is none.";
        "response-cache-byte-size" INT, Yes, "DEPRECATED: use --cache-config=local,size=<bytes>.";
    }
    "Instances": {
        "rate-limit" TEXT, Yes, "'off' or 'execution_count': whether instances wait for the resources that their groups name in rate_limiter. Default is 'off'.";
        "rate-limit-resource" Takes::Value("<string>:<integer>:<integer>"), Yes, "Amount of a resource: <name>:<count>, or <name>:<count>:<device>. Without this flag there is as much as the neediest instance needs.";
        "host-policy" Takes::Value("<string>,<string>=<string>"), Yes, "Cores of instances with this host_policy, or of kind cpu or gpu_<id>: <policy>,cpu-cores=<first>-<last>[,…] or <policy>,numa-node=<number> (cores and memory).";
    }
    "Accepted from Triton": {
        "cache-directory" TEXT, Accepted, "Accepted, ignored: directory of Triton's cache libraries.";
        "enable-peer-access" BOOL, Accepted, "Accepted, ignored: direct access between GPUs.";
        "cuda-memory-pool-byte-size" TEXT, Accepted, "Accepted, ignored: nerite allocates no pool of device memory.";
        "cuda-virtual-address-size" TEXT, Accepted, "Accepted, ignored: Triton's address space per GPU.";
        "model-load-gpu-limit" TEXT, Accepted, "Accepted, ignored: a model's limit is its parameter gpu_mem_limit.";
        "buffer-manager-thread-count" INT, Accepted, "Accepted, ignored: Triton's threads that copy tensors.";
        "repoagent-directory" TEXT, Accepted, "Accepted, ignored: directory of Triton's repository agents.";
        "allow-sagemaker" BOOL, Accepted, "Only false is accepted: there is no endpoint for SageMaker.";
        "allow-vertex-ai" BOOL, Accepted, "Only false is accepted: there is no endpoint for Vertex AI.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_group_is_of_flags_without_an_effect() {
        for flag in FLAGS.iter().filter(|flag| flag.group == "Accepted from Triton") {
            assert_eq!(flag.honour, Honour::Accepted, "--{}", flag.name);
        }
    }

    #[test]
    fn lists_of_flags_name_flags() {
        let both = SAME.iter().flat_map(|(old, new)| [*old, *new]);
        for name in REPEATED.into_iter().chain(both) {
            assert!(FLAGS.iter().any(|flag| flag.name == name), "--{name}");
        }
    }
}
