//! How is one request sent to the kernel over netlink?
//!
//! Each [`Channel`] keeps its socket open, so that clients can be identified even when connections use all descriptors.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::PoisonError;

use nerite_locks::Mutex;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// Bytes of `struct nlmsghdr`, with which each message begins.
pub(crate) const HEADER: usize = 16;

/// A channel to one netlink protocol of the kernel.
pub(crate) struct Channel {
    protocol: Option<Protocol>,
    kept: Mutex<Option<OwnedFd>>,
}

impl Channel {
    /// `None` is `NETLINK_ROUTE`, whose number is 0.
    pub(crate) const fn new(protocol: Option<Protocol>) -> Channel {
        Channel { protocol, kept: Mutex::new(None) }
    }

    /// Opens the socket if it is not open. Call this early, while descriptors are free.
    pub(crate) fn prepare(&self) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_none() {
            // After a failure, the next exchange opens it.
            *kept = self.open().ok();
        }
    }

    /// Sends a message, and stores the beginning of the kernel's answer. Returns the bytes stored.
    pub(crate) fn exchange(&self, request: &[u8], answer: &mut [u8]) -> io::Result<usize> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // After an error the socket is not kept. The next request then uses a new socket, which cannot receive a late answer to this one.
        let socket = match kept.take() {
            Some(socket) => socket,
            None => self.open()?,
        };
        sendto(&socket, request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        // The kernel answers within the call above, so this does not wait.
        let (stored, _) = recv(&socket, answer, RecvFlags::DONTWAIT)?;
        *kept = Some(socket);
        Ok(stored)
    }

    fn open(&self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, self.protocol)?)
    }
}

/// Writes the header of a message that fills `bytes`.
pub(crate) fn write_header(bytes: &mut [u8], kind: u16) {
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    bytes[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
}

/// Writes the 4 or 16 bytes of an address to the beginning of `to`.
pub(crate) fn write_address(to: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(address) => to[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => to[..16].copy_from_slice(&address.octets()),
    }
}

/// `AF_INET` or `AF_INET6`, as messages to the kernel name them.
pub(crate) fn family_of(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    family.as_raw() as u8
}
