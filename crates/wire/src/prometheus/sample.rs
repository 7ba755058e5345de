//! How is a page of metrics read, line by line?

/// One line of a page of metrics: `name{label="value",…} number`.
pub struct Sample<'l> {
    /// The name of the metric.
    pub name: &'l str,
    labels: Vec<(&'l str, String)>,
    /// Its value.
    pub value: f64,
}

impl<'l> Sample<'l> {
    /// Reads a line. `None`: it is a comment, or no sample.
    pub fn read(line: &'l str) -> Option<Sample<'l>> {
        let end = line.find(['{', ' '])?;
        let (name, mut rest) = line.split_at(end);
        let mut labels = Vec::new();
        if let Some(mut inside) = rest.strip_prefix('{') {
            while let Some((label, text)) = inside.split_once("=\"") {
                let (value, after) = quoted(text)?;
                labels.push((label.trim_start_matches(','), value));
                inside = after;
                if inside.starts_with('}') {
                    break;
                }
            }
            rest = inside.strip_prefix('}')?;
        }
        Some(Sample { name, labels, value: rest.trim().parse().ok()? })
    }

    /// The value of this label.
    pub fn label(&self, name: &str) -> Option<String> {
        self.labels.iter().find(|(label, _)| *label == name).map(|(_, value)| value.clone())
    }
}

/// The text up to the closing quotation mark, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, next)) = chars.next() {
        match next {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_may_hold_what_is_escaped() {
        let sample = Sample::read("a{_t=\"}, {\",model=\"x\\\"\\\\ y=\\\"z\"} 5").expect("a sample");
        assert_eq!((sample.name, sample.value), ("a", 5.0));
        assert_eq!(sample.label("model").as_deref(), Some("x\"\\ y=\"z"));
        assert_eq!(sample.label("other"), None);
    }

    #[test]
    fn what_is_no_sample_is_left_out() {
        for line in ["", "# HELP a b", "no sample", "{} 7x", "a{b=\"c} 1"] {
            assert!(Sample::read(line).is_none(), "{line}");
        }
    }
}
