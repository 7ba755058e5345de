//! From which addresses do proxies connect that name the client of each connection?

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The proxies in front of a listener.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    /// Their addresses.
    pub trusted: TrustedProxies,
    /// The time that a proxy has for its header; `None` for no limit.
    pub header_max: Option<Duration>,
}

/// The addresses of the proxies that the operator trusts. Clones share the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies(Arc<[Subnet]>);

/// The addresses that have the same first bits: one proxy, or a network of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// All bits after the first `prefix_bits` are 0.
    first: IpAddr,
    prefix_bits: u32,
}

/// Why a text is no list entry of `--trusted-proxies`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubnetError {
    /// It cannot be read.
    #[error("'{0}' is neither an address nor a network; write them as 10.0.0.7, 10.0.0.0/8 or 2001:db8::/32")]
    Malformed(String),
    /// The address has fewer bits.
    #[error("'{text}' has a prefix of {prefix_bits} bits, and its addresses have {address_bits}")]
    TooLong {
        /// The text.
        text: String,
        /// The bits of the prefix.
        prefix_bits: u32,
        /// The bits of an address.
        address_bits: u32,
    },
    /// Every client would be a proxy, and could choose the address that it counts for.
    #[error("'{0}' holds all addresses, so each client could choose its own; name the addresses of the proxies")]
    All(String),
    /// The address is not the first of its network.
    #[error("'{text}' has bits after its prefix; write {network} for the network, or the address without a prefix")]
    BitsAfterPrefix {
        /// The text.
        text: String,
        /// The network that has the address.
        network: Subnet,
    },
    /// An IPv4 address is written as one of IPv6.
    #[error("'{0}' is an IPv4 address in the form of IPv6; write the IPv4 address")]
    Mapped(String),
}

impl TrustedProxies {
    /// Whether a connection from this address comes from a proxy.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|subnet| subnet.contains(address))
    }

    /// The entries of the list.
    pub fn subnets(&self) -> &[Subnet] {
        &self.0
    }
}

impl FromIterator<Subnet> for TrustedProxies {
    fn from_iter<T: IntoIterator<Item = Subnet>>(subnets: T) -> TrustedProxies {
        TrustedProxies(subnets.into_iter().collect())
    }
}

impl Subnet {
    fn new(address: IpAddr, prefix_bits: u32) -> Subnet {
        let first = match address {
            IpAddr::V4(address) => IpAddr::V4((address.to_bits() & mask(32, prefix_bits) as u32).into()),
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() & mask(128, prefix_bits)).into()),
        };
        Subnet { first, prefix_bits }
    }

    fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && Subnet::new(address, self.prefix_bits) == *self
    }
}

/// A number whose lowest `address_bits` bits are an address's mask: the first `prefix_bits` of them are 1.
fn mask(address_bits: u32, prefix_bits: u32) -> u128 {
    u128::MAX.checked_shl(address_bits - prefix_bits).unwrap_or_default()
}

impl FromStr for Subnet {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Subnet, SubnetError> {
        let malformed = || SubnetError::Malformed(text.to_owned());
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| malformed())?;
        let address_bits = if address.is_ipv4() { 32 } else { 128 };
        let is_digits = |bits: &&str| (1..=3).contains(&bits.len()) && bits.bytes().all(|byte| byte.is_ascii_digit());
        let prefix_bits = match prefix {
            None => address_bits,
            Some(bits) => Some(bits).filter(is_digits).and_then(|bits| bits.parse().ok()).ok_or_else(malformed)?,
        };
        if address.to_canonical() != address {
            return Err(SubnetError::Mapped(text.to_owned()));
        }
        if prefix_bits > address_bits {
            return Err(SubnetError::TooLong { text: text.to_owned(), prefix_bits, address_bits });
        }
        if prefix_bits == 0 {
            return Err(SubnetError::All(text.to_owned()));
        }
        let network = Subnet::new(address, prefix_bits);
        if network.first == address {
            Ok(network)
        } else {
            Err(SubnetError::BitsAfterPrefix { text: text.to_owned(), network })
        }
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_one = self.prefix_bits == if self.first.is_ipv4() { 32 } else { 128 };
        write!(f, "{}", self.first)?;
        if is_one { Ok(()) } else { write!(f, "/{}", self.prefix_bits) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(subnet: &str, address: &str, expect: bool) {
        let proxies: TrustedProxies = [subnet.parse().expect("a subnet")].into_iter().collect();
        assert_eq!(proxies.contains(address.parse().expect("an address")), expect, "{subnet} {address}");
        assert_eq!(proxies.subnets()[0].to_string(), subnet);
    }

    #[test]
    fn a_subnet_holds_the_addresses_with_its_prefix_and_no_others() {
        check("10.0.0.7", "10.0.0.7", true);
        check("10.0.0.7", "10.0.0.6", false);
        check("10.0.0.7", "::ffff:10.0.0.7", true);
        check("10.0.0.7", "::10.0.0.7", false);
        check("10.0.0.0/8", "10.255.255.255", true);
        check("10.0.0.0/8", "11.0.0.0", false);
        check("128.0.0.0/1", "255.255.255.255", true);
        check("128.0.0.0/1", "127.255.255.255", false);
        check("10.0.0.6/31", "10.0.0.7", true);
        check("2001:db8::/32", "2001:db8:ffff::1", true);
        check("2001:db8::/32", "2001:db9::", false);
        check("2001:db8::7", "2001:db8::7", true);
        check("8000::/1", "10.0.0.7", false);
    }

    #[test]
    fn an_empty_list_holds_nothing() {
        assert!(!TrustedProxies::default().contains(IpAddr::from([127, 0, 0, 1])));
    }

    #[track_caller]
    fn check_refused(text: &str, expect: &str) {
        let refused = text.parse::<Subnet>().expect_err("no subnet").to_string();
        assert!(refused.starts_with(&format!("'{text}' {expect}")), "{refused}");
    }

    #[test]
    fn what_is_no_subnet_is_refused_with_the_cure() {
        for text in ["", "proxy", "10.0.0", "10.0.0.7/", "10.0.0.7/x", "10.0.0.7/+8", "/8", "10.0.0.0/8/8", "[::1]"] {
            check_refused(text, "is neither an address nor a network; write them as 10.0.0.7, 10.0.0.0/8");
        }
        check_refused("10.0.0.0/33", "has a prefix of 33 bits, and its addresses have 32");
        check_refused("2001:db8::/129", "has a prefix of 129 bits, and its addresses have 128");
        check_refused("10.0.0.0/4294967296", "is neither");
        check_refused("0.0.0.0/0", "holds all addresses");
        check_refused("::/0", "holds all addresses");
        check_refused("10.0.0.7/8", "has bits after its prefix; write 10.0.0.0/8 for the network");
        check_refused("2001:db8::7/64", "has bits after its prefix; write 2001:db8::/64 for the network");
        check_refused("::ffff:10.0.0.7", "is an IPv4 address in the form of IPv6");
    }
}
