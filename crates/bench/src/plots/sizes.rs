//! From which size of a tensor on is shared memory worth it?

use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::{Axis, bytes, duration};
use super::frame::{
    Area, Drawn, FIRST, HEIGHT, INK, SECOND, WIDTH, chart, draw_label, draw_line, draw_upright, picture, text, theme,
};
use crate::break_even::break_even;
use crate::results::{Point, SizePoint, SizeSweep};

const TITLE_HEIGHT: u32 = 34;

/// The medians over the size, with the point where they cross.
pub(crate) fn sizes(sweep: &SizeSweep) -> String {
    picture((WIDTH, HEIGHT), |area| draw(area, sweep))
}

/// The same with a title, for a document that shows it as a file: the colours for the dark are within.
pub(crate) fn size_picture(sweep: &SizeSweep, title: &str) -> String {
    let picture = picture((WIDTH, HEIGHT + TITLE_HEIGHT), |area| {
        let (top, below) = area.split_vertically(TITLE_HEIGHT);
        let middle = Pos::new(HPos::Center, VPos::Center);
        top.draw_text(title, &text(INK).pos(middle), ((WIDTH / 2) as i32, (TITLE_HEIGHT / 2) as i32))?;
        draw(&below, sweep)
    });
    picture.replacen(">\n", &format!(">\n<style>{}</style>\n", theme()), 1)
}

fn draw(area: &Area<'_>, sweep: &SizeSweep) -> Drawn {
    let line = |memory: fn(&SizePoint) -> &Point| {
        let points = sweep.points.iter().map(move |one| (one.bytes as f64, memory(one).client.percentile_us(50.0)));
        points.filter(|(bytes, latency)| *bytes > 0.0 && *latency > 0.0).collect::<Vec<_>>()
    };
    let lines = [(line(|one| &one.inline), FIRST), (line(|one| &one.shared), SECOND)];
    let measured: Vec<f64> = sweep.points.iter().map(|one| one.bytes as f64).collect();
    let x = Axis::log_of("bytes of a tensor (log scale)", &measured, bytes);
    let y = Axis::log(
        "p50 latency (log scale)",
        lines.iter().flat_map(|(line, _)| line).map(|(_, latency)| *latency),
        duration,
    );
    let mut chart = chart(area, &[("in the message", FIRST), ("in shared memory", SECOND)], &x, &y)?;
    if let Some(crossing) = break_even(&sweep.points) {
        draw_upright(&mut chart, crossing, &y)?;
        let label = format!("break-even at {}", bytes(crossing));
        draw_label(&chart, (crossing, y.scale.range.end), (8, 12), HPos::Left, &label, INK)?;
    }
    for (line, color) in lines {
        draw_line(&mut chart, &line, color)?;
    }
    Ok(())
}
