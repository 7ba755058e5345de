//! Which calls does the operator of a server make through a session?

use nerite_request::inspect::{Dropped, LeaseView, PoolsView, RegionView, SessionView};
use nerite_wire::proto::session::v1;
use v1::client_message::Call;
use v1::server_message::Answer as Reply;

use super::Session;
use super::calls::Answer;
use crate::Error;

/// The operator's calls. The server accepts them from its own user and from root, and refuses them from others.
impl Session {
    /// All registered regions, sorted by session and name: those of sessions, and those that belong to no session. With a name, only those of that name.
    pub async fn inspect_regions(&self, name: Option<&str>) -> Result<Vec<RegionView>, Error> {
        let (mut after, mut regions) = (None, Vec::new());
        loop {
            let call = Call::InspectRegions(v1::InspectRegions { after, name: name.map(str::to_owned) });
            let Reply::InspectedRegions(page) = self.reply(call).await? else { return Err(unexpected()) };
            regions.extend(page.regions.into_iter().map(RegionView::from));
            after = page.next;
            if after.is_none() {
                return Ok(regions);
            }
        }
    }

    /// The memory that the server lends, sorted by size.
    pub async fn inspect_pools(&self) -> Result<PoolsView, Error> {
        match self.reply(Call::InspectPools(v1::InspectPools {})).await? {
            Reply::InspectedPools(pools) => Ok(pools.into()),
            _ => Err(unexpected()),
        }
    }

    /// All sessions except this one, sorted by number.
    pub async fn inspect_sessions(&self) -> Result<Vec<SessionView>, Error> {
        match self.reply(Call::InspectSessions(v1::InspectSessions {})).await? {
            Reply::InspectedSessions(all) => Ok(all.sessions.into_iter().map(SessionView::from).collect()),
            _ => Err(unexpected()),
        }
    }

    /// The leases of a session, sorted by size. Only the beginning of each name is shown.
    pub async fn inspect_leases(&self, session: u64) -> Result<Vec<LeaseView>, Error> {
        match self.reply(Call::InspectLeases(v1::InspectLeases { session })).await? {
            Reply::InspectedLeases(all) => Ok(all.leases.into_iter().map(LeaseView::from).collect()),
            _ => Err(unexpected()),
        }
    }

    /// Unregisters a region of a session, or, if `session` is 0, a region that belongs to no session. Requests in flight keep its memory.
    pub async fn drop_region(&self, session: u64, name: &str) -> Result<Dropped, Error> {
        self.dropped(Call::DropRegion(v1::DropRegion { name: name.to_owned(), session })).await
    }

    /// Unregisters all regions that belong to no session.
    pub async fn drop_all_regions(&self) -> Result<Dropped, Error> {
        self.dropped(Call::DropAllRegions(v1::DropAllRegions {})).await
    }

    /// Ends another session, as if its client had disconnected.
    pub async fn end_session(&self, session: u64) -> Result<Dropped, Error> {
        self.dropped(Call::EndSession(v1::EndSession { session })).await
    }

    async fn dropped(&self, call: Call) -> Result<Dropped, Error> {
        match self.reply(call).await? {
            Reply::Dropped(dropped) => Ok(dropped.into()),
            _ => Err(unexpected()),
        }
    }

    async fn reply(&self, call: Call) -> Result<Reply, Error> {
        match self.call(call).await? {
            Answer::Reply(reply) => Ok(reply),
            other => Err(other.unexpected()),
        }
    }
}

fn unexpected() -> Error {
    Error::Answer("the answer is of another kind than the call".to_owned())
}
