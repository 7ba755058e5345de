//! What does the server report of itself and its models to programs and backends in its process?

use nerite_api::Api;
use nerite_cabi::ServerReports;
use nerite_request::Status;
use nerite_wire::json;
use nerite_wire::prometheus::write_metrics;

/// The reports of one server.
pub(crate) struct Reports {
    api: Api,
}

impl Reports {
    /// The reports of the server with these calls.
    pub fn new(api: Api) -> Reports {
        Reports { api }
    }
}

impl ServerReports for Reports {
    /// Waits for models that report their own readiness. A thread that serves connections must not wait, because it may be the one that
    /// the answer needs.
    fn is_ready(&self) -> Result<bool, Status> {
        if tokio::runtime::Handle::try_current().is_ok() {
            return Err(Status::unavailable(
                "the server's readiness cannot be asked on a thread that serves connections",
            ));
        }
        let waiting = tokio::runtime::Builder::new_current_thread().build();
        let waiting =
            waiting.map_err(|error| Status::internal(format!("the server's readiness cannot be asked: {error}")))?;
        Ok(waiting.block_on(self.api.ready()).is_ok())
    }

    fn metadata(&self) -> Result<Vec<u8>, Status> {
        Ok(json::write_server(&self.api.server_report()))
    }

    fn model_metadata(&self, model: &str, version: i64) -> Result<Vec<u8>, Status> {
        Ok(json::write_model(&self.api.model_report(model, &text(version))?))
    }

    fn statistics(&self, model: &str, version: i64) -> Result<Vec<u8>, Status> {
        Ok(json::write_statistics(&self.api.statistics(model, &text(version))?))
    }

    fn index(&self, ready_only: bool) -> Result<Vec<u8>, Status> {
        Ok(json::write_index(&self.api.index(ready_only)?))
    }

    fn metrics(&self) -> Result<String, Status> {
        Ok(write_metrics(&self.api.metrics_report()))
    }
}

/// A version as clients write it: none for the highest.
pub(crate) fn text(version: i64) -> String {
    if version < 0 { String::new() } else { version.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_version_means_the_highest() {
        assert_eq!([text(-1), text(0), text(3)], ["", "0", "3"]);
    }
}
