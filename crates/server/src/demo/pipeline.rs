//! How do Python models and a net read digits together?
//!
//! ```text
//!   bitmaps ─► digits_ink (Python) ─► digits (ONNX) ─► digits_label (Python) ─► labels     one ensemble, digits_from_bitmap
//!   the client's region                                                         the client's region
//! ```

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nerite_client::{CellsMut, DataType, Region, RegisteredRegion, Request, http};
use nerite_wire::prometheus;

use super::digits::{Accuracy, PIXELS, SIDE, Sample};
use super::{DemoError, DemoOptions};

pub(super) const MODEL: &str = "digits_from_bitmap";
const COPIED: &str = "nerite_copied_bytes_total";
/// A bitmap has a block of 4 by 4 bytes for each pixel of a sample.
const BLOCK: usize = 4;
const BITMAP_BYTES: usize = PIXELS * BLOCK * BLOCK;
const ROW_BYTES: usize = SIDE * BLOCK;
const NAMES: [&str; 10] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
/// Room for one label, its length and the longest name.
const LABEL_BYTES: usize = 4 + 5;
/// The ensemble's `max_batch_size`.
const BATCH_MAX: usize = 64;

/// The repository with the pipeline, if it is there and the Python on the path has numpy.
pub(super) fn find(examples: &Path) -> Option<PathBuf> {
    let folder = examples.join("pipeline");
    let mut python = Command::new("python3");
    python.args(["-c", "import numpy"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    (folder.is_dir() && python.status().is_ok_and(|status| status.success())).then_some(folder)
}

/// Reads the samples through the pipeline, from one region into another, and prints what was copied on the way.
pub(super) async fn classify(options: &DemoOptions, samples: &[Sample]) -> Result<Accuracy, DemoError> {
    let client = http::Client::new(&options.http_url)?;
    let metrics = http::Client::new(&options.metrics_url)?;
    let me = std::process::id();
    let bitmaps = Region::create(&format!("/nerite_demo_{me}_bitmaps"), samples.len() * BITMAP_BYTES)?;
    for (at, sample) in samples.iter().enumerate() {
        bitmaps.edit(at * BITMAP_BYTES, BITMAP_BYTES, |mut place: CellsMut<'_, u8>| {
            place.fill_with(drawn(&sample.pixels));
        })?;
    }
    let labels = Region::create(&format!("/nerite_demo_{me}_labels"), samples.len() * LABEL_BYTES)?;
    let bitmaps = bitmaps.register(&client, &format!("demo_{me}_bitmaps")).await?;
    let labels = labels.register(&client, &format!("demo_{me}_labels")).await?;
    let before = copied_bytes(&metrics).await?;
    let mut right = 0;
    for (at, chunk) in samples.chunks(BATCH_MAX).enumerate() {
        client.infer(&request(at * BATCH_MAX, chunk.len(), &bitmaps, &labels)?).await?;
        let text = labels.view::<u8>(at * BATCH_MAX * LABEL_BYTES, chunk.len() * LABEL_BYTES)?.to_vec();
        right += chunk.iter().zip(labels_of(&text)).filter(|(sample, label)| is_name(sample.digit, label)).count();
    }
    let after = copied_bytes(&metrics).await?;
    bitmaps.unregister().await?;
    labels.unregister().await?;
    println!(
        "{right} of {} read rightly from bitmaps of 32 by 32, by two Python models and the net as one ensemble.",
        samples.len()
    );
    let (sent, copied) = (samples.len() * BITMAP_BYTES, after - before);
    println!(
        "The first model read the client's {sent} bytes where they lie; the models passed on {copied} bytes by copies."
    );
    Ok(Accuracy { right, of: samples.len() })
}

/// Bytes of tensors that the server has copied since it started, over all reasons.
async fn copied_bytes(metrics: &http::Client) -> Result<f64, DemoError> {
    let page = metrics.page("/metrics").await?;
    let samples = page.lines().filter_map(prometheus::Sample::read).filter(|sample| sample.name == COPIED);
    Ok(samples.map(|sample| sample.value).sum())
}

fn request(
    first: usize,
    rows: usize,
    bitmaps: &RegisteredRegion,
    labels: &RegisteredRegion,
) -> Result<Request, DemoError> {
    let shape = [rows as i64, ROW_BYTES as i64, ROW_BYTES as i64];
    let (offset, byte_size) = (first * LABEL_BYTES, rows * LABEL_BYTES);
    Ok(Request::new(MODEL)
        .input_in_region("bitmap", DataType::Uint8, &shape, bitmaps, first * BITMAP_BYTES)?
        .output_in_region("label", labels, offset, byte_size))
}

/// A bitmap whose blocks hold as many dots as the pixels say.
fn drawn(pixels: &[u8; PIXELS]) -> [u8; BITMAP_BYTES] {
    let mut bitmap = [0; BITMAP_BYTES];
    for (at, dot) in bitmap.iter_mut().enumerate() {
        let (row, column) = (at / ROW_BYTES, at % ROW_BYTES);
        let in_block = (row % BLOCK) * BLOCK + column % BLOCK;
        let ink = usize::from(pixels[row / BLOCK * SIDE + column / BLOCK]);
        *dot = if in_block < ink { u8::MAX } else { 0 };
    }
    bitmap
}

/// The strings of a BYTES tensor, each behind its length as a little-endian u32, up to the first that is cut short.
fn labels_of(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (label, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        bytes = rest;
        Some(label)
    })
}

fn is_name(digit: u8, label: &[u8]) -> bool {
    NAMES.get(usize::from(digit)).is_some_and(|name| name.as_bytes() == label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_as_many_dots_as_its_pixel_says() {
        let mut pixels = [0; PIXELS];
        (pixels[0], pixels[63]) = (5, 16);
        let bitmap = drawn(&pixels);
        assert_eq!(bitmap.iter().filter(|dot| **dot > 0).count(), 21);
        assert_eq!(bitmap[..6], [255, 255, 255, 255, 0, 0]);
        assert_eq!((bitmap[32], bitmap[33], bitmap[BITMAP_BYTES - 1]), (255, 0, 255));
    }

    #[test]
    fn labels_are_read_up_to_the_first_that_is_cut_short() {
        let mut bytes = Vec::new();
        for text in ["seven", "nonsense"] {
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes.extend([9, 0, 0, 0, b'x']);
        let read: Vec<_> = labels_of(&bytes).map(|label| is_name(7, label)).collect();
        assert_eq!(read, [true, false]);
    }
}
