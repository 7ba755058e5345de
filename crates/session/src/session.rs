//! How does one session begin, run and end?

use std::collections::HashMap;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Buf;
use nerite_api::{Api, Category, Scope};
use nerite_budget::{Charge, Shed};
use nerite_listen::{BodyReadLimit, DescriptorsPassed, StopSignal, shed, sleep_or_forever};
use nerite_request::Status;
use nerite_request::report::ServerReport;
use nerite_wire::proto::session::{encode_answer, read_call, v1};
use tokio::time::{sleep, timeout};
use v1::client_message::Call;

use crate::answer::{CallOutcome, RESOURCE_EXHAUSTED, error_packet, packet};
use crate::in_flight::InFlight;
use crate::limits::{
    HEADERS_MAX, PACKET_BYTES_MAX, RESERVE_HELLO_WITHIN, STOPPING_POLL_INTERVAL, STOPPING_READ_WITHIN,
};
use crate::outbox::{Closed, Outbox};
use crate::prepared_table::PreparedTable;
use crate::session_table::{Full, Parts, SessionEntry};
use crate::socket::{Packet, Received, Receiver, Socket};
use crate::waiting::{Loaded, ModelWaits, WaitingCall};

/// One session: its client's names and memory, its requests, and the socket for its answers.
pub(crate) struct Session {
    /// First, because fields drop in order: the session must leave the table before its parts are dropped.
    pub(crate) entry: SessionEntry,
    pub(crate) api: Api,
    pub(crate) scope: Arc<Scope>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) socket: Arc<Socket>,
    pub(crate) stop: StopSignal,
    pub(crate) server: ServerReport,
    /// The headers of Hello. Names are in lower case.
    headers: HashMap<String, String>,
    headers_charge: Charge,
    pub(crate) prepared: PreparedTable,
    pub(crate) waits: ModelWaits,
}

/// What a session does next.
enum Event<'r> {
    Received(io::Result<Received<'r>>),
    /// The load of a call's model has ended.
    Loaded(WaitingCall, Loaded),
}

/// Why a session ended.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum End {
    #[error("the client has closed it")]
    Closed,
    #[error("the connection broke: {0}")]
    Broken(String),
    #[error("{0}")]
    Unsendable(#[from] Closed),
    #[error("the client did not keep to the protocol: {0}")]
    ProtocolError(String),
    #[error("no Hello came in time")]
    Silent,
    #[error("{0}")]
    Full(Full),
    #[error("{0}")]
    Shed(Shed),
    #[error("the server stops")]
    Stopped,
}

impl Session {
    pub(crate) fn new(
        api: Api,
        server: ServerReport,
        socket: Socket,
        entry: SessionEntry,
        stop: StopSignal,
    ) -> Session {
        let socket = Arc::new(socket);
        let (scope, in_flight) = (Arc::new(api.open_scope()), Arc::new(InFlight::new(api.account())));
        let outbox = Arc::new(Outbox::new(Arc::clone(&socket), api.account()));
        entry.set_parts(Parts {
            scope: Arc::clone(&scope),
            in_flight: Arc::clone(&in_flight),
            outbox: Arc::clone(&outbox),
        });
        Session {
            entry,
            api,
            scope,
            in_flight,
            outbox,
            socket,
            stop,
            server,
            headers: HashMap::new(),
            headers_charge: Charge::default(),
            prepared: PreparedTable::default(),
            waits: ModelWaits::default(),
        }
    }

