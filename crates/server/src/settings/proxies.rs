//! Which proxies does the server believe when they name the client of a connection?

use nerite_listen::{Subnet, TrustedProxies};

use crate::flags::{BadValue, Values, bad};

const FLAG: &str = "trusted-proxies";

pub(super) fn trusted(values: &Values<'_>) -> Result<TrustedProxies, BadValue> {
    values.all(FLAG).map(|text| text.parse::<Subnet>().map_err(|error| bad(FLAG, error.to_string()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags;

    #[track_caller]
    fn check(line: &[&str], expect: Result<&[&str], &str>) {
        let words: Vec<String> = line.iter().map(|&word| word.to_owned()).collect();
        let given = flags::parse(&words).expect("known flags");
        let found = trusted(&Values(&given)).map_err(|error| error.to_string());
        let shown = found.map(|found| found.subnets().iter().map(ToString::to_string).collect::<Vec<_>>());
        let expect = expect.map(|subnets| subnets.iter().map(ToString::to_string).collect());
        assert_eq!(shown, expect.map_err(|reason| format!("Bad option: \"--trusted-proxies\".\n{reason}\n")));
    }

    #[test]
    fn each_value_is_an_address_or_a_network() {
        check(&[], Ok(&[]));
        check(&["--trusted-proxies=10.0.0.7", "--trusted-proxies=2001:db8::/32"], Ok(&["10.0.0.7", "2001:db8::/32"]));
        check(
            &["--trusted-proxies=10.0.0.7", "--trusted-proxies=10.1.2.3/16"],
            Err(
                "'10.1.2.3/16' has bits after its prefix; write 10.1.0.0/16 for the network, or the address without a prefix",
            ),
        );
        check(
            &["--trusted-proxies=10.0.0.7,10.0.0.8"],
            Err(
                "'10.0.0.7,10.0.0.8' is neither an address nor a network; write them as 10.0.0.7, 10.0.0.0/8 or 2001:db8::/32",
            ),
        );
    }
}
