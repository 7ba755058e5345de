//! Which functions do the fuzz targets call?
//!
//! Only for fuzz targets.

use bytes::{Buf, Bytes};
use nerite_api::Api;
use nerite_budget::Account;
use nerite_compress::{Encoding, Lane};
use nerite_wire::proto::MESSAGE_BYTES_MAX;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::compress::inflate;
use crate::failure::Failure;
use crate::frame::{Deframer, Framed};
use crate::message_format::MessageFormat;
use crate::serve::serve_stream;

/// Serves one connection over any stream until it ends.
pub async fn serve_connection(api: Api, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    serve_stream(api, stream).await;
}

/// The messages of a call whose body arrives in these pieces. Messages with the compression flag are inflated. The error says why the call fails.
pub async fn read_messages(
    pieces: impl IntoIterator<Item = Bytes>,
    encoding: Option<Encoding>,
    inflated_bytes_max: u64,
) -> Result<Vec<Bytes>, String> {
    let text = |failure: Failure| format!("{failure:?}");
    let format = MessageFormat { bytes_max: MESSAGE_BYTES_MAX, encoding, inflated_bytes_max, part_bytes: None };
    let mut deframer = Deframer::new(format);
    let (lane, mut messages) = (Lane::new(), Vec::new());
    for mut piece in pieces {
        while !piece.is_empty() {
            let message = match deframer.take(&mut piece).map_err(text)? {
                None => continue,
                Some(Framed::Plain(message) | Framed::Part(message)) => message,
                Some(Framed::Compressed(message, encoding)) => {
                    inflate(message, encoding, format, lane.clone(), Account::unlimited()).await.map_err(text)?
                }
            };
            let len = message.len();
            messages.push(message.into_reader().copy_to_bytes(len));
        }
    }
    if deframer.is_between() { Ok(messages) } else { Err("the call ended within a message".to_owned()) }
}
