//! How well does the model read handwriting it has not seen?

use std::path::Path;

use nerite_client::{CellsMut, DataType, Region, RegisteredRegion, Request, http};

use super::DemoError;
use super::show::columns;

/// Pixels of a sample, 8 rows of 8.
pub(super) const PIXELS: usize = 64;
/// Pixels of a row, and rows.
pub(super) const SIDE: usize = 8;
const CLASSES: usize = 10;
/// The model's `max_batch_size`.
const BATCH_MAX: usize = 64;
/// Digits shown side by side.
const SHOWN: usize = 6;
/// Characters of a line that a digit takes, with the space before it.
const COLUMN: usize = 20;
/// The characters for pixel values 0 (paper) to 16 (ink).
const INK: &[u8; 17] = b"  ..::--==++**##@";

/// One handwritten digit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) pixels: [u8; PIXELS],
    pub(super) digit: u8,
}

/// How many digits were recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accuracy {
    /// The digits that were recognised.
    pub right: usize,
    /// All digits.
    pub of: usize,
}

/// The samples of a file: a little-endian u32 count, then for each 64 pixels (0 to 16, row by row) and the digit.
pub(super) fn read(path: &Path) -> Result<Vec<Sample>, DemoError> {
    let fault = |reason: String| DemoError::Samples { path: path.display().to_string(), reason };
    parse(&std::fs::read(path).map_err(|reason| fault(reason.to_string()))?).map_err(fault)
}

fn parse(bytes: &[u8]) -> Result<Vec<Sample>, String> {
    let (count, rest) = bytes.split_first_chunk::<4>().ok_or("no count")?;
    let count = u32::from_le_bytes(*count) as usize;
    if rest.len() != count.saturating_mul(PIXELS + 1) {
        return Err(format!("{} bytes for {count} samples", rest.len()));
    }
    let sample = |one: &[u8]| {
        let (pixels, digit) = one.split_first_chunk::<PIXELS>().ok_or("a sample cut short")?;
        Ok(Sample { pixels: *pixels, digit: digit.first().copied().unwrap_or_default() })
    };
    rest.chunks_exact(PIXELS + 1).map(sample).collect()
}

/// Puts all samples into one region, has them classified in batches, reads the probabilities from another.
pub(super) async fn classify(client: &http::Client, samples: &[Sample]) -> Result<Accuracy, DemoError> {
    let me = std::process::id();
    let images = Region::create(&format!("/nerite_demo_{me}_images"), samples.len() * PIXELS * 4)?;
    for (i, sample) in samples.iter().enumerate() {
        images.edit(i * PIXELS * 4, PIXELS, |mut place: CellsMut<'_, f32>| {
            place.fill_with(sample.pixels.into_iter().map(f32::from));
        })?;
    }
    let answers = Region::create(&format!("/nerite_demo_{me}_answers"), samples.len() * CLASSES * 4)?;
    let images = images.register(client, &format!("demo_{me}_images")).await?;
    let answers = answers.register(client, &format!("demo_{me}_answers")).await?;
    for first in (0..samples.len()).step_by(BATCH_MAX) {
        client.infer(&batch(first, BATCH_MAX.min(samples.len() - first), &images, &answers)?).await?;
    }
    let read = guesses(&answers, samples.len())?;
    images.unregister().await?;
    answers.unregister().await?;
    let right = samples.iter().zip(&read).filter(|(sample, guess)| sample.digit == guess.0).count();
    println!("\n{}\n", drawn(samples, &read, shown_max()));
    println!("{right} of {} unseen digits read rightly, from one shared memory region into another.", samples.len());
    Ok(Accuracy { right, of: samples.len() })
}

