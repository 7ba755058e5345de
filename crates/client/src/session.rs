//! How does a program use memory that the server lends?
//!
//! ```text
//!   Session ── borrow ──► Lease: memory of the server, mapped here
//!      │                    fill it in place, name it in a request, over any protocol
//!      ├────── infer ────► Response: outputs in the lease you named, or in one the server chose
//!      └── Request::output_leased ── over HTTP or gRPC ──► the same
//! ```

mod calls;
mod fetch;
mod lease;
mod limits;
mod link;
mod mapped;
mod operator;
mod options;
mod place;
mod returns;
mod socket;
mod tags;
mod terms;
mod trust;
mod waiter;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use nerite_request::{Code, Status};
use nerite_wire::proto::session::{VERSION, read_answer, v1};
use prost::Message as _;
use v1::client_message::Call;
use v1::server_message::Answer as Reply;

use crate::Error;
use crate::report::SystemRegionReport;
use calls::Calls;
pub(crate) use calls::{Answer, OutputLease};
use link::Shared;
use mapped::Mapped;
use returns::Returns;
use socket::{Packet, Socket};
use tags::Tags;

pub use lease::Lease;
pub use options::SessionOptions;
pub(crate) use place::paths_of;
pub use place::{default_path, session_server};
pub use socket::SessionServer;
pub use terms::{SessionTerms, SessionUse};
pub(crate) use waiter::Waiter;

/// A connection to a server on this host, over its session socket. Cloning is cheap. Leases are returned and regions are unregistered when the last clone and
/// the last lease are dropped, or when the process ends.
///
/// ```no_run
/// use nerite_client::{DataType, Request, Session};
///
/// # async fn call() -> Result<(), nerite_client::Error> {
/// let session = Session::connect("/run/user/1000/nerite/session.sock").await?;
/// let lease = session.borrow(256).await?;
/// lease.edit(0, 16, |mut numbers: nerite_client::CellsMut<'_, i32>| numbers.fill(1))?;
/// lease.edit(64, 16, |mut numbers: nerite_client::CellsMut<'_, i32>| numbers.fill(2))?;
/// let request = Request::new("simple")
///     .input_in_window("INPUT0", DataType::Int32, &[1, 16], lease.window(0, 64))
///     .input_in_window("INPUT1", DataType::Int32, &[1, 16], lease.window(64, 64))
///     .output_in_window("OUTPUT0", lease.window(128, 64));
/// session.infer(&request).await?;
/// assert_eq!(lease.view::<i32>(128, 16)?.to_vec(), [3; 16]);
///
/// // An output whose size is not known beforehand: the server chooses a lease for it.
/// let response = session.infer_leased(&request, &["OUTPUT1"]).await?;
/// assert_eq!(response.output("OUTPUT1")?.as_slice::<i32>()?, [-1; 16]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Session(Arc<Shared>);

impl Session {
    /// Opens a session over the socket at `path`, with a server that runs as this program's user or as root. Call it inside a tokio runtime.
    pub async fn connect(path: impl AsRef<Path>) -> Result<Session, Error> {
        Session::connect_to(path, &SessionOptions::default()).await
    }

    /// As [`Session::connect`], with headers for calls that the operator restricted.
    pub async fn connect_with(path: impl AsRef<Path>, headers: &[(&str, &str)]) -> Result<Session, Error> {
        let with = |options: SessionOptions, &(name, value): &(&str, &str)| options.header(name, value);
        Session::connect_to(path, &headers.iter().fold(SessionOptions::default(), with)).await
    }

    /// As [`Session::connect`], for an operator; see [`SessionOptions::operator`].
    pub async fn connect_as_operator(path: impl AsRef<Path>) -> Result<Session, Error> {
        Session::connect_to(path, &SessionOptions::default().operator()).await
    }

    /// As [`Session::connect`], with further options. Nothing is sent before the server is known to be trusted.
    pub async fn connect_to(path: impl AsRef<Path>, options: &SessionOptions) -> Result<Session, Error> {
        let path = path.as_ref();
        let socket = place::connect(path, options)?;
        let headers = options.all_headers();
        Session::open(path, socket, v1::Hello { headers, operator: options.operator, ..v1::Hello::default() }).await
    }

