//! Which functions do the fuzz targets call?
//!
//! Nothing else may use this.

use nerite_api::Api;
use tokio::io::{AsyncRead, AsyncWrite};

/// Serves one connection over any stream until it ends.
pub async fn serve_connection(api: Api, stream: impl AsyncRead + AsyncWrite + Unpin) {
    crate::serve::serve_stream(api, stream).await;
}
