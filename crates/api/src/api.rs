//! What do all calls share?

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use nerite_access::Tokens;
use nerite_budget::{Account, PeerAccount, PeerCharge};
use nerite_engine::Engine;
use nerite_locks::Mutex;
use nerite_request::{Peer, RequestTrace, SequenceOwner, SequenceScope, Status};
use nerite_shm::{LeaseLimits, Pools, Registries, random_bits};
use nerite_trace::{TraceConfig, Tracer};
use nerite_watchdog::{FairQueue, Flow};
use nerite_wire::prometheus::{HostMetrics, SessionSocketMetrics};
use regex::Regex;

use crate::access::{Category, Protocol, Refused, Restriction};
use crate::caller::{Caller, FrontEnd};
use crate::gpus::GpuFigures;
use crate::logging::LogSwitches;
use crate::refusals::{RefusalReason, Refusals, of_entry};
use crate::region_rules::RegionRules;

/// The server's calls, for one client. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    pub(crate) inner: Arc<Inner>,
    pub(crate) client: Arc<Client>,
    /// The client of a call over HTTP or gRPC, as far as it is known.
    pub(crate) caller: Option<Arc<Caller>>,
}

/// The client that makes the calls, over one connection.
pub(crate) struct Client {
    peer: Peer,
    /// The owner of its sequences.
    owner: SequenceOwner,
    /// Counts the bytes that the server holds for this connection.
    pub(crate) account: Account,
    /// The account for what the client makes the server keep after its connections are closed. Few clients need one.
    retained: OnceLock<PeerAccount>,
    /// The connection's use of the front threads.
    pub(crate) flow: Flow,
    /// The trace of all its requests, independent of the trace settings.
    pub(crate) trace: Option<Arc<RequestTrace>>,
    /// The record of the call that a session makes now. Over HTTP and gRPC each request has its own record.
    pub(crate) session_caller: ArcSwapOption<Caller>,
}

/// Returns the load of the machine. It is called whenever the load is read, on front threads too.
pub type HostMeter = Box<dyn Fn() -> HostMetrics + Send + Sync>;

pub(crate) struct Inner {
    /// 32 hexadecimal digits, unique for this server process.
    pub server_id: String,
    pub engine: Arc<Engine>,
    pub regions: Registries<Peer>,
    pub pools: Arc<Pools>,
    pub log: Arc<LogSwitches>,
    pub tracer: Tracer,
    pub options: Options,
    pub draining: AtomicBool,
    pub stopping: AtomicBool,
    pub under_way: Arc<AtomicUsize>,
    /// Measures the load of the machine. Set if the operator wants that.
    pub host: OnceLock<HostMeter>,
    pub gpus: Arc<GpuFigures>,
    pub session_socket: Mutex<Option<SessionSocketMetrics>>,
    pub refusals: Refusals,
    turns: FairQueue,
}

impl Inner {
    fn client(&self, peer: Peer) -> Client {
        let name = peer.to_string();
        let (account, flow) = (self.engine.budgets().open(&name), self.turns.open(&name));
        // A client that is ended because of the memory it holds must not wait for its turn on a front thread.
        let urgent = flow.clone();
        account.on_shed(move || urgent.make_urgent());
        let (owner, retained) = (self.options.sequence_scope.owner_of(&peer), OnceLock::new());
        Client { peer, owner, account, retained, flow, trace: None, session_caller: ArcSwapOption::empty() }
    }
}

/// The operator's settings for calls.
#[derive(Debug, Default)]
pub struct Options {
    /// The server's name in its metadata.
    pub id: String,
    /// The server's version in its metadata.
    pub version: String,
    /// When the process started, in seconds since 1970. `None` if the system does not tell.
    pub started_s: Option<f64>,
    /// Calls that need a header.
    pub restrictions: Vec<Restriction>,
    /// The tokens and what they allow; `None` if the server has no tokens.
    pub tokens: Option<Tokens>,
    /// Whether each request is a line of the log.
    pub log_access: bool,
    /// Whether health probes are lines of the log as well, where each request is.
    pub log_access_health: bool,
    /// Whose regions a client can use, and which shared memory objects it may register.
    pub regions: RegionRules,
    /// Which clients share their sequences: `--sequence-scope`.
    pub sequence_scope: SequenceScope,
    /// HTTP headers that become parameters of a request.
    pub http_forward: Option<Regex>,
    /// gRPC metadata that become parameters of a request.
    pub grpc_forward: Option<Regex>,
    /// Largest JSON body or part, JSON input, raw body and decompressed body over HTTP, and decompressed message over gRPC, in bytes.
    pub http_input_bytes_max: u64,
    /// Whether the server is ready only if every known model is.
    pub strict_readiness: bool,
    /// Whether metrics show the sums of durations.
    pub counter_latencies: bool,
    /// The trace settings at the start. Clients may change them.
    pub trace: TraceConfig,
}

