//! What have all pictures in common?

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::{Axis, Scale};

pub(super) const INK: RGBColor = RGBColor(0x1F, 0x24, 0x30);
pub(super) const MUTED: RGBColor = RGBColor(0x6B, 0x72, 0x80);
const GRID: RGBColor = RGBColor(0xE3, 0xE6, 0xEB);
/// The colours of two things that are compared. They keep apart for people who do not see red and green apart.
pub(super) const FIRST: RGBColor = RGBColor(0x2F, 0x6F, 0xDE);
pub(super) const SECOND: RGBColor = RGBColor(0xD9, 0x7A, 0x06);

pub(super) const WIDTH: u32 = 760;
pub(super) const HEIGHT: u32 = 420;
pub(super) const LEGEND_HEIGHT: u32 = 34;
pub(super) const X_AXIS_HEIGHT: u32 = 54;
const Y_AXIS_WIDTH: u32 = 72;
const MARGIN_LEFT: u32 = 6;
const MARGIN_RIGHT: u32 = 30;
/// The backend writes sizes divided by 1.24.
const FONT_SIZE: f64 = 16.0;
/// Around the width of a letter.
const LETTER_WIDTH: i32 = 7;

pub(super) type Drawn<T = ()> = Result<T, DrawingAreaErrorKind<std::io::Error>>;
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type Chart<'c, 'a> = ChartContext<'c, SVGBackend<'a>, Cartesian2d<Scale, Scale>>;

/// What a page has to say of the colours of pictures, so that they fit its dark form.
pub(crate) fn theme() -> String {
    let of = |color: RGBColor| format!("#{:02X}{:02X}{:02X}", color.0, color.1, color.2);
    let (ink, muted, grid) = (of(INK), of(MUTED), of(GRID));
    format!(
        "@media(prefers-color-scheme:dark){{svg [fill=\"{ink}\"]{{fill:#e6e8ec}}svg [stroke=\"{ink}\"]{{stroke:#e6e8ec}}\
         svg [fill=\"{muted}\"]{{fill:#9aa2b1}}svg [stroke=\"{muted}\"]{{stroke:#9aa2b1}}svg [stroke=\"{grid}\"]{{stroke:#2c313c}}}}"
    )
}

/// An SVG element of this size.
pub(super) fn picture(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Drawn) -> String {
    let mut out = String::new();
    let area = SVGBackend::with_string(&mut out, size).into_drawing_area();
    draw(&area).and_then(|()| area.present()).expect("a string takes all that is drawn");
    drop(area);
    out
}

/// A legend above two axes and a grid.
pub(super) fn chart<'c, 'a>(area: &Area<'a>, legend: &[(&str, RGBColor)], x: &Axis, y: &Axis) -> Drawn<Chart<'c, 'a>> {
    let (top, below) = area.split_vertically(LEGEND_HEIGHT);
    draw_legend(&top, legend)?;
    let mut chart = ChartBuilder::on(&below)
        .margin_left(MARGIN_LEFT)
        .margin_right(MARGIN_RIGHT)
        .x_label_area_size(X_AXIS_HEIGHT)
        .y_label_area_size(Y_AXIS_WIDTH)
        .build_cartesian_2d(x.scale.clone(), y.scale.clone())?;
    chart
        .configure_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(MUTED)
        .label_style(text(MUTED))
        .axis_desc_style(text(INK))
        .x_desc(x.name)
        .y_desc(y.name)
        .x_label_formatter(&|mark| (x.label)(*mark))
        .y_label_formatter(&|mark| (y.label)(*mark))
        .draw()?;
    Ok(chart)
}

fn draw_legend(area: &Area<'_>, legend: &[(&str, RGBColor)]) -> Drawn {
    const SIDE: i32 = 11;
    const GAP: i32 = 7;
    let (mut x, top) = ((MARGIN_LEFT + Y_AXIS_WIDTH) as i32, 8);
    for (name, color) in legend {
        area.draw(&Rectangle::new([(x, top), (x + SIDE, top + SIDE)], color.filled()))?;
        x += SIDE + GAP;
        let middle = Pos::new(HPos::Left, VPos::Center);
        area.draw_text(name, &text(INK).pos(middle), (x, top + SIDE / 2))?;
        x += name.chars().count() as i32 * LETTER_WIDTH + 3 * GAP;
    }
    Ok(())
}

pub(super) fn text(color: RGBColor) -> TextStyle<'static> {
    ("sans-serif", FONT_SIZE).into_font().color(&color)
}

/// A line through points, with a dot at each.
pub(super) fn draw_line(chart: &mut Chart<'_, '_>, points: &[(f64, f64)], color: RGBColor) -> Drawn {
    chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?;
    draw_dots(chart, points, color)
}

pub(super) fn draw_dots(chart: &mut Chart<'_, '_>, points: &[(f64, f64)], color: RGBColor) -> Drawn {
    const RADIUS: i32 = 4;
    chart.draw_series(points.iter().map(|point| Circle::new(*point, RADIUS, color.filled())))?;
    Ok(())
}

/// A label beside a point: this many pixels to the right and below.
pub(super) fn draw_label(
    chart: &Chart<'_, '_>,
    point: (f64, f64),
    offset: (i32, i32),
    side: HPos,
    label: &str,
    color: RGBColor,
) -> Drawn {
    let (x, y) = chart.backend_coord(&point);
    let (left, top) = chart.plotting_area().strip_coord_spec().get_base_pixel();
    let style = text(color).pos(Pos::new(side, VPos::Center));
    chart.plotting_area().strip_coord_spec().draw_text(label, &style, (x - left + offset.0, y - top + offset.1))
}

/// A line from the bottom to the top.
pub(super) fn draw_upright(chart: &mut Chart<'_, '_>, x: f64, y: &Axis) -> Drawn {
    let ends = [(x, y.scale.range.start), (x, y.scale.range.end)];
    chart.draw_series(LineSeries::new(ends, MUTED.stroke_width(1)))?;
    Ok(())
}
