//! What do the calls of one connection need?

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use nerite_api::Api;
use nerite_listen::Rules;
use nerite_request::Peer;
use tokio::sync::watch;

use super::metered::Unread;
use crate::options::Options;

/// What the calls of one connection need. All but the API is the same for all connections.
#[derive(Clone)]
pub(crate) struct ServerState {
    pub(crate) api: Api,
    pub(crate) options: Options,
    /// What arrived over the connection and no call has taken yet.
    pub(crate) unread: Arc<Unread>,
    pub(super) rules: Rules,
    pub(super) calls: Arc<AtomicUsize>,
    pub(super) stop: watch::Receiver<bool>,
}

impl ServerState {
    /// The same for a connection whose client is `peer`.
    pub(super) fn for_peer(&self, peer: Peer) -> Arc<ServerState> {
        let api = self.api.for_peer(peer);
        let unread = Unread::new(api.account());
        Arc::new(ServerState { api, unread, ..self.clone() })
    }

    /// Ready when the server is asked to stop.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stop = self.stop.clone();
        async move {
            // An error means that the handle is gone, and with it everybody who could ask.
            if stop.wait_for(|stop| *stop).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
