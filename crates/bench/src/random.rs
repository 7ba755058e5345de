//! Which numbers look random, and are the same in each run?

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// From 0 to below 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The time to the next event of a Poisson process, as a multiple of the mean.
    pub(crate) fn exponential(&mut self) -> f64 {
        -(1.0 - self.fraction()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_those_of_the_distributions() {
        let mut random = Random::new(7);
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
        let fractions = mean((0..10_000).map(|_| random.fraction()).collect());
        let exponentials = mean((0..10_000).map(|_| random.exponential()).collect());
        assert!((fractions - 0.5).abs() < 0.02, "{fractions}");
        assert!((exponentials - 1.0).abs() < 0.05, "{exponentials}");
    }
}
