//! What does a server answer to a command?

use std::path::PathBuf;

use nerite_client::inspect::{Dropped, LeaseView, PoolsView, RegionView, SessionView};

/// The server that was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Server {
    /// The process behind a session socket; `None` if it cannot be seen from here.
    Socket {
        path: PathBuf,
        pid: Option<u32>,
    },
    Http {
        url: String,
    },
}

/// The answer to one command.
#[derive(Debug)]
pub(super) enum Answer {
    Regions {
        regions: Vec<RegionView>,
        sessions: Vec<SessionView>,
    },
    Region {
        regions: Vec<RegionView>,
        sessions: Vec<SessionView>,
    },
    Session {
        session: SessionView,
        regions: Vec<RegionView>,
        leases: Vec<LeaseView>,
    },
    Pools(PoolsView),
    Sessions(Vec<SessionView>),
    Dropped {
        what: String,
        dropped: Dropped,
    },
    /// Regions that belong to no session, as HTTP shows them: with much less detail.
    Listed(Vec<ListedRegion>),
    /// HTTP does not say how much was dropped.
    DroppedSilently {
        what: String,
    },
}

/// A region as HTTP shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedRegion {
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) place: String,
    pub(super) offset: u64,
    pub(super) byte_size: u64,
}
