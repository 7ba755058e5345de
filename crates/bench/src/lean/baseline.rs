//! How long do a copy and a wake-up alone take, without a request?

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nerite_client::Region;

use super::error::{BenchError, tried};
use super::report::percentile_us;

const COPY_TIME: Duration = Duration::from_secs(1);
const COPIES_MIN: usize = 10;
const ROUNDS: usize = 20_000;
const ROUNDS_WARM_UP: usize = 2_000;
const MESSAGE_BYTES: usize = 64;

/// Copies of each size from one shared memory region into another, both touched before.
pub(crate) fn memcpy(sizes: &[usize], json: bool) -> Result<(), BenchError> {
    for &bytes in sizes {
        let me = std::process::id();
        let from = Region::create(&format!("/nerite_bench_{me}_memcpy_from"), bytes)?;
        let to = Region::create(&format!("/nerite_bench_{me}_memcpy_to"), bytes)?;
        from.edit(0, bytes / 4, |mut place: nerite_client::CellsMut<'_, f32>| place.fill(1.0))?;
        let view = from.view::<f32>(0, bytes / 4)?;
        let copy =
            || to.edit(0, bytes / 4, |mut place: nerite_client::CellsMut<'_, f32>| place.copy_cells(view.cells()));
        copy()?;
        let (since, mut took) = (Instant::now(), Vec::new());
        while took.len() < COPIES_MIN || since.elapsed() < COPY_TIME {
            let start = Instant::now();
            copy()?;
            took.push(start.elapsed());
        }
        print("memcpy", bytes, &mut took, json);
    }
    Ok(())
}

/// Round trips of a few bytes between this process and another one over a Unix socket.
pub(crate) fn ping_pong(json: bool) -> Result<(), BenchError> {
    let path = std::env::temp_dir().join(format!("nerite-bench-{}.sock", std::process::id()));
    let listener = UnixListener::bind(&path).map_err(tried(format!("cannot listen at {}", path.display())))?;
    let program = std::env::current_exe().map_err(tried("cannot find this program"))?;
    let other = Command::new(program).arg("echo").arg(&path).spawn();
    let mut other = other.map_err(tried("cannot start the other process"))?;
    let times = round_trips(&listener);
    // The other process ends with the connection. The socket's name is not needed any more.
    let _ = other.wait();
    let _ = std::fs::remove_file(&path);
    print(
        "pingpong",
        MESSAGE_BYTES,
        &mut times.map_err(tried("cannot exchange messages with the other process"))?,
        json,
    );
    Ok(())
}

/// Times of round trips to the process that connects.
fn round_trips(listener: &UnixListener) -> std::io::Result<Vec<Duration>> {
    let (mut socket, _) = listener.accept()?;
    let mut message = [0; MESSAGE_BYTES];
    let mut took = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS_WARM_UP + ROUNDS {
        let start = Instant::now();
        socket.write_all(&message)?;
        socket.read_exact(&mut message)?;
        if round >= ROUNDS_WARM_UP {
            took.push(start.elapsed());
        }
    }
    Ok(took)
}

/// The other process: sends back what it gets until the connection ends.
pub(crate) fn echo(path: &Path) -> Result<(), BenchError> {
    let socket = UnixStream::connect(path).map_err(tried(format!("cannot connect to {}", path.display())))?;
    let (mut socket, mut message) = (socket, [0; MESSAGE_BYTES]);
    while socket.read_exact(&mut message).and_then(|()| socket.write_all(&message)).is_ok() {}
    Ok(())
}

fn print(what: &str, bytes: usize, took: &mut [Duration], json: bool) {
    took.sort_unstable();
    let [p50, p99] = [0.5, 0.99].map(|share| percentile_us(took, share));
    if json {
        println!(r#"{{"baseline":"{what}","bytes":{bytes},"p50_us":{p50:.2},"p99_us":{p99:.2}}}"#);
    } else {
        println!("{what} of {bytes} bytes: p50 {p50:.2} µs, p99 {p99:.2} µs");
    }
}
