//! How are parts of tensors lowered?

use nerite_backend_sdk::DataType;

use super::{Lowered, Site, named, numbers_node, numeric};
use crate::attributes;
use crate::fact::Fact;

/// The part of one dimension that is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    from: usize,
    to: usize,
    step: usize,
    /// Whether the dimension is removed, because one element of it is taken.
    goes: bool,
}

/// `Slice`: begin and size of each dimension. The engine's reader would read the size as the end.
pub fn slice(site: &Site<'_>) -> Result<Lowered, String> {
    let [x, ..] = site.arity::<3>()?;
    let (begin, size) = (site.known(1)?, site.known(2)?);
    let one = |index: usize| {
        let (dim, from) = (x.dims[index], usize::try_from(*begin.get(index)?).ok()?);
        let count = match *size.get(index)? {
            -1 => dim.checked_sub(from)?,
            count => usize::try_from(count).ok()?,
        };
        let to = from.checked_add(count).filter(|to| *to <= dim)?;
        Some(Piece { from, to, step: 1, goes: false })
    };
    let pieces: Option<Vec<Piece>> = (0..x.rank()).map(one).collect();
    let pieces = pieces.ok_or_else(|| format!("begin {begin:?} and size {size:?} do not fit shape {:?}", x.dims))?;
    taken(site, &pieces, &[])
}

/// `StridedSlice`: Python's `x[a:b:c, …, None, 3]`.
pub fn strided_slice(site: &Site<'_>) -> Result<Lowered, String> {
    let [x, ..] = site.arity::<4>()?;
    let (begin, end, steps) = (site.known(1)?, site.known(2)?, site.known(3)?);
    let mask = |name: &str| attributes::int(site.node, name).unwrap_or(0);
    let bit = |mask: i64, index: usize| index < 64 && mask >> index & 1 == 1;
    let (ellipsis, new_axes) = (mask("ellipsis_mask"), mask("new_axis_mask"));
    let (mut pieces, mut new) = (Vec::new(), Vec::new());
    let count = begin.len();
    if end.len() != count || steps.len() != count {
        return Err("its begin, end and steps differ in length".to_owned());
    }
    let behind = |index: usize| (index + 1..count).filter(|index| !bit(new_axes, *index)).count();
    for index in 0..count {
        if bit(ellipsis, index) {
            let until = x.rank().saturating_sub(behind(index));
            pieces.extend(x.dims.get(pieces.len()..until).unwrap_or_default().iter().map(|dim| whole(*dim)));
            continue;
        }
        if bit(new_axes, index) {
            new.push(pieces.iter().filter(|piece: &&Piece| !piece.goes).count() + new.len());
            continue;
        }
        let dim =
            *x.dims.get(pieces.len()).ok_or_else(|| format!("shape {:?} has no dimension {}", x.dims, pieces.len()))?;
        let from = (!bit(mask("begin_mask"), index)).then_some(begin[index]);
        let to = (!bit(mask("end_mask"), index)).then_some(end[index]);
        pieces.push(if bit(mask("shrink_axis_mask"), index) {
            single(dim, begin[index])?
        } else {
            stretch(dim, from, to, steps[index])?
        });
    }
    pieces.extend(x.dims.get(pieces.len()..).unwrap_or_default().iter().map(|dim| whole(*dim)));
    taken(site, &pieces, &new)
}

fn whole(dim: usize) -> Piece {
    Piece { from: 0, to: dim, step: 1, goes: false }
}

fn single(dim: usize, index: i64) -> Result<Piece, String> {
    let found = if index < 0 { index.checked_add(dim as i64) } else { Some(index) };
    let found = found.and_then(|index| usize::try_from(index).ok()).filter(|index| *index < dim);
    let from = found.ok_or_else(|| format!("there is no element {index} in a dimension of {dim}"))?;
    Ok(Piece { from, to: from + 1, step: 1, goes: true })
}

fn stretch(dim: usize, from: Option<i64>, to: Option<i64>, step: i64) -> Result<Piece, String> {
    let step = usize::try_from(step).ok().filter(|step| *step > 0);
    let step = step.ok_or("this engine takes elements in their order only: a step must be 1 or more")?;
    let place = |index: i64| {
        let index = if index < 0 { index.saturating_add(dim as i64) } else { index };
        (index.max(0) as usize).min(dim)
    };
    let from = from.map_or(0, place);
    let to = to.map_or(dim, place).max(from);
    Ok(Piece { from, to, step, goes: false })
}

fn taken(site: &Site<'_>, pieces: &[Piece], new: &[usize]) -> Result<Lowered, String> {
    let x = site.inputs[0];
    numeric(x)?;
    let dims: Vec<usize> = pieces.iter().map(|piece| (piece.to - piece.from).div_ceil(piece.step)).collect();
    let kept = dims.iter().zip(pieces).filter(|(_, piece)| !piece.goes).map(|(dim, _)| *dim);
    let mut left: Vec<usize> = kept.collect();
    for at in new {
        left.insert((*at).min(left.len()), 1);
    }
    let mut fact = Fact::new(x.datatype, left.clone());
    if let (Some(known), [piece]) = (&x.known, pieces) {
        fact.known = known.get(piece.from..piece.to).map(|part| part.iter().step_by(piece.step).copied().collect());
    }
    let list = |what: &str, one: fn(&Piece) -> usize| {
        let numbers: Vec<i64> = pieces.iter().map(|piece| one(piece) as i64).collect();
        numbers_node(&site.before(what), DataType::Int32, &[numbers.len()], &numbers)
    };
    let mut nodes =
        vec![list("from", |piece| piece.from), list("to", |piece| piece.to), list("step", |piece| piece.step)];
    let part =
        named(&site.before("part"), "StridedSlice", &[site.names[0], &nodes[0].name, &nodes[1].name, &nodes[2].name]);
    let shape = site.before("shape");
    let numbers: Vec<i64> = left.iter().map(|dim| *dim as i64).collect();
    let made = site.make("Reshape", &[&part.name, &shape]);
    nodes.extend([part, numbers_node(&shape, DataType::Int64, &[left.len()], &numbers), made]);
    Ok(Lowered { scratch_bytes: fact.bytes().unwrap_or(u64::MAX), fact, nodes })
}
