//! How does a child exchange packets with its server?

use std::fmt::Display;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};

use nerite_locks::Mutex;
use nerite_memory::{Reason, copied_bytes};
use nerite_process::packets::{Command, Need, SegmentOffset};
use nerite_process::{Channel, Packet};
use nerite_request::Status;

use super::calls::Calls;
use super::gone::Gone;
use super::memory::Memory;

/// The channel, and the memory that came over it. Commands are answered one at a time. During a command any thread of the engine may request space,
/// one at a time.
pub(super) struct ServerChannel {
    channel: Channel,
    side: Arc<Channel>,
    packet: Mutex<Packet>,
    memory: Arc<Memory>,
    gone: Arc<Gone>,
    /// `None` where requests are only answered with their batch.
    calls: Option<Arc<Calls>>,
    /// Bytes that were copied up to the last report to the server, by reason.
    reported: Mutex<Vec<u64>>,
}

/// Memory that the server found for an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutputSpace {
    pub(super) location: SegmentOffset,
    pub(super) capacity: usize,
}

impl ServerChannel {
    pub(super) fn new(
        channel: Channel,
        side: Arc<Channel>,
        packet: Packet,
        gone: Arc<Gone>,
        calls: Option<Arc<Calls>>,
    ) -> io::Result<ServerChannel> {
        let memory = Arc::<Memory>::default();
        if let Some(calls) = &calls {
            calls.listen(Arc::clone(&memory))?;
        }
        Ok(ServerChannel {
            channel,
            side,
            packet: Mutex::new(packet),
            memory,
            gone,
            calls,
            reported: Mutex::new(copies()),
        })
    }

    /// The channel for answers that come separately from their batch.
    pub(super) fn calls(&self) -> Option<&Arc<Calls>> {
        self.calls.as_ref()
    }

    /// Sends a report on the side channel. Waits while the server has not read the earlier ones. If the server is gone,
    /// the report is lost.
    pub(super) fn report(&self, report: &dyn Display) {
        let _ = self.side.send(report.to_string(), &[]);
    }

    /// The bytes that were copied since the last report, by reason. The server counts them as its own.
    pub(super) fn take_copied(&self) -> Vec<(Reason, u64)> {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *reported, copies());
        let more =
            Reason::ALL.iter().zip(before).zip(&*reported).map(|((reason, before), now)| (*reason, now - before));
        more.filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// The requests whose clients have disconnected.
    pub(super) fn gone(&self) -> &Gone {
        &self.gone
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The next packet and its descriptors. Drops the segments that the packet says to forget. `None` at the end.
    pub(super) fn next_command(&self) -> io::Result<Option<(Command, Vec<OwnedFd>)>> {
        let mut packet = self.packet.lock().unwrap_or_else(PoisonError::into_inner);
        self.receive(&mut packet)
    }

    fn receive(&self, packet: &mut Packet) -> io::Result<Option<(Command, Vec<OwnedFd>)>> {
        let mut descriptors = Vec::new();
        let Some(text) = self.channel.receive_all(packet, &mut descriptors)? else { return Ok(None) };
        let command = Command::read(text)?;
        self.memory().forget(command.forget());
        Ok(Some((command, descriptors)))
    }

    /// Answers a command.
    pub(super) fn answer(&self, answer: &str) -> io::Result<()> {
        self.channel.send(answer, &[])
    }

    /// Requests memory for this many bytes of an output of the batch's request `index`.
    pub(super) fn request_space(&self, index: usize, output: &str, bytes: usize) -> Result<OutputSpace, Status> {
        let mut packet = self.packet.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = |error: io::Error| Status::unavailable(format!("the server cannot be asked for space: {error}"));
        self.channel.send(Need { index, name: output, bytes }.to_string(), &[]).map_err(gone)?;
        loop {
            let (said, descriptors) =
                self.receive(&mut packet).map_err(gone)?.ok_or_else(|| gone(io::ErrorKind::UnexpectedEof.into()))?;
            if let Some(error) = said.error() {
                return Err(Status::unavailable(error));
            }
            if said.space().is_none() {
                continue;
            }
            self.memory().map(said.map(), descriptors).map_err(Status::unavailable)?;
            return OutputSpace::read(&said, bytes);
        }
    }
}

impl OutputSpace {
    /// Reads an answer with memory of at least this many bytes.
    pub(super) fn read(reported: &Command, bytes: usize) -> Result<OutputSpace, Status> {
        let space = reported.space().flatten().map(|(location, capacity)| OutputSpace { location, capacity });
        let space = space.filter(|space| space.capacity >= bytes);
        space.ok_or_else(|| Status::internal("the server found space that is none"))
    }
}

/// Bytes that this process has copied so far, by reason.
fn copies() -> Vec<u64> {
    Reason::ALL.iter().map(|reason| copied_bytes(*reason)).collect()
}
