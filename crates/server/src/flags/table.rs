//! Which flags are there?
//!
//! The names, and what they take, are those of `tritonserver`, so that its command lines work here. `docs/flags.md` is held
//! to this table by `cargo xtask tidy`.

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
    /// The flag has the effect that its name says.
    Yes,
    /// The flag is accepted without effect: it tunes a part that this server does not have.
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
        "config" Takes::Value("<path>"), Yes, "File of settings (TOML), by the names of these flags. The command line wins over the environment (NERITE_HTTP_PORT for --http-port), and that over the file.";
        "id" TEXT, Yes, "Identifier for this server. Default is 'triton'.";
        "exit-timeout-secs" INT, Yes, "Seconds that in-flight requests get to finish when the server stops. Default is 30.";
        "drain-seconds" INT, Yes, "Seconds that the server drains before it stops: it is not ready, and serves requests. Default is 0.";
        "parent-pid" INT, Yes, "Process that started this server; when it ends, the server stops as at SIGTERM.";
    }
    "Logging": {
        "log-verbose" INT, Yes, "Verbose logging level; 0 (the default) is off. From 2 on each request is a line, as with --log-access.";
        "log-info" BOOL, Yes, "Whether informational lines are written. Default is true.";
        "log-warning" BOOL, Yes, "Whether warnings are written. Default is true.";
        "log-error" BOOL, Yes, "Whether errors are written. Default is true.";
        "log-format" TEXT, Yes, "Format of the log: 'default', 'ISO8601' or 'json'.";
        "log-access" BOOL, Yes, "Whether each request is a line of the log: who asked what, and what came of it. Default is false.";
        "log-access-health" BOOL, Yes, "Whether health probes are such lines as well: live, ready and model ready. Default is true.";
        "log-file" TEXT, Yes, "File that all log lines go to; without it informational lines go to stdout, others to stderr.";
    }
    "Model Repository": {
        "model-repository" TEXT, Yes, "Path to a model repository. May be given several times.";
        "model-store" TEXT, Yes, "The same as --model-repository.";
        "exit-on-error" BOOL, Yes, "Exit when a model fails to load at start. Default is true.";
        "disable-auto-complete-config" ALONE, Yes, "Serve models exactly as their configuration says, complete nothing.";
        "strict-model-config" BOOL, Yes, "DEPRECATED: true is --disable-auto-complete-config, which wins over false.";
        "strict-readiness" BOOL, Yes, "Ready only when every model that should be up is ready. Default is true.";
        "model-control-mode" TEXT, Yes, "'none', 'poll', 'explicit' or 'demand': who decides which models are up. With 'poll' what came, changed or went in the repositories is loaded or unloaded, soon after the change. With 'demand' a model is loaded by its first request. Default is 'none'.";
        "repository-poll-secs" INT, Yes, "Seconds between two looks at the repositories in control mode 'poll', beside those that follow a change which the kernel tells of. 0: they are not looked at again. Default is 15.";
        "load-model" TEXT, Yes, "Model to load at start in control mode 'explicit' or 'demand'; '*' for all. In mode 'demand' it stays. May be given several times.";
        "models-max-bytes" BYTES, Yes, "Control mode 'demand': the most bytes that the loaded models may have: those of their files, or of their memory once more was measured. The least recently used leaves when another needs its room. Default is no limit.";
        "allow-model-upload" BOOL, Yes, "Whether a load request may bring a model's files; a Python model that is sent runs as code. Default is true in control mode 'explicit', else false.";
        "client-instances-max" INT, Yes, "The most instances of the models whose configurations one client sent with their loads. Root and the server's own user may load more. Default is 4 for each core.";
        "model-config-name" TEXT, Yes, "Read configs/<name>.pbtxt in place of config.pbtxt where there is one.";
        "model-load-thread-count" INT, Yes, "Models loading at the same time, and instances of one model. Default is 4. While a client has several places for loads, clients without one get extra places.";
        "model-load-retry-count" INT, Yes, "How often a load that failed is tried again. Default is 0.";
        "queue-requests-max" INT, Yes, "Requests that may wait for the instances of one model version; more are refused with 503 or UNAVAILABLE. One client has at most three quarters of the places that others leave. A model with a larger max_queue_size has places for that. Default is 16384.";
        "sequence-scope" TEXT, Yes, "Whose sequence a correlation id means: 'user', each user of this host has its own, and all other addresses share theirs, 'peer', each user and each address has its own, or 'all', one for all clients, as in Triton. Default is 'user'.";
        "model-namespacing" BOOL, Yes, "Let models of different repositories have the same name. A request for a name that several have is refused, unless it names the model as repository::model. Default is false.";
    }
    "Connections": {
        "connections-max" INT, Yes, "Connections of HTTP, gRPC and metrics that may be open. Default is three quarters of the limit of open files, at most 16384.";
        "connections-per-peer-max" INT, Yes, "Of these, connections of one user of this host, or of one address. Default is half of --connections-max.";
        "http-header-timeout" SECONDS, Yes, "Seconds for a request's head over HTTP, and for the beginning of a gRPC connection; 0 for no limit. Default is 30.";
        "http-idle-timeout" SECONDS, Yes, "Seconds between two requests of an HTTP connection; 0 for no limit. Default is 900.";
        "grpc-idle-timeout" SECONDS, Yes, "Seconds without a call on a gRPC connection; 0 for no limit. Default is 3600.";
        "http-handshake-timeout" SECONDS, Yes, "Seconds for a TLS handshake over HTTP, and for a proxy's header before it; 0 for no limit. Default is 20.";
        "grpc-handshake-timeout" SECONDS, Yes, "Seconds for a TLS handshake over GRPC, and for a proxy's header before it; 0 for no limit. Default is 20.";
        "body-progress-timeout" SECONDS, Yes, "Seconds in which 1024 bytes of a request must come for each of these seconds; 0 for no limit. Default is 60.";
        "write-timeout" SECONDS, Yes, "Seconds in which a client must take a byte of an answer that waits for it; 0 for no limit. Default is 60.";
        "trusted-proxies" Takes::Value("<network>"), Yes, "Address or network of proxies. Each of their connections to HTTP and GRPC must begin with a header of the PROXY protocol, version 2, that names the client. May be given several times. Default is none.";
    }
    "Access": {
        "access-tokens-file" Takes::Value("<path>"), Yes, "File of tokens (TOML): which clients may make which calls, how many, and of which models. Read again when it changes. Without it no token is asked for.";
    }
    "HTTP": {
        "allow-http" BOOL, Yes, "Whether HTTP has a port. Default is true. With false and --http-socket there is the socket alone.";
        "http-address" TEXT, Yes, "Address that HTTP listens at. Default is 0.0.0.0.";
        "http-port" INT, Yes, "Port that HTTP listens at. Default is 8000.";
        "http-socket" Takes::Value("<path>"), Yes, "Unix socket that HTTP listens at, besides its port or alone.";
        "http-socket-mode" Takes::Value("<mode>"), Yes, "Mode of that socket's file, in octal: who may connect. Default is 0600, the server's own user and root.";
        "reuse-http-port" BOOL, Yes, "Let several servers share the HTTP port (SO_REUSEPORT). Default is false.";
        "http-header-forward-pattern" TEXT, Yes, "Regular expression for headers that become request parameters.";
        "http-thread-count" INT, Yes, "Threads that serve the front ends, at most one per core. Default is half of the cores, at most 8.";
        "http-max-input-size" INT, Yes, "Largest JSON, raw or decompressed input over HTTP, also of a load with files, and largest decompressed message over gRPC, in bytes. Default is 67108864.";
        "http-use-ssl" BOOL, Yes, "Whether the HTTP port uses TLS (https). Default is false.";
        "http-use-ssl-mutual" BOOL, Yes, "Whether the HTTP port uses TLS and asks clients for a certificate. Default is false.";
        "http-server-cert" TEXT, Yes, "File of the server's certificate, PEM. Read again when it changes.";
        "http-server-key" TEXT, Yes, "File of the server's private key, PEM. Read again when it changes.";
        "http-root-cert" TEXT, Yes, "File of the root certificates that clients are checked against, PEM. Read again when it changes.";
        "http-restricted-api" Takes::Value("<string>:<string>=<string>"), Yes, "Calls that want a header: <apis>:<header>=<value>.";
        "http-allowed-origins" Takes::Value("<origin>"), Yes, "A web site whose pages may use the HTTP and metrics ports from a browser (CORS): scheme://host or scheme://host:port; '*' for all. May be given several times. Default is none.";
        "http-allowed-hosts" Takes::Value("<name>"), Yes, "A name that requests to the HTTP and metrics ports may have in Host, besides addresses, localhost and this machine's name; '*' for all. May be given several times. Without it only ports on a loopback address refuse other names.";
    }
    "GRPC": {
        "allow-grpc" BOOL, Yes, "Whether GRPC has a port. Default is true. With false and --grpc-socket there is the socket alone.";
        "grpc-address" TEXT, Yes, "Address that GRPC listens at. Default is 0.0.0.0.";
        "grpc-port" INT, Yes, "Port that GRPC listens at. Default is 8001.";
        "grpc-socket" Takes::Value("<path>"), Yes, "Unix socket that GRPC listens at, besides its port or alone.";
        "grpc-socket-mode" Takes::Value("<mode>"), Yes, "Mode of that socket's file, in octal: who may connect. Default is 0600, the server's own user and root.";
        "reuse-grpc-port" BOOL, Yes, "Let several servers share the GRPC port (SO_REUSEPORT). Default is false.";
        "grpc-header-forward-pattern" TEXT, Yes, "Regular expression for metadata that become request parameters.";
        "grpc-infer-thread-count" INT, Accepted, "Threads for inference in Triton; all calls share the runtime's here.";
        "grpc-infer-allocation-pool-size" INT, Accepted, "Pool of request objects in Triton; there is none here.";
        "grpc-max-response-pool-size" INT, Yes, "Responses of one streamed request that may wait to be sent.";
        "grpc-use-ssl" BOOL, Yes, "Whether GRPC uses TLS. Default is false.";
        "grpc-use-ssl-mutual" BOOL, Yes, "Whether GRPC uses TLS and asks clients for a certificate. Default is false.";
        "grpc-server-cert" TEXT, Yes, "File of the server's certificate, PEM. Read again when it changes.";
        "grpc-server-key" TEXT, Yes, "File of the server's private key, PEM. Read again when it changes.";
        "grpc-root-cert" TEXT, Yes, "File of the root certificates that clients are checked against, PEM. Read again when it changes.";
        "grpc-infer-response-compression-level" TEXT, Yes, "'none', 'low', 'medium' or 'high'. Default is 'none'.";
        "grpc-keepalive-time" INT, Yes, "Milliseconds of silence after which a ping is sent. Default is 7200000.";
        "grpc-keepalive-timeout" INT, Yes, "Milliseconds that the answer to a ping may take. Default is 20000.";
        "grpc-keepalive-permit-without-calls" BOOL, Accepted, "Ping also while no call is running: always so here.";
        "grpc-http2-max-pings-without-data" INT, Accepted, "Pings without data in Triton's library.";
        "grpc-http2-min-recv-ping-interval-without-data" INT, Accepted, "Shortest interval of a client's pings in Triton's library.";
        "grpc-http2-max-ping-strikes" INT, Accepted, "Bad pings forgiven by Triton's library.";
        "grpc-max-connection-age" INT, Yes, "Milliseconds after which a connection is asked to close.";
        "grpc-max-connection-age-grace" INT, Yes, "Milliseconds after that until it is closed.";
        "grpc-restricted-protocol" Takes::Value("<string>:<string>=<string>"), Yes, "Calls that want metadata: <protocols>:<key>=<value>.";
    }
    "Metrics": {
        "allow-metrics" BOOL, Yes, "Whether to listen for metrics. Default is true.";
        "allow-gpu-metrics" BOOL, Yes, "Whether metrics of GPUs are shown. Default is true.";
        "allow-cpu-metrics" BOOL, Yes, "Whether metrics of the processor are shown. Default is true.";
        "metrics-address" TEXT, Yes, "Address that metrics listen at. Default is that of HTTP.";
        "metrics-port" INT, Yes, "Port that metrics listen at. Default is 8002.";
        "metrics-use-ssl" BOOL, Yes, "Whether the metrics port uses TLS (https), and the page at whichever port it is. Default is false.";
        "metrics-use-ssl-mutual" BOOL, Yes, "Whether the metrics port uses TLS and asks clients for a certificate. Default is false.";
        "metrics-server-cert" TEXT, Yes, "File of the server's certificate, PEM. Read again when it changes.";
        "metrics-server-key" TEXT, Yes, "File of the server's private key, PEM. Read again when it changes.";
        "metrics-root-cert" TEXT, Yes, "File of the root certificates that clients are checked against, PEM. Read again when it changes.";
        "metrics-interval-ms" Takes::Value("<float>"), Yes, "Interval in milliseconds at which metrics of GPUs are taken. Those of the processor are taken when they are asked for, at most once in that time. Default is 2000.";
        "metrics-config" Takes::Value("<string>=<string>"), Yes, "A setting of metrics: counter_latencies=false, summary_latencies=true, summary_quantiles=<quantile>:<error>,…, histogram_latencies=true.";
    }
    "Page": {
        "ui" BOOL, Yes, "Whether the server's page for browsers is shown: at / of the metrics port, for users of this host. Default is true where metrics are.";
        "ui-address" TEXT, Yes, "Address of a port of the page's own, which takes calls of all who reach it. Default is 127.0.0.1 if --ui-port is given, else the page has no port of its own.";
        "ui-port" INT, Yes, "Port of the page's own. Default is 8003 if --ui-address is given.";
        "ui-host" TEXT, Yes, "A name under which browsers open the page, besides addresses, localhost and this machine's name. May be given several times.";
    }
    "Memory": {
        "memory-budget" BYTES, Yes, "Bytes that all clients together may make the server hold: bodies, answers that are not read, open calls. Default is half of the memory of the host or of the control group, or a third of what ulimit -v leaves.";
        "memory-budget-per-peer" BYTES, Yes, "The same for one user of this host, or one address. Default is seven eighths of --memory-budget.";
        "memory-budget-per-connection" BYTES, Yes, "The same for one connection. Default is --memory-budget-per-peer.";
    }
    "Shared Memory": {
        "shm-trust" TEXT, Yes, "Which shared memory objects a client may register: 'peer', those that its own user could open, or 'any', all that the server can open, as in Triton. Default is 'peer'.";
        "shm-key-prefix" TEXT, Yes, "Objects whose keys begin so may be registered by every client. May be given several times.";
        "shm-scope" TEXT, Yes, "Which regions a client reaches by name: 'own', those that its own user registered, or 'all', as in Triton. Default is 'own'.";
        "allow-client-shm" BOOL, Yes, "Whether clients may register shared memory. Default is true.";
        "session-socket" Takes::Value("<path>"), Yes, "Unix socket where programs of this host borrow shared memory; 'off' for none. Default is session.sock and session-<HTTP port>.sock in $XDG_RUNTIME_DIR/nerite, else in /tmp/nerite-<uid>.";
        "session-allow-uid" INT, Yes, "Number of a user besides the server's own and root who may open sessions. May be repeated.";
        "sessions-per-user-max" INT, Yes, "Of the 256 sessions, those of one user, unless it is the server's own. Default is 64.";
        "session-hello-timeout" SECONDS, Yes, "Seconds for the first message of a session, Hello; 0 for no limit. Default is 10.";
        "lease-max-bytes" INT, Yes, "Bytes lent to all sessions together. Default is half of the memory of the host or of the control group.";
        "session-max-bytes" INT, Yes, "Bytes lent to one session. Default is half of --lease-max-bytes.";
    }
    "GPU": {
        "cuda-library" Takes::Value("<path>"), Yes, "Library of the CUDA driver; 'none' for no GPU. Default is $NERITE_CUDA_LIBRARY, else the system's.";
        "pinned-memory-pool-byte-size" INT, Yes, "Bytes of page-locked memory that tensors pass through between host and device; locked when first needed. Default is 268435456.";
        "page-lock-client-memory" BOOL, Yes, "Whether system regions and leases are page-locked on a host with a GPU. Default is true.";
        "min-supported-compute-capability" Takes::Value("<float>"), Yes, "Oldest GPU that models run on. Default is 6.0.";
    }
    "Backend": {
        "backend-directory" TEXT, Yes, "Directory of backends, compiled or a Python class; compiled ones win over built-in ones of the same name. Default is /opt/tritonserver/backends, where they do not.";
        "backend-config" Takes::Value("<string>,<string>=<string>"), Yes, "A setting of a backend: <backend>,<setting>=<value>.";
        "onnxruntime-library" Takes::Value("<path>"), Yes, "Shared library of ONNX Runtime; 'none' for the embedded engine.";
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
        "rate-limit-resource" Takes::Value("<string>:<integer>:<integer>"), Yes, "How much there is of a resource: <name>:<count>, or <name>:<count>:<device>. Without any, as much as the neediest instance needs.";
        "host-policy" Takes::Value("<string>,<string>=<string>"), Yes, "Cores of the instances whose group has this host_policy, or of kind cpu or gpu_<id>: <policy>,cpu-cores=<first>-<last>[,…], or <policy>,numa-node=<number> for the cores and the memory of a node.";
    }
    "Accepted from Triton": {
        "cache-directory" TEXT, Accepted, "Directory of Triton's cache libraries.";
        "enable-peer-access" BOOL, Accepted, "Direct access between GPUs.";
        "cuda-memory-pool-byte-size" TEXT, Accepted, "Bytes of device memory per GPU in Triton; nerite allocates none.";
        "cuda-virtual-address-size" TEXT, Accepted, "Address space per GPU in Triton.";
        "model-load-gpu-limit" TEXT, Accepted, "Share of a GPU's memory for models; a model's own limit is its parameter gpu_mem_limit.";
        "buffer-manager-thread-count" INT, Accepted, "Threads that copy tensors in Triton.";
        "repoagent-directory" TEXT, Accepted, "Directory of Triton's repository agents.";
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
