//! Are compressed messages read and written without harm to other clients?

use std::io::Read;

use bytes::Bytes;
use flate2::Compression;
use flate2::read::{GzDecoder, GzEncoder, ZlibEncoder};
use nerite_grpc::{CompressionLevel, Options};
use nerite_wire::proto::messages::{
    ModelInferResponse, ModelStreamInferResponse, ServerLiveRequest, ServerLiveResponse,
};
use prost::Message;

use crate::peer::{StreamCall, framed, request};
use crate::test_server::{INPUT_BYTES_MAX, TestServer};

fn compressed(mut encoder: impl Read) -> Vec<u8> {
    let mut out = vec![1, 0, 0, 0, 0];
    encoder.read_to_end(&mut out).unwrap();
    let len = (out.len() as u32 - 5).to_be_bytes();
    out[1..5].copy_from_slice(&len);
    out
}

/// A message of zeros, framed.
fn zeros(len: usize) -> Vec<u8> {
    compressed(GzEncoder::new(std::io::repeat(0).take(len as u64), Compression::fast()))
}

#[tokio::test]
async fn compressed_requests_are_read() {
    let server = TestServer::new();
    let peer = server.peer().await;
    let message = request("echo", "7", 300_000).encode_to_vec();
    let gzip = compressed(GzEncoder::new(message.as_slice(), Compression::fast()));
    let zlib = compressed(ZlibEncoder::new(message.as_slice(), Compression::fast()));
    for (name, body) in [("gzip", gzip), ("deflate", zlib)] {
        let reply = peer.call_raw("ModelInfer", &[("grpc-encoding", name)], &[&body]).await;
        assert_eq!(reply.message::<ModelInferResponse>().raw_output_contents[0].len(), 1_200_000);
    }
    let reply = peer.call_raw("ModelInfer", &[("grpc-encoding", "snappy")], &[b""]).await;
    assert_eq!(reply.status(), (12, "Compression algorithm 'snappy' is not supported"));
    assert_eq!(reply.headers["grpc-accept-encoding"], "identity, deflate, gzip");
}

#[tokio::test]
async fn responses_are_compressed_for_clients_that_accept_it() {
    let options = Options { response_compression: CompressionLevel::Medium, ..Options::default() };
    let server = TestServer::with(options, nerite_api::Options::default());
    let peer = server.peer().await;
    let body = framed(&request("echo", "7", 3000));
    let reply = peer.call_raw("ModelInfer", &[("grpc-accept-encoding", "identity, gzip")], &[&body]).await;
    assert_eq!(reply.headers["grpc-encoding"], "gzip");
    assert_eq!(reply.messages[0].0, 1);
    let mut plain = Vec::new();
    GzDecoder::new(&reply.messages[0].1[..]).read_to_end(&mut plain).unwrap();
    assert_eq!(ModelInferResponse::decode(plain.as_slice()).unwrap().raw_output_contents[0].len(), 12_000);
    let reply = peer.call_raw("ModelInfer", &[], &[&body]).await;
    assert!(reply.messages[0].0 == 0 && !reply.headers.contains_key("grpc-encoding"));
}

#[tokio::test]
async fn a_message_that_inflates_too_far_is_refused_and_the_connection_continues() {
    let server = TestServer::new();
    let peer = server.peer().await;
    let text = format!(
        "Decompressed data size exceeds the maximum allowed value of {INPUT_BYTES_MAX} bytes. Use --http-max-input-size \
         to increase the limit."
    );
    let too_large = zeros(INPUT_BYTES_MAX as usize + 1);
    let gzip = [("grpc-encoding", "gzip")];
    assert_eq!(peer.call_raw("ModelInfer", &gzip, &[&too_large]).await.status(), (8, &*text));
    let of_call = "SERVER: Received message larger than max (more than 1048576 once inflated vs. 1048576)";
    assert_eq!(peer.call_raw("ServerLive", &gzip, &[&too_large]).await.status(), (8, of_call));
    let mut stream_call = StreamCall::begin(&peer, &gzip).await;
    stream_call.send(&too_large);
    stream_call.end();
    assert_eq!(stream_call.status().await, (8, text.clone()));
    // A longer message always inflates to too many bytes, so it is not even read.
    let announced = [&[1], &(2 * INPUT_BYTES_MAX as u32 + 1).to_be_bytes()[..]].concat();
    assert_eq!(peer.call_raw("ModelInfer", &gzip, &[&announced]).await.status(), (8, &*text));
    let live = peer.call("ServerLive", &ServerLiveRequest {}).await;
    assert!(live.message::<ServerLiveResponse>().live);
}

#[tokio::test]
async fn a_stream_reads_and_answers_compressed_messages_in_order() {
    let options = Options { response_compression: CompressionLevel::Low, ..Options::default() };
    let server = TestServer::with(options, nerite_api::Options::default());
    let headers = [("grpc-encoding", "deflate"), ("grpc-accept-encoding", "gzip")];
    let mut stream_call = StreamCall::begin(&server.peer().await, &headers).await;
    let lens = [3000, 500_000, 1000, 200_000, 1_000_000, 700];
    for (id, len) in lens.iter().enumerate() {
        let message = request("echo", &id.to_string(), *len);
        // Every second message is compressed.
        let packed = compressed(ZlibEncoder::new(message.encode_to_vec().as_slice(), Compression::fast()));
        stream_call.send(&if id % 2 == 0 { packed } else { framed(&message) });
    }
    stream_call.end();
    for (id, len) in lens.iter().enumerate() {
        let (flag, message) = stream_call.next_raw().await.unwrap();
        assert_eq!(flag, 1);
        let mut plain = Vec::new();
        GzDecoder::new(&message[..]).read_to_end(&mut plain).unwrap();
        let answer = ModelStreamInferResponse::decode(Bytes::from(plain)).unwrap().infer_response.unwrap();
        assert_eq!((answer.id, answer.raw_output_contents[0].len()), (id.to_string(), 4 * len));
    }
    assert_eq!(stream_call.status().await, (0, String::new()));
}

#[tokio::test]
async fn a_damaged_message_ends_only_its_stream() {
    let server = TestServer::new();
    let peer = server.peer().await;
    let mut stream_call = StreamCall::begin(&peer, &[("grpc-encoding", "gzip")]).await;
    stream_call.send_message(&request("echo", "a", 5));
    let mut cut = zeros(3_000_000);
    cut.truncate(cut.len() - 9);
    let len = (cut.len() as u32 - 5).to_be_bytes();
    cut[1..5].copy_from_slice(&len);
    // Messages before a damaged one are answered, however long that takes.
    stream_call.send_message(&request("held", "b", 1));
    stream_call.send(&cut);
    server.held.wait(1).await;
    assert_eq!(stream_call.next().await.unwrap().infer_response.unwrap().id, "a");
    server.held.answer("b");
    assert_eq!(stream_call.next().await.unwrap().infer_response.unwrap().id, "b");
    let (code, text) = stream_call.status().await;
    assert_eq!(code, 13);
    assert!(text.starts_with("Unable to parse request: the compressed message is damaged ("), "{text}");
    assert_eq!(peer.call("ModelInfer", &request("echo", "", 1)).await.status(), (0, ""));
}