    async fn open(path: &Path, socket: Socket, hello: v1::Hello) -> Result<Session, Error> {
        let refused = |error: std::io::Error| place::not_connected(path, &error);
        let client = concat!("nerite-client ", env!("CARGO_PKG_VERSION")).to_owned();
        let hello = v1::Hello { version_min: VERSION, version_max: VERSION, client, ..hello };
        let call = v1::ClientMessage { id: 1, returned: Vec::new(), call: Some(Call::Hello(hello)) };
        let sent = socket.send(&call.encode_to_vec()).await;
        let mut receiver = calls::receiver();
        // A server that refuses the session may close it before it reads this packet. Its error can still be received.
        let received = socket.receive(&mut receiver).await;
        let packet = match (sent, received) {
            (Ok(()), received) => received.map_err(refused)?,
            (Err(_), Ok(packet)) if packet.bytes.is_some() => packet,
            (Err(error), _) => return Err(refused(error)),
        };
        let (terms, key) = read_welcome(packet)?;
        let endpoint = path.display().to_string();
        let (calls, mapped, returns, tags) =
            (Calls::new(receiver), Mapped::default(), Returns::default(), Tags::default());
        Ok(Session(Arc::new(Shared { socket, endpoint, terms, key, calls, mapped, returns, tags })))
    }

    /// The process id of the server. `None` if the process is not visible in this PID namespace. Call it inside a tokio runtime.
    pub fn server_pid(&self) -> Option<u32> {
        self.0.socket.peer().ok()?.pid
    }

    /// The server's answer to Hello.
    pub fn terms(&self) -> &SessionTerms {
        &self.0.terms
    }

    /// Whether the server can place outputs of other protocols in leases of this session.
    pub(crate) fn places(&self) -> bool {
        !self.0.key.is_empty()
    }

    /// Borrows at least `byte_size` bytes of memory of the server. They are zero, or have the content that this session left in them before.
    pub async fn borrow(&self, byte_size: usize) -> Result<Lease, Error> {
        let call = Call::Borrow(v1::Borrow { byte_size: byte_size as u64 });
        match self.call(call).await? {
            Answer::Lease(lease) => Ok(lease),
            other => Err(other.unexpected()),
        }
    }

    /// Registers a POSIX shared memory object under a name of this session only.
    pub async fn register_system_region(&self, name: &str, key: &str, offset: u64, size: u64) -> Result<(), Error> {
        let (name, key) = (name.to_owned(), key.to_owned());
        self.done(Call::RegisterSystem(v1::RegisterSystem { name, key, offset, byte_size: size })).await
    }

    /// Unregisters one of the session's regions, or all of them if `name` is empty.
    pub async fn unregister_system_region(&self, name: &str) -> Result<(), Error> {
        self.done(Call::UnregisterSystem(v1::UnregisterSystem { name: name.to_owned() })).await
    }

    /// One of the session's regions, or all of them if `name` is empty.
    pub async fn system_regions(&self, name: &str) -> Result<Vec<SystemRegionReport>, Error> {
        let call = Call::SystemStatus(v1::SystemStatus { name: name.to_owned() });
        let Answer::Reply(Reply::Regions(regions)) = self.call(call).await? else {
            return Err(Error::Answer("no regions in the answer".to_owned()));
        };
        let report = |v1::Region { name, key, offset, byte_size }| SystemRegionReport { name, key, offset, byte_size };
        Ok(regions.regions.into_iter().map(report).collect())
    }

    /// The memory that the session uses now.
    pub async fn in_use(&self) -> Result<SessionUse, Error> {
        let Answer::Reply(Reply::SessionReport(report)) = self.call(Call::SessionStatus(v1::SessionStatus {})).await?
        else {
            return Err(Error::Answer("no report in the answer".to_owned()));
        };
        Ok(SessionUse { leases: report.leases, bytes: report.bytes })
    }