fn batch(
    first: usize,
    rows: usize,
    images: &RegisteredRegion,
    answers: &RegisteredRegion,
) -> Result<Request, DemoError> {
    let shape = [rows as i64, PIXELS as i64];
    Ok(Request::new("digits")
        .input_in_region("image", DataType::Fp32, &shape, images, first * PIXELS * 4)?
        .output_in_region("probabilities", answers, first * CLASSES * 4, rows * CLASSES * 4))
}

/// For each sample the most probable digit, and its probability.
fn guesses(answers: &Region, count: usize) -> Result<Vec<(u8, f32)>, DemoError> {
    let probabilities = answers.view::<f32>(0, count * CLASSES)?.to_vec();
    let best = |row: &[f32]| {
        let numbered = (0u8..).zip(row.iter().copied());
        numbered.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default()
    };
    Ok(probabilities.chunks_exact(CLASSES).map(best).collect())
}

/// How many digits fit into a line of the terminal. Output that is not a terminal shows all.
fn shown_max() -> usize {
    columns().map_or(SHOWN, |columns| (columns / COLUMN).clamp(1, SHOWN))
}

/// At most `max` digits side by side, a misread one among them if there is one.
fn drawn(samples: &[Sample], read: &[(u8, f32)], max: usize) -> String {
    let wrong = samples.iter().zip(read).position(|(sample, guess)| sample.digit != guess.0);
    let mut shown: Vec<usize> = (0..samples.len()).filter(|i| Some(*i) != wrong).take(max - 1).collect();
    shown.extend(wrong.or(Some(shown.len()).filter(|i| *i < samples.len())));
    let width = COLUMN - 2;
    let column = |text: String| format!("  {text:<width$}");
    let mut lines = vec![String::new(); SIDE + 1];
    for &i in &shown {
        for (line, row) in lines.iter_mut().zip(samples[i].pixels.chunks_exact(SIDE)) {
            // Two characters a pixel: a terminal's cells are twice as high as wide.
            let ink = |pixel: &u8| INK[usize::from(*pixel).min(INK.len() - 1)] as char;
            line.push_str(&column(row.iter().flat_map(|pixel| [ink(pixel); 2]).collect()));
        }
        let (digit, (guess, probability)) = (samples[i].digit, read[i]);
        let verdict = if digit == guess { String::new() } else { format!(" not {digit}") };
        lines[SIDE].push_str(&column(format!("read {guess}{verdict}, {:.0} %", probability * 100.0)));
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join(
        "
",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_holds_as_many_samples_as_it_says() {
        let mut file = 2u32.to_le_bytes().to_vec();
        file.extend([16; PIXELS]);
        file.push(3);
        file.extend([0; PIXELS]);
        file.push(4);
        let samples = parse(&file).expect("two samples");
        assert_eq!((samples[0].digit, samples[1].digit, samples[0].pixels[63]), (3, 4, 16));
        assert_eq!(parse(&file[..100]), Err("96 bytes for 2 samples".to_owned()));
        assert_eq!(parse(&[1, 0]), Err("no count".to_owned()));
    }

    #[test]
    fn a_misread_digit_is_shown_as_one() {
        let samples = vec![Sample { pixels: [16; PIXELS], digit: 7 }; 3];
        let picture = drawn(&samples, &[(7, 1.0), (1, 0.5), (7, 1.0)], SHOWN);
        assert!(picture.starts_with("  @@@@@@@@@@@@@@@@"), "{picture}");
        assert!(picture.contains("read 1 not 7, 50 %"), "{picture}");
        // On a narrow terminal the misread digit is the last one that is shown.
        let narrow = drawn(&samples, &[(7, 1.0), (1, 0.5), (7, 1.0)], 2);
        assert!(narrow.contains("read 1 not 7, 50 %"), "{narrow}");
        assert!(narrow.lines().all(|line| line.chars().count() <= 2 * COLUMN), "{narrow}");
        assert_eq!(drawn(&samples, &[(7, 1.0), (1, 0.5), (7, 1.0)], 1).lines().last(), Some("  read 1 not 7, 50 %"));
    }
}
