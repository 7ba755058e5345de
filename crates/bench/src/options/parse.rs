//! How are the words of a command line read?

use super::table::{Entry, GROUPS, Group};
use super::{Load, Memory, Options, Protocol};

/// Reads the words after the command. `None`: they want the help.
pub(crate) fn parse(words: &[String]) -> Result<Option<Options>, String> {
    let mut options = Options::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if matches!(word.as_str(), "-h" | "--help") {
            return Ok(None);
        }
        let (entry, joined) = find(word)?;
        let value = match (entry.value, joined) {
            ("", None) => "",
            ("", Some(_)) => return Err(format!("{} takes no value", entry.names[0])),
            (_, Some(value)) => value,
            (_, None) => words.next().ok_or_else(|| format!("{word} needs a value"))?,
        };
        (entry.set)(&mut options, value)?;
    }
    options.check()?;
    Ok(Some(options))
}

/// The entry of a word: `--name`, `--name=value`, `-n` or `-nvalue`. As getopt does, it accepts the beginning of a name if no other name begins so.
fn find(word: &str) -> Result<(&'static Entry, Option<&str>), String> {
    let entries = || GROUPS.iter().flat_map(|Group(_, entries)| *entries);
    if word.starts_with("--") {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        if let Some(entry) = entries().find(|entry| entry.names.contains(&name)) {
            return Ok((entry, value));
        }
        let meant: Vec<_> = entries().filter(|entry| entry.names.iter().any(|long| long.starts_with(name))).collect();
        return match meant[..] {
            [entry] if name.len() > 2 => Ok((entry, value)),
            _ => Err(unknown(name)),
        };
    }
    let (name, value) = word.split_at_checked(2).ok_or_else(|| unknown(word))?;
    let entry = entries().find(|entry| entry.names.contains(&name)).ok_or_else(|| unknown(word))?;
    Ok((entry, (!value.is_empty()).then_some(value)))
}

fn unknown(word: &str) -> String {
    format!("there is no option '{word}'; `nerite bench --help` lists them")
}