    /// Serves the session from the first packet to the last. If there is a limit, the first packet must arrive within that time.
    pub(crate) async fn run(mut self, hello_within: Option<Duration>) -> End {
        let (account, mut stop) = (self.api.account().clone(), self.stop.clone());
        let (mut receiver, mut read_limit) = (Receiver::new(&account), BodyReadLimit::new(&account));
        let mut shed = pin!(shed(&account));
        let (outbox, socket) = (Arc::clone(&self.outbox), Arc::clone(&self.socket));
        let within = hello_limit(hello_within, self.entry.reserve().is_some());
        let end = {
            // These two futures are made once for the whole session, because making one takes a lock: of the outbox, or of the tasks that wait for the stop.
            let mut flush = pin!(outbox.flush());
            let mut stopped = pin!(stop.wait());
            let greeted = tokio::select! {
                biased;
                closed = &mut flush => Err(End::from(closed)),
                shed = &mut shed => Err(End::Shed(shed)),
                () = &mut stopped => Err(End::Stopped),
                () = sleep_or_forever(within) => Err(End::Silent),
                greeted = self.greet(&socket, &mut receiver) => greeted,
            };
            match greeted {
                Err(end) => Err(end),
                Ok(()) => loop {
                    let event = tokio::select! {
                        biased;
                        closed = &mut flush => break Err(End::from(closed)),
                        shed = &mut shed => break Err(End::Shed(shed)),
                        () = &mut stopped => break Ok(()),
                        (call, loaded) = self.waits.next() => Event::Loaded(call, loaded),
                        received = receive(&socket, &mut receiver, &mut read_limit) => Event::Received(received),
                    };
                    // The check of a large request takes long. Meanwhile, earlier answers are sent, and events that end the session still end it.
                    let taken = tokio::select! {
                        biased;
                        taken = self.handle(event) => taken,
                        closed = &mut flush => Err(End::from(closed)),
                        shed = &mut shed => Err(End::Shed(shed)),
                    };
                    if let Err(end) = taken {
                        break Err(end);
                    }
                },
            }
        };
        match &end {
            Ok(()) => {
                self.refuse_all_waiting();
                self.finish(&outbox).await;
            }
            Err(End::Shed(shed)) => outbox.end(error_packet(0, RESOURCE_EXHAUSTED, shed.to_string())),
            Err(_) => {}
        }
        self.close();
        end.err().unwrap_or(End::Stopped)
    }

    /// Handles the first packet, which identifies the client.
    async fn greet(&mut self, socket: &Socket, receiver: &mut Receiver) -> Result<(), End> {
        let message = self.read(socket.receive(receiver).await)?;
        let Some(Call::Hello(hello)) = message.call else {
            return Err(self.refuse(message.id, Status::invalid("the first message of a session is Hello")));
        };
        if hello.headers.len() > HEADERS_MAX {
            let text = format!("Hello brings {} headers, at most {HEADERS_MAX} are allowed", hello.headers.len());
            return Err(self.refuse(message.id, Status::invalid(text)));
        }
        if let Some(full) = self.entry.reserve().filter(|_| !hello.operator) {
            self.send(Some(error_packet(message.id, RESOURCE_EXHAUSTED, full.to_string())));
            return Err(End::Full(full));
        }
        let named = |(name, _): &(&String, &String)| name.eq_ignore_ascii_case("authorization");
        let authorization = hello.headers.iter().find(named).map(|(_, value)| value.as_bytes());
        match self.api.check_session_token(authorization).and_then(|()| self.welcome(&hello)) {
            Err(status) => return Err(self.refuse(message.id, status)),
            answer => self.send(packet(message.id, answer)),
        }
        log::debug!("session opened by '{}'", hello.client.escape_debug());
        self.entry.set_client(&hello.client);
        let bytes = hello.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.headers_charge = self.api.account().charge(bytes);
        self.headers = hello.headers.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
        Ok(())
    }

    async fn handle(&mut self, event: Event<'_>) -> Result<(), End> {
        match event {
            Event::Received(received) => self.take(received).await,
            Event::Loaded(call, loaded) => {
                self.resume(call, loaded).await;
                Ok(())
            }
        }
    }

    /// Handles one packet after Hello.
    async fn take(&mut self, received: io::Result<Received<'_>>) -> Result<(), End> {
        let v1::ClientMessage { id, returned, call } = self.read(received)?;
        let unknown = returned.iter().filter(|name| self.scope.give_back(name).is_err()).count();
        let answer = match call {
            Some(call) => {
                let outcome = self.carry_out(id, call).await;
                self.answer(id, outcome);
                return Ok(());
            }
            None if returned.is_empty() => Err(Status::unsupported("the server does not know this call")),
            None if unknown > 0 => {
                Err(Status::not_found(format!("{unknown} of {} names are no leases of this session", returned.len())))
            }
            None => Ok(v1::server_message::Answer::Done(v1::Done {}).into()),
        };
        self.report_forgotten();
        if id != 0 {
            self.send(packet(id, answer));
        }
        Ok(())
    }

    /// Answers a call that was carried out.
    pub(crate) fn answer(&self, id: u64, outcome: Result<CallOutcome, Status>) {
        let ended = !matches!(outcome, Ok(CallOutcome::UnderWay));
        self.api.end_session_call(ended.then(|| outcome.as_ref().map(drop)));
        self.report_forgotten();
        if id != 0 {
            self.send(packet(id, outcome));
        }
    }

