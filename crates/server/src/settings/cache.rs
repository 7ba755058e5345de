//! How large is the response cache, if there is one?

use crate::flags::{Values, bad, sides};

use super::{SettingsError, contradiction};

const FLAG: &str = "cache-config";
const OLD_FLAG: &str = "response-cache-byte-size";
/// The only cache that there is: in this process.
const LOCAL: &str = "local";

/// Its bytes; `None` without a cache.
pub(super) fn response_cache(values: &Values<'_>) -> Result<Option<u64>, SettingsError> {
    let old = values.int_if_given::<u64>(OLD_FLAG)?;
    let mut names = values.all(FLAG).filter_map(|value| sides(value, ',')).map(|(name, _)| name);
    if let Some(first) = names.next()
        && names.any(|name| name != first)
    {
        let text = "found multiple cache configurations, but only a single cache is currently supported";
        return Err(contradiction(text, &[FLAG]));
    }
    let mut size = None;
    for value in values.all(FLAG) {
        if old.is_some() {
            let text = "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or \
                        the other.";
            return Err(contradiction(text, &[OLD_FLAG]));
        }
        let Some((name, setting)) = sides(value, ',') else {
            let text =
                format!("No cache specified. --{FLAG} option format is <cache name>,<setting>=<value>. Got {value}");
            return Err(bad(FLAG, text).into());
        };
        if name != LOCAL {
            let text =
                format!("unable to find 'libtritoncache_{name}.so' for cache; this server has the cache '{LOCAL}'");
            return Err(bad(FLAG, text).into());
        }
        let Some(("size", bytes)) = setting.split_once('=') else {
            return Err(bad(FLAG, format!("config didn't contain a valid 'size' field. Got {value}")).into());
        };
        let bytes: u64 = bytes.trim().parse().map_err(|_| bad(FLAG, format!("Invalid option value. Got {bytes}")))?;
        if bytes == 0 {
            return Err(bad(FLAG, "a cache of 0 bytes keeps nothing; give its size in bytes, or leave it out").into());
        }
        size = Some(bytes);
    }
    Ok(size.or(old.filter(|bytes| *bytes > 0)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::flags::parse;

    #[track_caller]
    fn check(line: &str, expect: Result<Option<u64>, &str>) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let found = response_cache(&Values(&parse(&words).unwrap())).map_err(|error| error.to_string());
        match expect {
            Ok(size) => assert_eq!(found, Ok(size), "{line}"),
            Err(text) => assert!(found.as_ref().is_err_and(|found| found.contains(text)), "{line}: {found:?}"),
        }
    }

    #[test]
    fn there_is_one_cache_whose_size_is_given_last() {
        check("", Ok(None));
        check("--cache-config=local,size=1000", Ok(Some(1000)));
        check("--cache-config=local,size=1000 --cache-config=local,size=2000", Ok(Some(2000)));
        check("--response-cache-byte-size=1000", Ok(Some(1000)));
        check("--response-cache-byte-size=0", Ok(None));
        check("--cache-config=local", Err("No cache specified."));
        check("--cache-config=local,size=abc", Err("Got abc"));
        check("--cache-config=local,size=0", Err("0 bytes"));
        check("--cache-config=local,foo=1", Err("config didn't contain a valid 'size' field"));
        check("--cache-config=redis,host=x", Err("libtritoncache_redis.so"));
        let two = "found multiple cache configurations, but only a single cache is currently supported";
        check("--cache-config=local,size=8192 --cache-config=redis,key=value", Err(two));
        check("--cache-config=redis,key=value --cache-config=local,size=8192", Err(two));
        check("--cache-config=redis,key=value --cache-config=redis,host=x", Err("libtritoncache_redis.so"));
        check("--cache-config=local,size=1 --response-cache-byte-size=1", Err("Incompatible flags"));
    }
}