impl Options {
    /// Whether the options fit together.
    fn check(&self) -> Result<(), String> {
        if self.model.is_empty() {
            return Err("no model; name one with -m".to_owned());
        }
        if self.is_streaming && self.protocol != Protocol::Grpc {
            return Err("--streaming needs -i grpc".to_owned());
        }
        if self.memory == Memory::Cuda && self.protocol == Protocol::Session {
            return Err("--shared-memory cuda needs -i http or -i grpc".to_owned());
        }
        if !self.load_url.is_empty() && self.protocol == Protocol::Session {
            return Err("--load-url needs -i http or -i grpc".to_owned());
        }
        if self.tls.certificate.is_some() != self.tls.key.is_some() {
            return Err("a certificate to present and its key are given together".to_owned());
        }
        let (is_endless, is_one) = match &self.load {
            Load::Concurrency(range) => (range.is_endless(), range.start == range.end),
            Load::Rate(range) => (range.is_endless(), range.start.total_cmp(&range.end).is_eq()),
            Load::Intervals(_) => (false, true),
        };
        if is_endless && self.latency_max.is_none() {
            return Err("a range whose end is 0 needs a latency threshold: -l MS".to_owned());
        }
        if self.is_binary_search && (is_endless || is_one || self.latency_max.is_none()) {
            return Err("--binary-search needs a range with start and end, and a latency threshold: -l MS".to_owned());
        }
        if let Some(end) = self.sequence.end_id
            && end <= self.sequence.first_id
        {
            return Err(format!("--sequence-id-range ends at {end}, before its start {}", self.sequence.first_id));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Distribution, InputData, Range, SessionCalls, Window};
    use super::*;

    fn read(line: &str) -> Result<Options, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words).map(|options| options.expect("no help is wanted"))
    }

    #[track_caller]
    fn check(line: &str, change: impl FnOnce(&mut Options)) {
        let mut expect = Options { model: "m".to_owned(), ..Options::default() };
        change(&mut expect);
        assert_eq!(read(line).expect("sound"), expect, "{line}");
    }

    #[track_caller]
    fn refused(line: &str, reason: &str) {
        assert_eq!(read(line).expect_err("refused"), reason, "{line}");
    }

    #[test]
    fn names_and_values_are_written_as_for_getopt() {
        for line in
            ["-m m -b 4", "-mm -b4", "--model-name=m -b 4", "--model-name m --model-version= -b 4", "-m m -b 4 --sy"]
        {
            check(line, |options| {
                options.batch = 4;
                options.is_async = line.ends_with("--sy").then_some(false);
            });
        }
        assert_eq!(parse(&["-m".to_owned(), "m".to_owned(), "--help".to_owned()]), Ok(None));
    }

    #[test]
    fn loads_and_windows_are_read_in_any_order() {
        check("-m m --request-distribution poisson --request-rate-range 10:30:10", |options| {
            options.distribution = Distribution::Poisson;
            options.load = Load::Rate(Range { start: 10.0, end: 30.0, step: 10.0 });
        });
        check("-m m --concurrency-range 1:0 -l 5", |options| {
            options.load = Load::Concurrency(Range { start: 1, end: 0, step: 1 });
            options.latency_max = Some(Duration::from_millis(5));
        });
        let window = |line| read(line).map(|options| options.window());
        assert_eq!(window("-m m -p 100"), Ok(Window::Time(Duration::from_millis(100))));
        assert_eq!(window("-m m --measurement-request-count 7 --measurement-mode count_windows"), Ok(Window::Count(7)));
        assert_eq!(window("-m m --measurement-mode count_windows --request-count 9"), Ok(Window::Fixed(9)));
    }

    #[test]
    fn addresses_of_grpc_with_tls_have_its_scheme() {
        let addresses = |line: &str| {
            let options = read(&format!("-m m -i grpc --ssl-grpc-use-ssl {line}")).expect("sound");
            [options.address(), options.load_address()]
        };
        assert_eq!(addresses(""), ["https://localhost:8001"; 2]);
        assert_eq!(addresses("-u a:1 --load-url b:2"), ["https://a:1", "https://b:2"]);
        assert_eq!(addresses("-u http://a:1 --load-url unix:b"), ["http://a:1", "unix:b"]);
    }

    #[test]
    fn options_that_are_given_several_times_add_up() {
        check("-m m --shape A:1,2 --shape b:c:3 --input-data a.json --input-data b.json", |options| {
            options.tensors.shapes = vec![("A".to_owned(), vec![1, 2]), ("b:c".to_owned(), vec![3])];
            options.tensors.data = InputData::Paths(vec!["a.json".into(), "b.json".into()]);
        });
        check("-m m -i session --session-calls batched:8 -H a:b --sizes 64,4K,1M", |options| {
            options.protocol = Protocol::Session;
            options.session_calls = SessionCalls::Batched(8);
            options.headers = vec![("a".to_owned(), "b".to_owned())];
            options.sizes = vec![64, 4 << 10, 1 << 20];
        });
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        refused("", "no model; name one with -m");
        refused("-m m --streaming", "--streaming needs -i grpc");
        refused("-m m -i session --shared-memory cuda", "--shared-memory cuda needs -i http or -i grpc");
        refused("-m m -i session --load-url a:1", "--load-url needs -i http or -i grpc");
        let pair = "a certificate to present and its key are given together";
        refused("-m m --ssl-https-client-certificate-file a", pair);
        refused("-m m --ssl-grpc-private-key-file a", pair);
        refused("-m m --concurrency-range 1:0", "a range whose end is 0 needs a latency threshold: -l MS");
        refused("-m m --concurrency-range 4:2", "--concurrency-range ends at 2, which is below its start 4");
        refused(
            "-m m --binary-search -l 5",
            "--binary-search needs a range with start and end, and a latency threshold: -l MS",
        );
        refused("-m m --sequence-id-range 5:5", "--sequence-id-range ends at 5, before its start 5");
    }

    #[test]
    fn what_is_not_understood_is_named() {
        refused("-m", "-m needs a value");
        refused("-m m --streaming=1", "--streaming takes no value");
        refused("-m m --what", "there is no option '--what'; `nerite bench --help` lists them");
        refused("-m m --s", "there is no option '--s'; `nerite bench --help` lists them");
        refused("-m m -b 0", "-b is a number above 0, and is '0'");
        refused("-m m -i tcp", "-i is http, grpc, session, and is 'tcp'");
        refused("-m m --percentile 100", "--percentile is 1 to 99, and is '100'");
        refused("-m m --shape A:0", "--shape is name:d1,d2,… with numbers above 0, and is 'A:0'");
        refused("-m m --sizes 4G", "--sizes has a size that is no number of bytes: '4G'");
    }
}