    async fn done(&self, call: Call) -> Result<(), Error> {
        match self.call(call).await? {
            Answer::Reply(Reply::Done(_)) => Ok(()),
            other => Err(other.unexpected()),
        }
    }

    pub(crate) async fn call(&self, call: Call) -> Result<Answer, Error> {
        match self.send(call).await?.answer().await? {
            Answer::Reply(Reply::Error(error)) => Err(refusal(error)),
            answer => Ok(answer),
        }
    }

    pub(crate) async fn send(&self, call: Call) -> Result<Waiter, Error> {
        let mut waiting = waiter::begin(&self.0);
        self.transmit(std::slice::from_mut(&mut waiting), call).await?;
        Ok(waiting)
    }

    /// Sends a packet with this many calls. Each call is answered separately.
    pub(crate) async fn send_many(&self, call: Call, count: usize) -> Result<Vec<Waiter>, Error> {
        let mut waiting = waiter::begin_many(&self.0, count);
        self.transmit(&mut waiting, call).await?;
        Ok(waiting)
    }

    /// Sends the packet of these calls. Its id is that of the first one.
    async fn transmit(&self, waiting: &mut [Waiter], call: Call) -> Result<(), Error> {
        let id = waiting.first().map_or(0, Waiter::id);
        let returned = self.0.returns.take();
        let mut message = v1::ClientMessage { id, returned, call: Some(call) };
        let bytes = message.encode_to_vec();
        let max = self.0.terms.packet_bytes_max;
        if bytes.len() as u64 > max {
            self.0.returns.put_back(message.returned);
            let have = bytes.len();
            return Err(Error::Session(format!(
                "a message of {have} bytes, at most {max} fit; put its tensors in leases"
            )));
        }
        // A call that is dropped from here on is cancelled at the server as well, because the packet may have been sent.
        waiting.iter_mut().for_each(Waiter::expects_answers);
        let sent = match self.0.send_now(&message, &bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // The returned leases are sent with another packet, because packets that wait for room may overtake each other.
                self.0.returns.put_back(std::mem::take(&mut message.returned));
                self.0.socket.send(&message.encode_to_vec()).await
            }
            sent => sent,
        };
        match sent {
            // The server has closed the session. Its last message is received later, and gives a better error.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            sent => sent.map_err(|error| self.0.broken(&error.to_string()))?,
        }
        Ok(())
    }

    /// Sends a call without an answer, if the socket has room for it.
    pub(crate) fn send_unanswered(&self, call: Call) {
        let message = v1::ClientMessage { id: 0, returned: Vec::new(), call: Some(call) };
        // Best effort: if it cannot be sent, the end of the session has the same effect.
        let _ = self.0.socket.send_now(&message.encode_to_vec());
    }
}

/// The server's answer to Hello, and the session's key.
fn read_welcome(packet: Packet) -> Result<(SessionTerms, String), Error> {
    let bytes = packet.bytes.ok_or_else(|| Error::Answer("the server closed the session at once".to_owned()))?;
    match read_answer(bytes).map_err(|status| Error::Answer(status.message))?.answer {
        Some(Reply::Welcome(welcome)) => {
            let terms = SessionTerms {
                server_name: welcome.server_name,
                server_version: welcome.server_version,
                server_id: welcome.server_id,
                packet_bytes_max: welcome.packet_bytes_max,
                session_bytes_max: welcome.session_bytes_max,
            };
            Ok((terms, welcome.session_key))
        }
        Some(Reply::Error(error)) => Err(refusal(error)),
        _ => Err(Error::Answer("no welcome".to_owned())),
    }
}

pub(crate) fn refusal(error: v1::Error) -> Error {
    let code = match error.code {
        1 => Code::Cancelled,
        3 => Code::InvalidArg,
        5 => Code::NotFound,
        6 => Code::AlreadyExists,
        7 => Code::Denied,
        8 => Code::Exhausted,
        12 => Code::Unsupported,
        13 => Code::Internal,
        14 => Code::Unavailable,
        16 => Code::Unauthenticated,
        _ => Code::Unknown,
    };
    Error::Refused(Status::new(code, error.message))
}
