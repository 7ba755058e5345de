//! Which groups of calls can a token allow?

/// A group of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Inferences.
    Infer,
    /// To change the server: which models are loaded, what is logged and traced.
    Control,
    /// Shared memory: regions and leases.
    Regions,
    /// To read about the server: metadata, configurations, statistics, metrics, states, settings.
    Read,
}

impl Scope {
    /// All of them.
    pub const ALL: [Scope; 4] = [Scope::Infer, Scope::Control, Scope::Regions, Scope::Read];

    /// The word for it in the file.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Infer => "infer",
            Scope::Control => "control",
            Scope::Regions => "regions",
            Scope::Read => "read",
        }
    }

    /// The scope of this name.
    pub fn parse(name: &str) -> Option<Scope> {
        Scope::ALL.into_iter().find(|scope| scope.name() == name)
    }

    /// Its bit in a set.
    pub(crate) fn bit(self) -> u8 {
        1 << self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scope_has_a_name_and_a_bit_of_its_own() {
        for scope in Scope::ALL {
            assert_eq!(Scope::parse(scope.name()), Some(scope));
        }
        assert_eq!(Scope::ALL.iter().fold(0, |all, scope| all | scope.bit()), 0b1111);
        assert_eq!(Scope::parse("Infer"), None);
    }
}