    /// Checks that the access rules allow this session a call of all these categories. `changes` says that the call may change something.
    pub(crate) fn allow(&self, categories: &[Category], changes: bool) -> Result<(), Status> {
        let header = |name: &str| self.headers.get(name).map(String::as_bytes);
        Ok(self.api.allow_session(categories, changes, header)?)
    }

    fn read(&self, received: io::Result<Received<'_>>) -> Result<v1::ClientMessage, End> {
        match received {
            Ok(Received::Short(bytes)) => self.decode(bytes),
            Ok(Received::Long(bytes)) => self.decode(bytes),
            Ok(Received::End) => Err(End::Closed),
            Ok(Received::TooLong(len)) => {
                let text =
                    format!("a packet has {len} bytes, at most {PACKET_BYTES_MAX} are allowed; put tensors in leases");
                Err(self.refuse(0, Status::invalid(text)))
            }
            Err(error) if DescriptorsPassed::is(&error) => Err(self.refuse(0, Status::invalid(error.to_string()))),
            Err(error) => Err(End::Broken(error.to_string())),
        }
    }

    fn decode(&self, bytes: impl Buf) -> Result<v1::ClientMessage, End> {
        read_call(bytes).map_err(|status| self.refuse(0, status))
    }

    /// Sends the client the error. The session ends then.
    fn refuse(&self, id: u64, status: Status) -> End {
        let end = End::ProtocolError(status.message.clone());
        self.send(packet(id, Err(status)));
        end
    }

    fn send(&self, packet: Option<Packet>) {
        if let Some(packet) = packet {
            self.outbox.send(packet);
        }
    }

    /// Reports which of the returned leases were freed, so that the client can unmap them.
    fn report_forgotten(&self) {
        let forgotten: Vec<String> = self.scope.take_forgotten().iter().map(ToString::to_string).collect();
        if !forgotten.is_empty() {
            let bytes = encode_answer(&v1::ServerMessage { forgotten, ..v1::ServerMessage::default() });
            self.send(Some(Packet { bytes, ..Packet::default() }));
        }
    }

    /// Waits for the inferences in flight and sends their answers, when the server stops. If the client does not read the answers, the wait is short.
    async fn finish(&self, outbox: &Outbox) {
        let sent = async {
            self.in_flight.drained().await;
            let taken = async {
                while !outbox.is_empty() {
                    sleep(STOPPING_POLL_INTERVAL).await;
                }
            };
            // The session ends in either case.
            let _ = timeout(STOPPING_READ_WITHIN, taken).await;
        };
        tokio::select! {
            biased;
            () = sent => {}
            _ = outbox.flush() => {}
        }
    }

    /// Drops the session. Requests in flight keep what they use until they notice the cancellation. Memory that takes long to unmap is unmapped on another
    /// thread.
    fn close(self) {
        self.in_flight.cancel_all();
        self.outbox.close();
        // Requests in flight hold the account's remaining memory. Shedding this connection would not free that memory, so the account is closed.
        self.api.account().close();
    }
}

/// How long a connection may take to send Hello. The limit is short for a connection that has one of the operator's reserved places.
fn hello_limit(requested: Option<Duration>, in_reserve: bool) -> Option<Duration> {
    match (requested, in_reserve) {
        (requested, false) => requested,
        (requested, true) => {
            Some(requested.map_or(RESERVE_HELLO_WITHIN, |requested| requested.min(RESERVE_HELLO_WITHIN)))
        }
    }
}

/// The next packet, once the memory budgets allow reading it. May be cancelled at any time.
async fn receive<'r>(
    socket: &Socket,
    receiver: &'r mut Receiver,
    read_limit: &mut BodyReadLimit,
) -> io::Result<Received<'r>> {
    // If the budgets end the session, another future reports that.
    let opened = tokio::select! {
        biased;
        opened = read_limit.ready(0) => opened,
        () = socket.hung_up() => return Ok(Received::End),
    };
    if opened.is_err() {
        return std::future::pending().await;
    }
    let received = socket.receive(receiver).await;
    read_limit.done();
    received
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_of_the_reserve_is_held_for_a_second_at_most() {
        let (short, long) = (Duration::from_millis(300), Duration::from_secs(90));
        assert_eq!([hello_limit(Some(long), false), hello_limit(None, false)], [Some(long), None]);
        let reserved = [Some(long), None, Some(short)].map(|requested| hello_limit(requested, true));
        assert_eq!(reserved, [Some(RESERVE_HELLO_WITHIN), Some(RESERVE_HELLO_WITHIN), Some(short)]);
    }
}
