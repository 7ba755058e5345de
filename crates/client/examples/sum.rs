//! How does a Rust program call a model whose tensors lie in shared memory?
//!
//!     cargo run -p nerite-client --example sum [address]      # needs the model `simple` of examples/models

#![allow(clippy::print_stdout)]

use nerite_client::{DataType, Error, Region, Request, blocking};

fn main() -> Result<(), Error> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "http://localhost:8000".to_owned());
    println!("{:?}", sums(&address)?);
    Ok(())
}

/// The sums that the model computes. The model reads both inputs in the region, and writes its output there.
pub fn sums(address: &str) -> Result<Vec<i32>, Error> {
    let client = blocking::http::Client::new(address)?;
    let region = Region::create(&format!("/sums-{}", std::process::id()), 192)?;
    region.write(0, &[1i32; 16])?;
    region.write(64, &[2i32; 16])?;
    let region = blocking::wait(region.register(&client, "sums"))?;
    let request = Request::new("simple")
        .input_in_region("INPUT0", DataType::Int32, &[1, 16], &region, 0)?
        .input_in_region("INPUT1", DataType::Int32, &[1, 16], &region, 64)?
        .output_in_region("OUTPUT0", &region, 128, 64);
    client.infer(&request)?;
    let sums = region.view::<i32>(128, 16)?.to_vec();
    blocking::wait(region.unregister())?;
    Ok(sums)
}
