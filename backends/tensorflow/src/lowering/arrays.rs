//! How are operations lowered that reshape tensors or move elements?

use nerite_backend_sdk::DataType;

use super::{Lower, Lowered, Site, named, numbers_node, numeric, pieces, same_datatype};
use crate::attributes::{self, to_number};
use crate::fact::Fact;

/// The functions for operations on shapes and positions.
pub fn find(op: &str) -> Option<Lower> {
    Some(match op {
        "ConcatV2" => concat,
        "ExpandDims" => expand_dims,
        "Fill" => fill,
        "GatherV2" => gather,
        "Pack" => pack,
        "Pad" => pad,
        "Range" => range,
        "Rank" | "Shape" | "Size" => shape,
        "Reshape" => reshape,
        "Slice" => pieces::slice,
        "Squeeze" => squeeze,
        "StridedSlice" => pieces::strided_slice,
        "Tile" => tile,
        "Transpose" => transpose,
        _ => return None,
    })
}

/// The first input in another shape.
pub fn reshaped(site: &Site<'_>, dims: Vec<usize>) -> Lowered {
    let name = site.before("shape");
    let numbers: Vec<i64> = dims.iter().map(|dim| *dim as i64).collect();
    let constant = numbers_node(&name, DataType::Int64, &[dims.len()], &numbers);
    let made = site.make("Reshape", &[site.names[0], &name]);
    Lowered { fact: site.inputs[0].reshaped(dims), nodes: vec![constant, made], scratch_bytes: 0 }
}

fn reshape(site: &Site<'_>) -> Result<Lowered, String> {
    let [x, _] = site.arity()?;
    let (requested, volume) = (site.known(1)?, x.volume().ok_or("its input is too large")?);
    let free = requested.iter().filter(|dim| **dim == -1).count();
    let mut fixed = requested.iter().filter(|dim| **dim != -1);
    let fixed = fixed.try_fold(1usize, |product, dim| product.checked_mul(usize::try_from(*dim).ok()?));
    let refused = || format!("a tensor of shape {:?} cannot have the shape {requested:?}", x.dims);
    let fixed = fixed.ok_or_else(refused)?;
    let rest =
        volume.checked_div(fixed).filter(|rest| rest * fixed == volume && free <= 1 && (free == 1 || *rest == 1));
    let rest = rest.ok_or_else(refused)?;
    Ok(reshaped(site, requested.iter().map(|dim| if *dim == -1 { rest } else { *dim as usize }).collect()))
}

fn expand_dims(site: &Site<'_>) -> Result<Lowered, String> {
    let [x, _] = site.arity()?;
    let axis = x.axis(site.known_one(1)?, 1)?;
    let mut dims = x.dims.clone();
    dims.insert(axis, 1);
    Ok(reshaped(site, dims))
}

fn squeeze(site: &Site<'_>) -> Result<Lowered, String> {
    let [x] = site.arity()?;
    let axes = attributes::ints(site.node, "squeeze_dims").iter().map(|axis| x.axis(*axis, 0));
    let axes = axes.collect::<Result<Vec<_>, _>>()?;
    if let Some(axis) = axes.iter().find(|axis| x.dims[**axis] != 1) {
        return Err(format!("dimension {axis} of shape {:?} is not 1", x.dims));
    }
    let goes = |index: usize, dim: usize| dim == 1 && (axes.is_empty() || axes.contains(&index));
    let kept = x.dims.iter().enumerate().filter(|(index, dim)| !goes(*index, **dim)).map(|(_, dim)| *dim);
    Ok(reshaped(site, kept.collect()))
}

fn shape(site: &Site<'_>) -> Result<Lowered, String> {
    let [x] = site.arity()?;
    let is_said = site.node.attr.contains_key("out_type");
    let datatype = if is_said { attributes::datatype(site.node, "out_type")? } else { DataType::Int32 };
    let volume = x.volume().ok_or("its input is too large")?;
    let (dims, known) = match site.node.op.as_str() {
        "Shape" => (vec![x.rank()], x.dims.iter().map(|dim| *dim as i64).collect()),
        "Rank" => (vec![], vec![x.rank() as i64]),
        _ => (vec![], vec![volume as i64]),
    };
    // Known elements become a constant, so the engine never sees this node.
    Ok(Lowered::one(Fact::of_numbers(datatype, dims, known), site.make("", &[])))
}