/// Triton's text for a server that stops or whose start failed.
const NOT_READY: &str = "Server not ready";

/// The error of readiness while the server drains.
const DRAINING: &str = "Server draining: it serves requests until it stops, send new ones elsewhere";

/// The header with the secret of a token.
pub(crate) const AUTHORIZATION: &str = "authorization";
/// The header in which a proxy says for which client it asks.
pub(crate) const FORWARDED_FOR: &str = "x-forwarded-for";

/// Headers with these names are not forwarded, because they would replace parameters that have a meaning.
const RESERVED_HEADERS: [&str; 7] =
    ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"];

impl Api {
    /// The calls of a server with this engine, these regions and these log switches.
    pub fn new(engine: Arc<Engine>, regions: Registries<Peer>, log: Arc<LogSwitches>, options: Options) -> Api {
        Api::with_pools(engine, regions, Pools::new(LeaseLimits::default()), log, options)
    }

    /// As [`Api::new`], but sessions get their leases from `pools`.
    pub fn with_pools(
        engine: Arc<Engine>,
        regions: Registries<Peer>,
        pools: Arc<Pools>,
        log: Arc<LogSwitches>,
        options: Options,
    ) -> Api {
        let (draining, stopping, host) = (AtomicBool::new(false), AtomicBool::new(false), OnceLock::new());
        let tracer = Tracer::new(options.trace.clone());
        // Without random bits the server has no id, and reports none.
        let server_id = random_bits().map(|bits| format!("{bits:032x}")).unwrap_or_default();
        let (under_way, session_socket, gpus) = (Arc::default(), Mutex::default(), Arc::default());
        let inner = Inner {
            server_id,
            engine,
            regions,
            pools,
            log,
            tracer,
            options,
            draining,
            stopping,
            under_way,
            host,
            gpus,
            session_socket,
            refusals: Refusals::default(),
            turns: FairQueue::default(),
        };
        let client = inner.client(Peer::own());
        Api { inner: Arc::new(inner), client: Arc::new(client), caller: None }
    }

    /// The same server, called by `peer`. A front end makes one for each connection. Without this call the peer is the user who runs the server.
    pub fn for_peer(&self, peer: Peer) -> Api {
        Api { inner: Arc::clone(&self.inner), client: Arc::new(self.inner.client(peer)), caller: None }
    }

    /// The same client. All its requests are recorded in this trace.
    #[must_use]
    pub fn with_trace(&self, trace: Arc<RequestTrace>) -> Api {
        let (peer, account, flow) = (self.peer().clone(), self.account().clone(), self.flow().clone());
        let (owner, retained) = (self.client.owner, OnceLock::new());
        let client =
            Client { peer, owner, account, retained, flow, trace: Some(trace), session_caller: ArcSwapOption::empty() };
        Api { inner: Arc::clone(&self.inner), client: Arc::new(client), caller: self.caller.clone() }
    }

    /// The account that is charged for the bytes that the server holds for the connection.
    pub fn account(&self) -> &Account {
        &self.client.account
    }

    /// The account that is charged for what the client makes the server keep after its connections are closed: states of sequences, names of regions,
    /// and configurations of models.
    pub(crate) fn retained(&self) -> &PeerAccount {
        self.client.retained.get_or_init(|| self.inner.engine.budgets().of_peer(&self.client.peer.to_string()))
    }

    /// Charges the client for bytes that it makes the server keep.
    pub(crate) fn charge_retained(&self, bytes: usize) -> Result<PeerCharge, Status> {
        self.retained().charge(bytes).map_err(|over| Status::unavailable(over.to_string()))
    }

    /// The client and its connection, as numbers for queues that it shares with others, and the owner of its sequences.
    pub(crate) fn number(&self) -> nerite_request::Client {
        let flow = &self.client.flow;
        nerite_request::Client { peer: flow.peer_number(), flow: flow.number(), owner: self.client.owner }
    }

    /// The flow that is charged for the connection's use of the front threads.
    pub fn flow(&self) -> &Flow {
        &self.client.flow
    }

    /// The order in which front threads serve connections.
    pub fn turns(&self) -> &FairQueue {
        &self.inner.turns
    }

    /// The refused requests, by reason. `budget` has those that were refused for their memory.
    pub(crate) fn refusals(&self, budget: &nerite_budget::Counts) -> Vec<(&'static str, u64)> {
        // A connection that has to end because of what it holds gets this as the answer to its request.
        let shed: u64 = budget.shed.iter().map(|(_, count)| count).sum();
        self.inner.refusals.report().chain([("memory", budget.refused + shed)]).collect()
    }

