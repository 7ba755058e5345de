//! What does every call need?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nerite_budget::{Account, Budgets, Limits};
use nerite_engine::Engine;
use nerite_locks::Mutex;
use nerite_request::{Peer, RequestTrace, Status};
use nerite_shm::{LeaseLimits, Pools, Registries, random_bits};
use nerite_trace::{TraceConfig, Tracer};
use nerite_watchdog::{FairQueue, Flow};
use nerite_wire::prometheus::{HostMetrics, SessionSocketMetrics};
use regex::Regex;

use crate::access::{self, Category, Protocol, Restriction};
use crate::logging::LogSwitches;
use crate::region_rules::RegionRules;

/// The server as one of its clients sees it. Cheap to clone.
#[derive(Clone)]
pub struct Api(pub(crate) Arc<Inner>, pub(crate) Arc<Client>);

/// Who makes the calls, over one connection.
pub(crate) struct Client {
    peer: Peer,
    /// What it makes the server hold.
    account: Account,
    /// What it uses of the front ends' threads.
    flow: Flow,
    /// Where its requests are noted, whatever the trace settings say.
    pub(crate) trace: Option<Arc<RequestTrace>>,
}

pub(crate) struct Inner {
    /// 32 hexadecimal digits that no other server process has.
    pub server_id: String,
    pub engine: Arc<Engine>,
    pub regions: Registries<Peer>,
    pub pools: Arc<Pools>,
    pub log: Arc<LogSwitches>,
    pub tracer: Tracer,
    pub options: Options,
    pub stopping: AtomicBool,
    pub under_way: Arc<AtomicUsize>,
    pub host: Mutex<Option<HostMetrics>>,
    pub session_socket: Mutex<Option<SessionSocketMetrics>>,
    pub budgets: Budgets,
    turns: FairQueue,
}

impl Inner {
    fn client(&self, peer: Peer) -> Client {
        let name = peer.to_string();
        let (account, flow) = (self.budgets.open(&name), self.turns.open(&name));
        // Who has to end because of memory is not to keep it until others had their turns.
        let urgent = flow.clone();
        account.on_shed(move || urgent.make_urgent());
        Client { peer, account, flow, trace: None }
    }
}

/// What the operator decided about calls.
#[derive(Debug, Default)]
pub struct Options {
    /// The server's name in its metadata.
    pub id: String,
    /// The server's version in its metadata.
    pub version: String,
    /// Calls that want a header.
    pub restrictions: Vec<Restriction>,
    /// Whose regions a client reaches, and which objects it may name.
    pub regions: RegionRules,
    /// HTTP headers that become parameters of a request.
    pub http_forward: Option<Regex>,
    /// gRPC metadata that become parameters of a request.
    pub grpc_forward: Option<Regex>,
    /// Largest JSON part, JSON input, raw body and decompressed body over HTTP, and decompressed message over gRPC, in bytes.
    pub http_input_bytes_max: u64,
    /// Whether a load request may bring files, `--allow-model-upload`. Who may send a Python model runs code.
    pub allow_model_upload: bool,
    /// Whether every known model must be ready before the server is.
    pub strict_readiness: bool,
    /// Whether metrics show the sums of durations.
    pub counter_latencies: bool,
    /// What is traced, until clients change it.
    pub trace: TraceConfig,
    /// How much clients may make the server hold.
    pub budgets: Limits,
}

/// What Triton's clients are told by a server that stops, or whose start failed.
const NOT_READY: &str = "Server not ready";

/// A header of one of these names would shadow a parameter that has a meaning.
const RESERVED_HEADERS: [&str; 7] =
    ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"];

impl Api {
    /// The calls over this engine, these regions and these log switches.
    pub fn new(engine: Arc<Engine>, regions: Registries<Peer>, log: Arc<LogSwitches>, options: Options) -> Api {
        Api::with_pools(engine, regions, Pools::new(LeaseLimits::default()), log, options)
    }

    /// As [`Api::new`], lending from these pools.
    pub fn with_pools(
        engine: Arc<Engine>,
        regions: Registries<Peer>,
        pools: Arc<Pools>,
        log: Arc<LogSwitches>,
        options: Options,
    ) -> Api {
        let (stopping, host) = (AtomicBool::new(false), Mutex::default());
        let tracer = Tracer::new(options.trace.clone());
        // Without randomness the server has no identity, and says so by naming none.
        let server_id = random_bits().map(|bits| format!("{bits:032x}")).unwrap_or_default();
        let (under_way, session_socket) = (Arc::default(), Mutex::default());
        let budgets = Budgets::new(options.budgets);
        let inner = Inner {
            server_id,
            engine,
            regions,
            pools,
            log,
            tracer,
            options,
            stopping,
            under_way,
            host,
            session_socket,
            budgets,
            turns: FairQueue::default(),
        };
        let client = inner.client(Peer::own());
        Api(Arc::new(inner), Arc::new(client))
    }