fn range(site: &Site<'_>) -> Result<Lowered, String> {
    let [start, ..] = site.arity::<3>()?;
    let (from, to, step) = (site.known_one(0)?, site.known_one(1)?, site.known_one(2)?);
    if step == 0 {
        return Err("its step is 0".to_owned());
    }
    let numbers = std::iter::successors(Some(from), |at| at.checked_add(step));
    let numbers: Vec<i64> = numbers
        .take_while(|at| if step > 0 { *at < to } else { *at > to })
        .take(crate::limits::KNOWN_MAX + 1)
        .collect();
    if numbers.len() > crate::limits::KNOWN_MAX {
        return Err(format!("it makes more than {} numbers", crate::limits::KNOWN_MAX));
    }
    Ok(Lowered::one(Fact::of_numbers(start.datatype, vec![numbers.len()], numbers), site.make("", &[])))
}

fn fill(site: &Site<'_>) -> Result<Lowered, String> {
    let [_, value] = site.arity()?;
    numeric(value)?;
    if value.rank() != 0 {
        return Err(format!("its value has the shape {:?}, and must be one element", value.dims));
    }
    let requested = site.known(0)?;
    let dims = requested
        .iter()
        .map(|dim| usize::try_from(*dim).map_err(|_| format!("the shape {requested:?} has a negative dimension")));
    let mut fact = Fact::new(value.datatype, dims.collect::<Result<_, _>>()?);
    if let (Some(known), Some(volume)) =
        (&value.known, fact.volume().filter(|volume| *volume <= crate::limits::KNOWN_MAX))
    {
        fact.known = known.first().map(|number| vec![*number; volume]);
    }
    // It becomes a repetition of one element, because the engine's Fill takes constants only.
    let ones = site.before("ones");
    let first = named(&site.before("one"), "Reshape", &[site.names[1], &ones]);
    let one_name = first.name.clone();
    let constant = numbers_node(&ones, DataType::Int64, &[requested.len()], &vec![1; requested.len()]);
    let times = site.before("times");
    let multiples = numbers_node(&times, DataType::Int64, &[requested.len()], requested);
    let made = site.make("Tile", &[&one_name, &times]);
    Ok(Lowered { fact, nodes: vec![constant, first, multiples, made], scratch_bytes: 0 })
}

fn tile(site: &Site<'_>) -> Result<Lowered, String> {
    let [x, _] = site.arity()?;
    numeric(x)?;
    let requested = site.known(1)?;
    let times = requested.iter().map(|times| usize::try_from(*times).ok()).collect::<Option<Vec<_>>>();
    let times = times.filter(|times| times.len() == x.rank());
    let times = times.ok_or_else(|| format!("the multiples {requested:?} do not fit shape {:?}", x.dims))?;
    let dims = x.dims.iter().zip(&times).map(|(dim, times)| dim.checked_mul(*times)).collect::<Option<Vec<_>>>();
    let dims = dims.ok_or("its output is too large")?;
    let name = site.before("times");
    let constant = numbers_node(&name, DataType::Int64, &[requested.len()], requested);
    let made = site.make("Tile", &[site.names[0], &name]);
    Ok(Lowered { fact: Fact::new(x.datatype, dims), nodes: vec![constant, made], scratch_bytes: 0 })
}

fn concat(site: &Site<'_>) -> Result<Lowered, String> {
    let count = site.inputs.len().checked_sub(1).filter(|count| *count > 0).ok_or("it has nothing to join")?;
    let first = site.inputs[0];
    let axis = first.axis(site.known_one(count)?, 0)?;
    let mut fact = Fact::new(first.datatype, first.dims.clone());
    fact.dims[axis] = 0;
    for x in &site.inputs[..count] {
        same_datatype(first, x)?;
        let fits = |(index, dim): (usize, &usize)| index == axis || x.dims.get(index) == Some(dim);
        if x.rank() != first.rank() || !first.dims.iter().enumerate().all(fits) {
            return Err(format!("shapes {:?} and {:?} cannot be joined along dimension {axis}", first.dims, x.dims));
        }
        fact.dims[axis] = fact.dims[axis].checked_add(x.dims[axis]).ok_or("its output is too large")?;
        fact.text_max = fact.text_max.max(x.text_max);
    }
    if first.rank() == 1 {
        let all: Option<Vec<&Vec<i64>>> = site.inputs[..count].iter().map(|x| x.known.as_ref()).collect();
        if let Some(all) = all {
            fact = Fact::of_numbers(fact.datatype, fact.dims, all.into_iter().flatten().copied().collect());
        }
    }
    let name = site.before("axis");
    let constant = numbers_node(&name, DataType::Int32, &[], &[axis as i64]);
    let mut names = site.names[..count].to_vec();
    names.push(&name);
    let made = site.make("ConcatV2", &names);
    Ok(Lowered { fact, nodes: vec![constant, made], scratch_bytes: 0 })
}