    /// Counts a refused request.
    pub(crate) fn count_refusal(&self, refusal: RefusalReason) {
        self.inner.refusals.count(refusal);
    }

    /// Counts a request that was refused because of its headers, its token or a quota.
    pub(crate) fn count_refused_entry(&self, refused: &Refused) {
        if let Some(refusal) = of_entry(refused.status.code) {
            self.count_refusal(refusal);
        }
    }

    /// Bytes that the server holds for all clients.
    pub fn held_bytes(&self) -> u64 {
        self.inner.engine.budgets().counts().used
    }

    /// The client who makes the calls.
    pub fn peer(&self) -> &Peer {
        &self.client.peer
    }

    /// The id of this server process in its metadata and its sessions. Empty if there were no random bits.
    pub fn server_id(&self) -> &str {
        &self.inner.server_id
    }

    /// Whether a call of `category` is allowed. `changes` says that it may change something. `named` says for the log what the client asked for: a
    /// method and a path, or an RPC. `header` looks up a header by its lower-case name. Returns the server as this client and its token may use it.
    pub fn allow<'h>(
        &self,
        protocol: Protocol,
        category: Category,
        changes: bool,
        named: impl FnOnce() -> String,
        header: impl Fn(&str) -> Option<&'h [u8]>,
    ) -> Result<Option<Api>, Refused> {
        let front = match protocol {
            Protocol::Http => FrontEnd::Http,
            Protocol::Grpc => FrontEnd::Grpc,
        };
        let caller = self.enter(front, &[category], changes, named, header)?;
        Ok(caller.map(|caller| self.with_caller(caller)))
    }

    /// Largest JSON body or part, JSON input and raw body over HTTP, in bytes.
    pub fn http_input_bytes_max(&self) -> u64 {
        self.inner.options.http_input_bytes_max
    }

    /// Largest decompressed body over HTTP and decompressed message over gRPC, in bytes.
    pub fn inflated_bytes_max(&self) -> u64 {
        self.inner.options.http_input_bytes_max
    }

    /// Whether any header becomes a parameter on this protocol. If not, the headers need not be looked at.
    pub fn forwards_headers(&self, protocol: Protocol) -> bool {
        self.forward(protocol).is_some()
    }

    /// Whether headers of this name become string parameters of an inference request. Err: the name is reserved.
    pub fn forwards_header(&self, protocol: Protocol, name: &str) -> Result<bool, Status> {
        if !self.forward(protocol).is_some_and(|pattern| pattern.is_match(name)) {
            return Ok(false);
        }
        let lower = name.to_ascii_lowercase();
        // Models and readers of their logs must not learn the secrets of tokens.
        if lower == AUTHORIZATION && self.inner.options.tokens.is_some() {
            return Ok(false);
        }
        if RESERVED_HEADERS.contains(&lower.as_str()) || lower.starts_with("triton_") {
            return Err(Status::invalid(format!(
                "Header '{name}' is reserved for Triton usage and cannot be forwarded."
            )));
        }
        Ok(true)
    }

    fn forward(&self, protocol: Protocol) -> Option<&Regex> {
        match protocol {
            Protocol::Http => self.inner.options.http_forward.as_ref(),
            Protocol::Grpc => self.inner.options.grpc_forward.as_ref(),
        }
    }

    /// Whether the server is stopping, and takes no new work.
    pub fn stopping(&self) -> bool {
        self.inner.stopping.load(Ordering::Acquire)
    }

    /// Whether the server drains: it is not ready and serves everything.
    pub fn draining(&self) -> bool {
        self.inner.draining.load(Ordering::Acquire)
    }

    /// Refuses questions for readiness while the server drains or stops, or if its start failed.
    pub(crate) fn check_staying(&self) -> Result<(), Status> {
        self.check_running()?;
        if self.draining() { Err(Status::unavailable(DRAINING)) } else { Ok(()) }
    }

    /// Refuses calls while the server is stopping or if its start failed. Inferences ask [`Api::check_started`]
    /// instead. The server's metadata is never refused.
    pub(crate) fn check_running(&self) -> Result<(), Status> {
        if self.stopping() { Err(Status::unavailable(NOT_READY)) } else { self.check_started() }
    }

    /// Refuses inferences if the server's start failed, because it has no models then.
    pub(crate) fn check_started(&self) -> Result<(), Status> {
        if self.inner.engine.has_failed() { Err(Status::unavailable(NOT_READY)) } else { Ok(()) }
    }
}
