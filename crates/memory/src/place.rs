//! Which memory do bytes lie in: the host's or a device's?

/// The kind of memory that bytes lie in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Place {
    /// Pageable memory of this host.
    #[default]
    Host,
    /// Page-locked memory of this host.
    Pinned,
    /// Memory of the accelerator with this ordinal.
    Device(u32),
}

impl Place {
    /// Whether this process can read the bytes through a plain pointer.
    pub fn is_host(self) -> bool {
        !matches!(self, Place::Device(_))
    }
}
