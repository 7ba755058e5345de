//! What do stages cost a run of a long graph on the embedded engine?
//!
//! ```text
//! cargo run --release -p nerite-onnx --example stages_cost [rows of the matrix] [rounds]
//! ```
//! The graph multiplies a matrix with itself two hundred times. In each round the model is loaded anew, so its first run has all stages. The second run
//! is whole, if the first took less than 10 ms. The least time and the fewest allocations of the engine's threads are printed: other work on the machine
//! changes them least.
#![expect(clippy::print_stdout, reason = "an example prints what it found")]

use std::path::Path;
use std::time::{Duration, Instant};

use nerite_backend::Instance;
use nerite_backend::conformance::{completed_instance, graph_context, infer};
use nerite_memory::{Buffer, allocations, exempt_this_thread};
use nerite_onnx::Embedded;
use nerite_request::Wanted;
use nerite_tensor::{DataType, Shape, Tensor};

#[global_allocator]
static HEAP: nerite_memory::CountingHeap = nerite_memory::CountingHeap;

/// The stages of this graph: each has at least two of its 201 operators.
const STAGES: u32 = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    exempt_this_thread();
    let mut arguments = std::env::args().skip(1);
    let rows: usize = arguments.next().map_or(Ok(32), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(50), |text| text.parse())?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    let (mut staged, mut whole) = (Cost::default(), Cost::default());
    for _ in 0..rounds {
        let mut instance = completed_instance(&Embedded, graph_context(&folder, "powers"))?;
        // Starts the instance's thread. The class of these runs is another one.
        run(&mut *instance, 2)?;
        run(&mut *instance, 2)?;
        staged = staged.least(run(&mut *instance, rows)?);
        whole = whole.least(run(&mut *instance, rows)?);
    }
    println!("in {STAGES} stages: {staged}");
    println!("         whole: {whole}");
    let more_us = (staged.time.as_secs_f64() - whole.time.as_secs_f64()) * 1e6;
    println!(" for one more: {:.1} µs", more_us / f64::from(STAGES - 1));
    Ok(())
}

struct Cost {
    time: Duration,
    allocations: usize,
}

impl Default for Cost {
    fn default() -> Cost {
        Cost { time: Duration::MAX, allocations: usize::MAX }
    }
}

impl Cost {
    fn least(self, other: Cost) -> Cost {
        Cost { time: self.time.min(other.time), allocations: self.allocations.min(other.allocations) }
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} µs, {} allocations", self.time.as_secs_f64() * 1e6, self.allocations)
    }
}

fn run(instance: &mut dyn Instance, rows: usize) -> Result<Cost, Box<dyn std::error::Error>> {
    let (shape, data) = (Shape::from_slice(&[rows as i64; 2]), Buffer::from_numbers(vec![0f32; rows * rows]));
    let x = Tensor { name: "x".into(), datatype: DataType::Fp32, shape, data };
    let wanted = vec![Wanted { name: "y".into(), slot: None }];
    let (before, begun) = (allocations(), Instant::now());
    infer(vec![x], wanted, |batch| instance.run(batch))?;
    Ok(Cost { time: begun.elapsed(), allocations: allocations() - before })
}