    /// The same server as `peer` sees it. A front end makes one for each connection; until then the peer is the user who runs
    /// the server.
    pub fn for_peer(&self, peer: Peer) -> Api {
        Api(Arc::clone(&self.0), Arc::new(self.0.client(peer)))
    }

    /// The same client, whose requests are all noted in this trace.
    #[must_use]
    pub fn noting(&self, trace: Arc<RequestTrace>) -> Api {
        let (peer, account, flow) = (self.peer().clone(), self.account().clone(), self.flow().clone());
        Api(Arc::clone(&self.0), Arc::new(Client { peer, account, flow, trace: Some(trace) }))
    }

    /// What the connection makes the server hold is charged here.
    pub fn account(&self) -> &Account {
        &self.1.account
    }

    /// What the tasks of the connection use of the front ends' threads is charged here.
    pub fn flow(&self) -> &Flow {
        &self.1.flow
    }

    /// The order in which the front ends' threads serve connections.
    pub fn turns(&self) -> &FairQueue {
        &self.0.turns
    }

    /// Bytes that all clients make the server hold.
    pub fn held_bytes(&self) -> u64 {
        self.0.budgets.counts().used
    }

    /// The client who makes the calls.
    pub fn peer(&self) -> &Peer {
        &self.1.peer
    }

    /// This server process, as its metadata and its sessions name it; empty if it could not be told apart from others.
    pub fn server_id(&self) -> &str {
        &self.0.server_id
    }

    /// Whether a call of `category` may go on; `header` looks one up by its lower-case name.
    pub fn allow<'h>(
        &self,
        protocol: Protocol,
        category: Category,
        header: impl Fn(&str) -> Option<&'h [u8]>,
    ) -> Result<(), Status> {
        category.begins();
        if self.0.options.restrictions.is_empty() {
            return Ok(());
        }
        access::check(&self.0.options.restrictions, protocol, category, header)
    }

    /// Largest JSON part, JSON input and raw body over HTTP, in bytes.
    pub fn http_input_bytes_max(&self) -> u64 {
        self.0.options.http_input_bytes_max
    }

    /// Largest decompressed body over HTTP and decompressed message over gRPC, in bytes.
    pub fn inflated_bytes_max(&self) -> u64 {
        self.0.options.http_input_bytes_max
    }

    /// Whether any header becomes a parameter on this protocol, so that others need not ask for each.
    pub fn forwards_headers(&self, protocol: Protocol) -> bool {
        self.forward(protocol).is_some()
    }

    /// Whether headers of this name become string parameters of an inference request. Err: the name is reserved.
    pub fn forwards_header(&self, protocol: Protocol, name: &str) -> Result<bool, Status> {
        if !self.forward(protocol).is_some_and(|pattern| pattern.is_match(name)) {
            return Ok(false);
        }
        let lower = name.to_ascii_lowercase();
        if RESERVED_HEADERS.contains(&lower.as_str()) || lower.starts_with("triton_") {
            return Err(Status::invalid(format!(
                "Header '{name}' is reserved for Triton usage and cannot be forwarded."
            )));
        }
        Ok(true)
    }

    fn forward(&self, protocol: Protocol) -> Option<&Regex> {
        match protocol {
            Protocol::Http => self.0.options.http_forward.as_ref(),
            Protocol::Grpc => self.0.options.grpc_forward.as_ref(),
        }
    }

    /// From now on nothing new is taken: readiness falls, and only what is under way goes on.
    pub fn begin_stopping(&self) {
        self.0.stopping.store(true, Ordering::Release);
    }

    /// The server takes no new work.
    pub fn stopping(&self) -> bool {
        self.0.stopping.load(Ordering::Acquire)
    }

    /// What every call but inference and health asks first.
    pub(crate) fn check_running(&self) -> Result<(), Status> {
        if self.stopping() { Err(Status::unavailable(NOT_READY)) } else { self.check_started() }
    }

    /// What inferences and questions for a model's readiness ask first: a server whose start failed has no models.
    pub(crate) fn check_started(&self) -> Result<(), Status> {
        if self.0.engine.has_failed() { Err(Status::unavailable(NOT_READY)) } else { Ok(()) }
    }
}
