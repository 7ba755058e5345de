//! How far from zero can the INT64 values of a request be?
//!
//! Sums and products of a request's own INT64 values may exceed 32 bits. Whether they can is known once the largest input value is known. The audit
//! notes how each value follows from others ([`Magnitude`]). Before the engine runs, [`MagnitudeBounds::check`] computes with magnitudes alone. A
//! request whose values could exceed 32 bits is refused, even if its actual values would not.

/// The largest magnitude that 32 bits hold on both sides of zero.
const MAGNITUDE_MAX: u64 = i32::MAX as u64;

/// How the magnitude of a value follows from the magnitudes of earlier values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Magnitude {
    /// The largest magnitude in an input of the graph.
    Input(String),
    /// A known number.
    Constant(u64),
    /// The largest of these: the value is moved or chosen.
    Max(Vec<usize>),
    /// Their sum: the values are added or subtracted.
    Sum(Vec<usize>),
    /// Their product: the values are multiplied.
    Product(Vec<usize>),
    /// The sum over all elements of an input.
    Total(String),
}

/// The steps of a graph, and which of them must stay within 32 bits.
#[derive(Clone, Debug, Default)]
pub struct MagnitudeBounds {
    steps: Vec<Magnitude>,
    checks: Vec<(usize, String)>,
}

/// What is known of an INT64 input of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extremes {
    /// The largest magnitude among its elements.
    pub magnitude: u64,
    /// How many there are.
    pub elements: u64,
}

impl MagnitudeBounds {
    /// Adds a step and returns its number.
    pub fn note(&mut self, step: Magnitude) -> usize {
        self.steps.push(step);
        self.steps.len() - 1
    }

    /// Requires that the result of `step` fits; `what` names the operator.
    pub fn must_fit(&mut self, step: usize, what: String) {
        self.checks.push((step, what));
    }

    /// The step of this number.
    pub fn step(&self, number: usize) -> Option<&Magnitude> {
        self.steps.get(number)
    }

    /// Whether there is nothing to check.
    pub fn is_trivial(&self) -> bool {
        self.checks.is_empty()
    }

    /// Refuses a request whose inputs have these extremes if a checked value could leave 32 bits.
    pub fn check(&self, extremes: impl Fn(&str) -> Option<Extremes>) -> Result<(), String> {
        let mut magnitudes: Vec<u64> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let of = |steps: &[usize], start: u64, with: fn(u64, u64) -> u64| {
                steps.iter().map(|step| magnitudes.get(*step).copied().unwrap_or(u64::MAX)).fold(start, with)
            };
            // An input that the request leaves out has no values.
            let input = |name: &str| extremes(name).unwrap_or_default();
            magnitudes.push(match step {
                Magnitude::Input(name) => input(name).magnitude,
                Magnitude::Constant(magnitude) => *magnitude,
                Magnitude::Max(steps) => of(steps, 0, u64::max),
                Magnitude::Sum(steps) => of(steps, 0, u64::saturating_add),
                Magnitude::Product(steps) => of(steps, 1, u64::saturating_mul),
                Magnitude::Total(name) => input(name).magnitude.saturating_mul(input(name).elements),
            });
        }
        let beyond = self.checks.iter().find(|(step, _)| magnitudes.get(*step).is_none_or(|m| *m > MAGNITUDE_MAX));
        match beyond {
            Some((step, what)) => Err(format!(
                "{what} could reach {} with these values, but the embedded engine keeps INT64 in 32 bits",
                magnitudes.get(*step).copied().unwrap_or(u64::MAX)
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(step: impl Fn(&mut MagnitudeBounds) -> usize, magnitude: u64, elements: u64, fits: bool) {
        let mut bounds = MagnitudeBounds::default();
        let checked = step(&mut bounds);
        bounds.must_fit(checked, "operator Add".into());
        let result = bounds.check(|_| Some(Extremes { magnitude, elements }));
        assert_eq!(result.is_ok(), fits, "{bounds:?} {result:?}");
    }

    #[test]
    fn magnitudes_add_up_and_multiply() {
        let sum = |bounds: &mut MagnitudeBounds| {
            let x = bounds.note(Magnitude::Input("x".into()));
            bounds.note(Magnitude::Sum(vec![x, x]))
        };
        check(sum, (1 << 30) - 1, 1, true);
        check(sum, 1 << 30, 1, false);
        check(sum, u64::MAX, 1, false);
        let product = |bounds: &mut MagnitudeBounds| {
            let (x, c) = (bounds.note(Magnitude::Input("x".into())), bounds.note(Magnitude::Constant(1000)));
            bounds.note(Magnitude::Product(vec![x, c]))
        };
        check(product, 2_147_483, 1, true);
        check(product, 2_147_484, 1, false);
        check(|bounds| bounds.note(Magnitude::Total("x".into())), 1 << 20, 2047, true);
        check(|bounds| bounds.note(Magnitude::Total("x".into())), 1 << 20, 2048, false);
        check(|bounds| bounds.note(Magnitude::Max(Vec::new())), 0, 0, true);
    }
}
