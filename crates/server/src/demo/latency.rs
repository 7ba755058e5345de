//! From which size on is shared memory faster?

use nerite_bench::Measured;

use super::show::{Progress, is_too_wide, size, time};
use super::{DemoError, DemoOptions, bench};

/// Bytes of the tensors measured.
const SIZES: [usize; 8] = [64, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// Bytes that the requests of one cell of the table have together, unless that would be too few or too many requests.
const CELL_BYTES: usize = 64 << 20;
const REPEAT_MIN: usize = 5;
const REPEAT_MAX: usize = 1000;
const MODEL: &str = "identity_fp32";

const TITLE: &str = "           │    HTTP, p50 (copies)       │    gRPC, p50 (copies)
    tensor │         inline        shared │         inline        shared";
/// The same in lines of [`NARROW_CELL`].
const NARROW_TITLE: &str = "  tensor, p50 (copies) inline     shared";
/// Characters of a cell where a size has a line for each protocol. The line has fewer than 40.
const NARROW_CELL: usize = 13;
const LEGEND: &str = "One identity request, as `nerite bench` measures it. Copies: how often the server
copied the tensor; the identity model's own work is one of them.";

/// One size, four ways.
#[derive(Clone, Debug)]
pub struct Row {
    /// Bytes of the input, and of the output.
    pub bytes: usize,
    /// HTTP inline, HTTP shared, gRPC inline, gRPC shared; `None` where the system had no room for the region.
    pub cells: [Option<Measured>; 4],
}

/// Measures every size every way, and prints each row of the table as soon as it is known.
pub(super) async fn measure(options: &DemoOptions) -> Result<Vec<Row>, DemoError> {
    let progress = Progress::new(SIZES.len() as u64);
    let (mut rows, mut no_room) = (Vec::new(), None);
    let is_narrow = is_too_wide(TITLE);
    println!("\n{}", if is_narrow { NARROW_TITLE } else { TITLE });
    for bytes in SIZES {
        let row = row(options, bytes, &mut no_room).await?;
        progress.line(&if is_narrow { row.narrow() } else { row.to_string() });
        progress.step(&size(bytes));
        rows.push(row);
    }
    drop(progress);
    println!("{LEGEND}");
    if let Some(reason) = no_room {
        println!("– : {reason}");
    }
    Ok(rows)
}

/// Measures one size four ways. Where shared memory fails, most likely for lack of room, the reason is kept.
async fn row(options: &DemoOptions, bytes: usize, no_room: &mut Option<DemoError>) -> Result<Row, DemoError> {
    let DemoOptions { http_url, grpc_url, metrics_url, .. } = options;
    let (elements, requests) = (bytes / 4, (CELL_BYTES / bytes).clamp(REPEAT_MIN, REPEAT_MAX));
    let mut cells = [None; 4];
    let ways = [("http", http_url), ("grpc", grpc_url)].into_iter().flat_map(|way| [(way, "none"), (way, "system")]);
    for (cell, ((protocol, url), memory)) in cells.iter_mut().zip(ways) {
        let line = format!(
            "-m {MODEL} -i {protocol} -u {url} --metrics-url {metrics_url}/metrics --shape INPUT0:{elements} \
             --shared-memory {memory} --output-shared-memory-size {bytes} --request-count {requests}"
        );
        match bench(line).await {
            Err(reason) if memory == "system" => *no_room = Some(reason),
            measured => *cell = Some(measured?),
        }
    }
    Ok(Row { bytes, cells })
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>10}", size(self.bytes))?;
        for protocol in self.cells.chunks_exact(2) {
            f.write_str(" │ ")?;
            for cell in protocol {
                write!(f, "{:>14}", self.shown(*cell))?;
            }
        }
        Ok(())
    }
}

impl Row {
    /// The same in two short lines.
    fn narrow(&self) -> String {
        let line = |(protocol, cells): (&str, &[Option<Measured>])| {
            let shown = |cell: &Option<Measured>| format!("{:>NARROW_CELL$}", self.shown(*cell));
            format!("{protocol}{}", cells.iter().map(shown).collect::<String>())
        };
        let first = format!("{:>7} HTTP", size(self.bytes));
        let labels = [first.as_str(), "        gRPC"];
        labels.into_iter().zip(self.cells.chunks_exact(2)).map(line).collect::<Vec<_>>().join("\n")
    }

    /// The time of a request, and how often the server copied the tensor.
    fn shown(&self, cell: Option<Measured>) -> String {
        let Some(Measured { p50_us, copied_bytes, .. }) = cell else { return "–".to_owned() };
        let copies = copied_bytes.map(|copied| format!(" ({:.0})", copied / self.bytes as f64)).unwrap_or_default();
        time(p50_us) + &copies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(p50_us: f64, copied_bytes: usize) -> Measured {
        Measured { p50_us, copied_bytes: Some(copied_bytes as f64), ..Measured::default() }
    }

    #[test]
    fn a_cell_that_could_not_be_measured_is_a_dash() {
        let cell = Some(cell(81.0, 64));
        let line = Row { bytes: 64, cells: [cell, None, cell, None] }.to_string();
        assert_eq!(line.split_whitespace().collect::<String>(), "64B│81µs(1)–│81µs(1)–");
    }

    #[test]
    fn short_lines_have_the_same_cells() {
        let [short, long] = [81.0, 12_345.0].map(|p50_us| Some(cell(p50_us, 512 << 10)));
        let text = Row { bytes: 256 << 10, cells: [short, None, long, long] }.narrow();
        assert_eq!(text, "256 KiB HTTP    81 µs (2)            –\n        gRPC  12.3 ms (2)  12.3 ms (2)");
        assert!(text.lines().chain([NARROW_TITLE]).all(|line| line.chars().count() <= 40));
    }
}