fn pack(site: &Site<'_>) -> Result<Lowered, String> {
    let first = *site.inputs.first().ok_or("it has no input")?;
    let axis = first.axis(attributes::int(site.node, "axis").unwrap_or(0), 1)?;
    let mut dims = first.dims.clone();
    dims.insert(axis, site.inputs.len());
    let mut fact = Fact::new(first.datatype, dims);
    for x in &site.inputs {
        same_datatype(first, x)?;
        if x.dims != first.dims {
            return Err(format!("shapes {:?} and {:?} cannot be packed", first.dims, x.dims));
        }
        fact.text_max = fact.text_max.max(x.text_max);
    }
    let all: Option<Vec<i64>> =
        site.inputs.iter().map(|x| x.known.as_ref().and_then(|known| known.first().copied())).collect();
    if let (Some(all), 0) = (all, first.rank()) {
        fact = Fact::of_numbers(fact.datatype, fact.dims, all);
    }
    Ok(Lowered::one(fact, site.make("Pack", &site.names).attr("axis", axis as i64)))
}

fn pad(site: &Site<'_>) -> Result<Lowered, String> {
    let [x, _] = site.arity()?;
    numeric(x)?;
    let pads = site.known(1)?;
    let pairs = pads.as_chunks::<2>().0;
    if pairs.len() != x.rank() || pads.iter().any(|pad| *pad < 0 || *pad > i64::from(i32::MAX)) {
        return Err(format!("the paddings {pads:?} do not fit shape {:?}", x.dims));
    }
    let dims = x.dims.iter().zip(pairs).map(|(dim, [before, after])| dim.checked_add((before + after) as usize));
    let dims = dims.collect::<Option<Vec<_>>>().ok_or("its output is too large")?;
    let number = to_number(x.datatype).ok_or("a datatype that the engine lacks")?;
    let made = site.make("nerite.Pad", &site.names[..1]).attr("paddings", pads.to_vec()).attr("T", number);
    Ok(Lowered::one(Fact::new(x.datatype, dims), made))
}

fn transpose(site: &Site<'_>) -> Result<Lowered, String> {
    let [x, _] = site.arity()?;
    numeric(x)?;
    let requested = site.known(1)?;
    let axes = requested.iter().map(|axis| x.axis(*axis, 0)).collect::<Result<Vec<_>, _>>()?;
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..x.rank()) {
        return Err(format!("{requested:?} does not order the dimensions of shape {:?}", x.dims));
    }
    let name = site.before("axes");
    let numbers: Vec<i64> = axes.iter().map(|axis| *axis as i64).collect();
    let constant = numbers_node(&name, DataType::Int32, &[axes.len()], &numbers);
    let number = to_number(x.datatype).ok_or("a datatype that the engine lacks")?;
    let index = to_number(DataType::Int32).unwrap_or_default();
    let made = site.make("Transpose", &[site.names[0], &name]).attr("T", number).attr("Tperm", index);
    let dims = axes.iter().map(|axis| x.dims[*axis]).collect();
    Ok(Lowered { fact: Fact::new(x.datatype, dims), nodes: vec![constant, made], scratch_bytes: 0 })
}

fn gather(site: &Site<'_>) -> Result<Lowered, String> {
    let [x, indices, _] = site.arity()?;
    if !matches!(indices.datatype, DataType::Int32 | DataType::Int64) {
        return Err(format!("its indices are {}, and must be INT32 or INT64", indices.datatype.name()));
    }
    numeric(x)?;
    // Along other dimensions, the engine reads an index that is too large as an index into the next row.
    if x.axis(site.known_one(2)?, 0)? != 0 || attributes::int(site.node, "batch_dims").unwrap_or(0) != 0 {
        return Err("this engine gathers along the first dimension only".to_owned());
    }
    let dims = indices.dims.iter().chain(x.dims.get(1..).unwrap_or_default()).copied().collect();
    let mut fact = Fact::new(x.datatype, dims);
    if let (Some(known), Some(indices), 1) = (&x.known, &indices.known, x.rank()) {
        let one = |index: &i64| usize::try_from(*index).ok().and_then(|index| known.get(index).copied());
        fact.known = indices.iter().map(one).collect();
    }
    Ok(Lowered::one(fact, site.make("nerite.Gather", &site.names[..2])))
}
