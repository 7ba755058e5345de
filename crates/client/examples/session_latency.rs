//! How long does an inference through a lease take, compared with a bare ping-pong over the same kind of socket?
//!
//! `cargo run --release --example session_latency -- <session socket> [requests] [model]`, against a server with the model `simple`, or with `identity_fp32`,
//! which shows the time that the server takes without an engine. Four kinds of calls are measured, in turns of 200 calls each, so that a disturbance affects
//! all of them: the ping-pong, the inference as a request, the inference that the server has prepared, and 32 prepared inferences in one packet (the time of
//! each).
#![expect(clippy::print_stdout, reason = "an example prints what it found")]

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nerite_client::{DataType, Error, Lease, PreparedRequest, Request, Session};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

/// The size of one request of this example. The packets of the ping-pong have the same size.
const PACKET_BYTES: usize = 320;
const TURN: usize = 200;
const TOGETHER: usize = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let socket = words.next().ok_or("give the path of the session socket")?;
    let requests: usize = words.next().map_or(Ok(20_000), |word| word.parse())?;
    let model = words.next().unwrap_or_else(|| "simple".to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let bare = echo()?;
    let (mut pings, mut infers, mut calls, mut many) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    runtime.block_on(async {
        let session = Session::connect(&socket).await?;
        let lease = session.borrow(256).await?;
        lease.write(0, &[5i32; 16])?;
        lease.write(64, &[2i32; 16])?;
        let request_once = request(&model, &lease);
        let (request, prepared) = (PreparedRequest::new(&request_once, &[]), session.prepare(&request_once).await?);
        let together = [&prepared; TOGETHER];
        for turn in 0..=requests / TURN {
            for _ in 0..TURN {
                let start = Instant::now();
                ping(&bare).map_err(|error| Error::Session(error.to_string()))?;
                pings.push(start.elapsed());
            }
            for _ in 0..TURN {
                let start = Instant::now();
                session.infer_prepared(&request).await?;
                infers.push(start.elapsed());
            }
            for _ in 0..TURN {
                let start = Instant::now();
                prepared.call().await?;
                calls.push(start.elapsed());
            }
            for _ in 0..TURN / TOGETHER {
                let start = Instant::now();
                session.call_many(&together).await?.into_iter().collect::<Result<Vec<_>, _>>()?;
                many.push(start.elapsed() / TOGETHER as u32);
            }
            if turn == 0 {
                // The server learns in the first turn that the model is quick.
                pings.clear();
                infers.clear();
                calls.clear();
                many.clear();
            }
        }
        assert_eq!(lease.view::<i32>(128, 16)?.to_vec(), [if model == "simple" { 7 } else { 5 }; 16]);
        Ok::<(), Error>(())
    })?;
    println!("bare ping-pong {:>9.1?} p50 {:>9.1?} p99", at(&mut pings, 50), at(&mut pings, 99));
    println!("inference      {:>9.1?} p50 {:>9.1?} p99", at(&mut infers, 50), at(&mut infers, 99));
    println!("prepared       {:>9.1?} p50 {:>9.1?} p99", at(&mut calls, 50), at(&mut calls, 99));
    println!("32 in a packet {:>9.1?} p50 {:>9.1?} p99", at(&mut many, 50), at(&mut many, 99));
    Ok(())
}

fn request(model: &str, lease: &Lease) -> Request {
    let request = Request::new(model).output_in_window("OUTPUT0", lease.window(128, 64));
    if model != "simple" {
        return request.input_in_window("INPUT0", DataType::Fp32, &[16], lease.window(0, 64));
    }
    request
        .input_in_window("INPUT0", DataType::Int32, &[1, 16], lease.window(0, 64))
        .input_in_window("INPUT1", DataType::Int32, &[1, 16], lease.window(64, 64))
        .output_in_window("OUTPUT1", lease.window(192, 64))
}

/// Starts a thread that sends back what it receives. Returns the other end of its socket.
#[expect(clippy::disallowed_methods, reason = "an example may panic")]
fn echo() -> io::Result<OwnedFd> {
    let (here, there) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    std::thread::spawn(move || {
        let mut packet = [0u8; PACKET_BYTES];
        while let Ok((_, len)) = recv(&there, &mut packet[..], RecvFlags::empty()) {
            if len == 0 || send(&there, &packet[..len.min(PACKET_BYTES)], SendFlags::NOSIGNAL).is_err() {
                return;
            }
        }
    });
    Ok(here)
}

fn ping(socket: &OwnedFd) -> io::Result<()> {
    let mut packet = [1u8; PACKET_BYTES];
    send(socket, &packet, SendFlags::NOSIGNAL)?;
    recv(socket, &mut packet[..], RecvFlags::empty())?;
    Ok(())
}

fn at(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times.get(times.len() * percent / 100).copied().unwrap_or_default()
}
