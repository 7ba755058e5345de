//! How are operations on strings lowered?

use nerite_backend_sdk::DataType;

use super::{Lower, Lowered, Site, numeric};
use crate::attributes::{self, to_number};
use crate::fact::Fact;

/// The longest text of a number: the largest one of 64 bits with its decimals.
const NUMBER_TEXT_MAX: u64 = 330;

/// Operations from and to strings.
pub fn find(op: &str) -> Option<Lower> {
    Some(match op {
        "AsString" => as_string,
        "StringToNumber" => to_number_op,
        _ => return None,
    })
}

fn as_string(site: &Site<'_>) -> Result<Lowered, String> {
    let [x] = site.arity()?;
    numeric(x)?;
    let is_usual = |name: &str, usual: i64| attributes::int(site.node, name).is_none_or(|found| found == usual);
    let is_plain = !attributes::flag(site.node, "scientific")
        && !attributes::flag(site.node, "shortest")
        && attributes::text(site.node, "fill").is_empty()
        && is_usual("precision", -1)
        && is_usual("width", -1);
    if !is_plain || x.datatype == DataType::Fp16 {
        return Err("of its ways to write numbers this engine has the usual one only".to_owned());
    }
    let fact = Fact { text_max: NUMBER_TEXT_MAX, ..Fact::new(DataType::Bytes, x.dims.clone()) };
    Ok(Lowered::one(fact, site.make("nerite.AsString", &site.names)))
}

fn to_number_op(site: &Site<'_>) -> Result<Lowered, String> {
    let [x] = site.arity()?;
    if x.datatype != DataType::Bytes {
        return Err(format!("its input is {}, and must be strings", x.datatype.name()));
    }
    let is_said = site.node.attr.contains_key("out_type");
    let to = if is_said { attributes::datatype(site.node, "out_type")? } else { DataType::Fp32 };
    if !matches!(to, DataType::Fp32 | DataType::Fp64 | DataType::Int32 | DataType::Int64) {
        return Err(format!("it makes {}, and strings become FP32, FP64, INT32 or INT64 only", to.name()));
    }
    let number = to_number(to).ok_or("a datatype that the engine lacks")?;
    Ok(Lowered::one(
        Fact::new(to, x.dims.clone()),
        site.make("nerite.StringToNumber", &site.names).attr("out_type", number),
    ))
}
