//! From which size on is shared memory faster?

use std::time::{Duration, Instant};

use nerite_client::{CellsMut, DataType, Error, Region, RegisteredRegion, Request, Response, Tensor, grpc, http};

use super::copies::copied_bytes;
use super::show::{Progress, is_too_wide, size, time};
use super::{DemoError, DemoOptions};

/// Bytes of the tensors measured.
const SIZES: [usize; 8] = [64, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// Time spent on one cell of the table, unless the fewest repetitions take longer.
const CELL_TIME: Duration = Duration::from_millis(300);
const REPEAT_MIN: usize = 5;
const REPEAT_MAX: usize = 1000;
const MODEL: &str = "identity_fp32";

const TITLE: &str = "           │    HTTP, p50 (copies)       │    gRPC, p50 (copies)
    tensor │         inline        shared │         inline        shared";
/// The same in lines of [`NARROW_CELL`].
const NARROW_TITLE: &str = "  tensor, p50 (copies) inline     shared";
/// Characters of a cell where a size has a line for each protocol. The line has fewer than 40.
const NARROW_CELL: usize = 13;
const LEGEND: &str = "One identity request, result read back. Copies: how often the server copied the tensor;
the identity model's own work is one of them.";

/// One size, four ways.
#[derive(Clone, Debug)]
pub struct Row {
    /// Bytes of the input, and of the output.
    pub bytes: usize,
    /// HTTP inline, HTTP shared, gRPC inline, gRPC shared; `None` where the system had no room for the region.
    pub cells: [Option<Cell>; 4],
}

/// The cost of one request.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// Median time from request to result, in µs.
    pub p50_us: f64,
    /// How often the server copied the tensor; `None` if it does not count.
    pub copies: Option<f64>,
}

