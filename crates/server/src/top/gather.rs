//! What does the server report to a viewer?

use std::time::Instant;

use nerite_client::http::Client;
use nerite_client::{Code, Error};
use serde_json::Value;

use super::metrics::Numbers;
use crate::certificates::Certificates;

/// The error for a port that has no metrics.
const NO_METRICS: &str = "what answers there has no metrics; give the metrics port of a server with --url";

/// The cure where the server wants another token, or any.
const WANTS_TOKEN: &str = "set NERITE_TOKEN to the secret of a token with the scope 'read'";

/// The server's answers at one moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) numbers: Numbers,
    /// The data of the page. `None` if there is no page.
    pub(super) page: Option<Page>,
}

/// The data that only the page has.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    /// A description of the visitor and the server.
    pub(super) visitor: Value,
    /// Versions of models with their states; null if the visitor may not see them.
    pub(super) models: Value,
    /// Regions, sessions and leases; null if the visitor may not see them.
    pub(super) memory: Value,
}

/// Asks for all of it.
pub(super) async fn gather(client: &Client, certificates: &Certificates) -> Result<Sample, String> {
    let text = client.page("/metrics").await.map_err(|error| match error {
        Error::Refused(status) if matches!(status.code, Code::Unauthenticated | Code::Denied) => {
            format!("{} at /metrics; {WANTS_TOKEN}", status.message)
        }
        Error::Refused(status) => format!("{} at /metrics; {NO_METRICS}", status.message),
        Error::Connect { .. } => format!("{error}; is a server running? --url names another"),
        unreached => certificates.explain(&unreached),
    })?;
    let numbers = Numbers::read(&text);
    if numbers.others.is_empty() && numbers.models.is_empty() {
        return Err(NO_METRICS.to_owned());
    }
    let visitor = json(client, "/ui/api/visitor").await;
    let page = if visitor.is_null() {
        None
    } else {
        let (models, memory) = (json(client, "/ui/api/models").await, json(client, "/ui/api/memory").await);
        Some(Page { visitor, models, memory })
    };
    Ok(Sample { at: Instant::now(), numbers, page })
}

/// Null if the server refuses the call, or has no page and answers with an empty text.
async fn json(client: &Client, path: &str) -> Value {
    let page = client.page(path).await;
    page.ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}
