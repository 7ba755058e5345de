//! How do results look as pictures?
//!
//! Each function makes an SVG element without a background. Its colours are those of [`theme`], which a page that shows it needs.

mod axis;
mod configs;
mod frame;
mod histogram;
mod levels;
mod parts;
mod sizes;

pub(crate) use self::axis::{bytes, duration, quantity};
pub(crate) use self::configs::configs;
pub(crate) use self::frame::theme;
pub(crate) use self::histogram::histogram;
pub(crate) use self::levels::levels;
pub(crate) use self::parts::parts;
pub(crate) use self::sizes::{size_picture, sizes};

#[cfg(test)]
mod tests;
