//! How are the layers of neural networks lowered?

use nerite_backend_sdk::DataType;

use super::{Lower, Lowered, Site, same_datatype};
use crate::attributes;
use crate::fact::Fact;

/// The functions for layers over images in the layout rows, height, width, channels.
pub fn find(op: &str) -> Option<Lower> {
    Some(match op {
        "Conv2D" => conv,
        "DepthwiseConv2dNative" => depthwise,
        "AvgPool" | "MaxPool" => pool,
        "FusedBatchNorm" | "FusedBatchNormV2" | "FusedBatchNormV3" => batch_norm,
        _ => return None,
    })
}

/// A window that moves over height and width.
struct Window {
    steps: [i64; 2],
    is_same: bool,
}

impl Window {
    fn of(site: &Site<'_>) -> Result<Window, String> {
        check_format(site)?;
        let is_same = match attributes::text(site.node, "padding") {
            b"SAME" => true,
            b"VALID" => false,
            other => return Err(format!("padding {} is not in this engine", String::from_utf8_lossy(other))),
        };
        let spread = attributes::ints(site.node, "dilations");
        let spread = if spread.is_empty() { [1, 1] } else { inner(spread, "dilations")? };
        if spread != [1, 1] {
            return Err("dilations are not in this engine".to_owned());
        }
        Ok(Window { steps: inner(attributes::ints(site.node, "strides"), "strides")?, is_same })
    }

    /// Height and width of the output, for a window of this size.
    fn over(&self, x: &Fact, size: [usize; 2]) -> Result<[usize; 2], String> {
        let one = |index: usize| {
            let (dim, step) = (x.dims[index + 1], self.steps[index] as usize);
            if self.is_same {
                return Some(dim.div_ceil(step));
            }
            Some(dim.checked_sub(size[index])? / step + 1)
        };
        match (one(0), one(1)) {
            (Some(height), Some(width)) if x.dims[1] > 0 && x.dims[2] > 0 => Ok([height, width]),
            _ => Err(format!("a window of {size:?} does not fit shape {:?}", x.dims)),
        }
    }

    fn padding(&self) -> &'static str {
        if self.is_same { "SAME" } else { "VALID" }
    }
}

/// Height and width of `[1, height, width, 1]`.
fn inner(list: &[i64], name: &str) -> Result<[i64; 2], String> {
    match *list {
        [1, height @ 1..=4096, width @ 1..=4096, 1] => Ok([height, width]),
        _ => Err(format!("{name} {list:?} are not of the form [1, height, width, 1], with 4096 at most")),
    }
}

fn picture(x: &Fact) -> Result<[usize; 4], String> {
    let dims = x
        .dims
        .clone()
        .try_into()
        .map_err(|_| format!("its input has the shape {:?}, and must have 4 dimensions", x.dims))?;
    if x.datatype == DataType::Fp32 {
        Ok(dims)
    } else {
        Err(format!("its input is {}, and must be FP32", x.datatype.name()))
    }
}

fn conv(site: &Site<'_>) -> Result<Lowered, String> {
    let [x, kernel] = site.arity()?;
    let window = Window::of(site)?;
    let ([rows, .., channels], [height, width, inner, outer]) = (picture(x)?, picture(kernel)?);
    if channels != inner {
        return Err(format!("a kernel of shape {:?} does not fit shape {:?}", kernel.dims, x.dims));
    }
    same_datatype(x, kernel)?;
    let [high, wide] = window.over(x, [height, width])?;
    let made = site.make("Conv2D", &site.names).attr("padding", window.padding());
    let made = made.attr("strides", vec![1, window.steps[0], window.steps[1], 1]).attr("data_format", "NHWC");
    let fact = Fact::new(x.datatype, vec![rows, high, wide, outer]);
    // The engine copies the window of each output position to a row of a matrix, which is then multiplied.
    let unrolled = Fact::new(x.datatype, vec![rows, high, wide, height, width, inner]);
    let scratch_bytes = unrolled.bytes().ok_or("its window is too large")?;
    Ok(Lowered { scratch_bytes, ..Lowered::one(fact, made) })
}

fn depthwise(site: &Site<'_>) -> Result<Lowered, String> {
    let [x, kernel] = site.arity()?;
    let window = Window::of(site)?;
    let ([rows, .., channels], [height, width, inner, times]) = (picture(x)?, picture(kernel)?);
    if channels != inner {
        return Err(format!("a kernel of shape {:?} does not fit shape {:?}", kernel.dims, x.dims));
    }
    let [high, wide] = window.over(x, [height, width])?;
    let outer = channels.checked_mul(times).ok_or("its output is too large")?;
    let made = site.make("DepthwiseConv2dNative", &site.names).attr("padding", window.padding());
    let made = made.attr("strides", vec![1, window.steps[0], window.steps[1], 1]).attr("data_format", "NHWC");
    let made = made.attr("dilations", vec![1, 1, 1, 1]);
    let fact = Fact::new(x.datatype, vec![rows, high, wide, outer]);
    let unrolled = Fact::new(x.datatype, vec![rows, high, wide, height, width, channels]);
    Ok(Lowered { scratch_bytes: unrolled.bytes().ok_or("its window is too large")?, ..Lowered::one(fact, made) })
}

fn pool(site: &Site<'_>) -> Result<Lowered, String> {
    let [x] = site.arity()?;
    let window = Window::of(site)?;
    let [rows, .., channels] = picture(x)?;
    let size = inner(attributes::ints(site.node, "ksize"), "ksize")?;
    let [high, wide] = window.over(x, size.map(|side| side as usize))?;
    let made = site.make(&site.node.op, &site.names).attr("padding", window.padding()).attr("data_format", "NHWC");
    let made =
        made.attr("strides", vec![1, window.steps[0], window.steps[1], 1]).attr("ksize", vec![1, size[0], size[1], 1]);
    Ok(Lowered::one(Fact::new(x.datatype, vec![rows, high, wide, channels]), made))
}

fn batch_norm(site: &Site<'_>) -> Result<Lowered, String> {
    let [x, rest @ ..] = site.arity::<5>()?;
    let [.., channels] = picture(x)?;
    // The attribute's default is true.
    if site.node.attr.get("is_training").is_none_or(|_| attributes::flag(site.node, "is_training")) {
        return Err("it is made for training; freeze the graph with is_training=False".to_owned());
    }
    check_format(site)?;
    if rest.iter().any(|one| one.dims != [channels] || one.datatype != DataType::Fp32) {
        return Err(format!("its parameters do not have the shape [{channels}]"));
    }
    let epsilon = attributes::float(site.node, "epsilon").unwrap_or(1e-4);
    let made = site.make("FusedBatchNorm", &site.names).attr("epsilon", epsilon);
    Ok(Lowered::one(Fact::new(x.datatype, x.dims.clone()), made))
}

fn check_format(site: &Site<'_>) -> Result<(), String> {
    match attributes::text(site.node, "data_format") {
        b"" | b"NHWC" => Ok(()),
        other => Err(format!("data_format {} is not in this engine", String::from_utf8_lossy(other))),
    }
}
