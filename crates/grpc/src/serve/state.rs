//! Which state do the calls of one connection need?

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use nerite_api::Api;
use nerite_listen::{ConnectionRules, StopSignal};
use nerite_request::Peer;

use super::unread_bytes::Unread;
use crate::options::Options;

/// The state for the calls of one connection. Each connection has its own `api` and `unread`, and all connections share the rest.
#[derive(Clone)]
pub(crate) struct ServerState {
    pub(crate) api: Api,
    pub(crate) options: Options,
    /// Bytes that arrived on the connection and were not taken by a call.
    pub(crate) unread: Arc<Unread>,
    pub(super) rules: ConnectionRules,
    pub(super) calls: Arc<AtomicUsize>,
    pub(super) stop: StopSignal,
}

impl ServerState {
    /// The state for a new connection, whose client is `peer`.
    pub(super) fn for_peer(&self, peer: Peer) -> Arc<ServerState> {
        let api = self.api.for_peer(peer);
        let unread = Unread::new(api.account());
        Arc::new(ServerState { api, unread, ..self.clone() })
    }

    /// The same state, for a call whose client has a token.
    pub(crate) fn by_token(&self, api: Api) -> Arc<ServerState> {
        Arc::new(ServerState { api, ..self.clone() })
    }

    /// Becomes ready when the server is to stop.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stop = self.stop.clone();
        async move { stop.wait().await }
    }
}
