//! How does a child speak with its server?

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nerite_process::packets::{Command, Need, SegmentOffset};
use nerite_process::{Channel, Packet};
use nerite_request::Status;

use super::gone::Gone;
use super::memory::Memory;

/// The channel, and the memory that came over it. One command at a time is answered; while it is, any thread of the engine may ask for
/// space, one at a time.
pub(super) struct Talk {
    channel: Channel,
    packet: Mutex<Packet>,
    memory: Mutex<Memory>,
    gone: Arc<Gone>,
}

/// Space that the server found for an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutputSpace {
    pub(super) spot: SegmentOffset,
    pub(super) capacity: usize,
}

impl Talk {
    pub(super) fn new(channel: Channel, packet: Packet, gone: Arc<Gone>) -> Talk {
        Talk { channel, packet: Mutex::new(packet), memory: Mutex::default(), gone }
    }

    /// Whose clients have gone.
    pub(super) fn gone(&self) -> &Gone {
        &self.gone
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next packet and its descriptors; memory that is no more is let go of. `None` at the end.
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

    /// Asks for space for so many bytes of an output of the batch's request `index`.
    pub(super) fn ask_for_space(&self, index: usize, output: &str, bytes: usize) -> Result<OutputSpace, Status> {
        let mut packet = self.packet.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = |error: io::Error| Status::unavailable(format!("the server cannot be asked for space: {error}"));
        self.channel.send(Need { index, name: output, bytes }.to_string(), &[]).map_err(gone)?;
        loop {
            let (said, descriptors) =
                self.receive(&mut packet).map_err(gone)?.ok_or_else(|| gone(io::ErrorKind::UnexpectedEof.into()))?;
            if let Some(error) = said.error() {
                return Err(Status::unavailable(error));
            }
            let Some(space) = said.room() else { continue };
            self.memory().map(said.map(), descriptors).map_err(Status::unavailable)?;
            let space = space.map(|(spot, capacity)| OutputSpace { spot, capacity });
            let space = space.filter(|space| space.capacity >= bytes);
            return space.ok_or_else(|| Status::internal("the server found space that is none"));
        }
    }
}
