//! On which side of which bus do the bytes lie?

/// Where memory is, as a backend needs to know it.
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