/// Measures every size every way, and prints each row of the table as soon as it is known.
pub(super) async fn measure(options: &DemoOptions) -> Result<Vec<Row>, DemoError> {
    let bench = Bench {
        http: http::Client::new(&options.http_url)?,
        grpc: grpc::Client::new(&options.grpc_url)?,
        metrics: http::Client::new(&options.metrics_url)?,
    };
    let progress = Progress::new(SIZES.len() as u64);
    let (mut rows, mut no_room) = (Vec::new(), None);
    let is_narrow = is_too_wide(TITLE);
    println!("\n{}", if is_narrow { NARROW_TITLE } else { TITLE });
    for bytes in SIZES {
        let row = bench.row(bytes, &mut no_room).await?;
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

struct Bench {
    http: http::Client,
    grpc: grpc::Client,
    metrics: http::Client,
}

#[derive(Clone, Copy)]
enum Protocol {
    Http,
    Grpc,
}

impl Bench {
    async fn row(&self, bytes: usize, no_room: &mut Option<String>) -> Result<Row, DemoError> {
        let inline = inline(bytes)?;
        let (http_inline, grpc_inline) =
            (self.cell(Protocol::Http, &inline, bytes).await?, self.cell(Protocol::Grpc, &inline, bytes).await?);
        drop(inline);
        let (http_shared, grpc_shared) = match Windows::make(&self.http, bytes).await {
            Ok(windows) => {
                let request = windows.request(bytes)?;
                let http = self.cell(Protocol::Http, &request, bytes).await?;
                let grpc = self.cell(Protocol::Grpc, &request, bytes).await?;
                windows.end().await?;
                (Some(http), Some(grpc))
            }
            Err(DemoError::Client(fault @ Error::Region { .. })) => {
                *no_room = Some(fault.to_string());
                (None, None)
            }
            Err(other) => return Err(other),
        };
        Ok(Row { bytes, cells: [Some(http_inline), http_shared, Some(grpc_inline), grpc_shared] })
    }

    /// Repeats one request until its time is over, and reads the server's count of copies before and after.
    async fn cell(&self, protocol: Protocol, request: &Request, bytes: usize) -> Result<Cell, DemoError> {
        self.infer(protocol, request).await?;
        let before = copied_bytes(&self.metrics).await?;
        let (since, mut times_us) = (Instant::now(), Vec::new());
        while times_us.len() < REPEAT_MIN || (since.elapsed() < CELL_TIME && times_us.len() < REPEAT_MAX) {
            let start = Instant::now();
            let response = self.infer(protocol, request).await?;
            times_us.push(start.elapsed().as_secs_f64() * 1e6);
            drop(response);
        }
        let after = copied_bytes(&self.metrics).await?;
        let copied = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        let copies = copied.map(|copied| copied as f64 / (times_us.len() * bytes) as f64);
        times_us.sort_by(f64::total_cmp);
        Ok(Cell { p50_us: times_us[times_us.len() / 2], copies })
    }

    async fn infer(&self, protocol: Protocol, request: &Request) -> Result<Response, Error> {
        match protocol {
            Protocol::Http => self.http.infer(request).await,
            Protocol::Grpc => self.grpc.infer(request).await,
        }
    }
}

fn inline(bytes: usize) -> Result<Request, DemoError> {
    let values = vec![1.0f32; bytes / 4];
    Ok(Request::new(MODEL).input(Tensor::from_slice("INPUT0", &[values.len() as i64], &values)?))
}

/// A region to read from and one to write to.
struct Windows {
    from: RegisteredRegion,
    to: RegisteredRegion,
}

impl Windows {
    async fn make(client: &http::Client, bytes: usize) -> Result<Windows, DemoError> {
        let me = std::process::id();
        let from = Region::create(&format!("/nerite_demo_{me}_from"), bytes)?;
        from.edit(0, bytes / 4, |mut place: CellsMut<'_, f32>| place.fill(1.0))?;
        let to = Region::create(&format!("/nerite_demo_{me}_to"), bytes)?;
        let from = from.register(client, &format!("demo_{me}_from")).await?;
        let to = to.register(client, &format!("demo_{me}_to")).await?;
        Ok(Windows { from, to })
    }

    fn request(&self, bytes: usize) -> Result<Request, DemoError> {
        let shape = [(bytes / 4) as i64];
        Ok(Request::new(MODEL)
            .input_in_region("INPUT0", DataType::Fp32, &shape, &self.from, 0)?
            .output_in_region("OUTPUT0", &self.to, 0, bytes))
    }

    async fn end(self) -> Result<(), DemoError> {
        self.from.unregister().await?;
        Ok(self.to.unregister().await?)
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>10}", size(self.bytes))?;
        for protocol in self.cells.chunks_exact(2) {
            f.write_str(" │ ")?;
            for cell in protocol {
                write!(f, "{:>14}", cell.map_or("–".to_owned(), shown))?;
            }
        }
        Ok(())
    }
}

impl Row {
    /// The same in two short lines.
    fn narrow(&self) -> String {
        let line = |(protocol, cells): (&str, &[Option<Cell>])| {
            let shown = |cell: &Option<Cell>| format!("{:>NARROW_CELL$}", cell.map_or("–".to_owned(), shown));
            format!("{protocol}{}", cells.iter().map(shown).collect::<String>())
        };
        let first = format!("{:>7} HTTP", size(self.bytes));
        let labels = [first.as_str(), "        gRPC"];
        labels.into_iter().zip(self.cells.chunks_exact(2)).map(line).collect::<Vec<_>>().join("\n")
    }
}

fn shown(cell: Cell) -> String {
    let copies = cell.copies.map(|copies| format!(" ({copies:.0})")).unwrap_or_default();
    time(cell.p50_us) + &copies
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_that_could_not_be_measured_is_a_dash() {
        let cell = Some(Cell { p50_us: 81.0, copies: Some(1.0) });
        let line = Row { bytes: 64, cells: [cell, None, cell, None] }.to_string();
        assert_eq!(line.split_whitespace().collect::<String>(), "64B│81µs(1)–│81µs(1)–");
    }

    #[test]
    fn short_lines_have_the_same_cells() {
        let [short, long] = [81.0, 12_345.0].map(|p50_us| Some(Cell { p50_us, copies: Some(2.0) }));
        let text = Row { bytes: 256 << 10, cells: [short, None, long, long] }.narrow();
        assert_eq!(text, "256 KiB HTTP    81 µs (2)            –\n        gRPC  12.3 ms (2)  12.3 ms (2)");
        assert!(text.lines().chain([NARROW_TITLE]).all(|line| line.chars().count() <= 40));
    }
}
