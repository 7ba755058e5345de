//! How long may the text of an error be?

use std::borrow::Cow;

use crate::limits::ERROR_BYTES_MAX;

/// The message, cut after [`ERROR_BYTES_MAX`] bytes. A message that was cut ends with its whole length.
pub fn cut(message: &str) -> Cow<'_, str> {
    if message.len() <= ERROR_BYTES_MAX {
        return Cow::Borrowed(message);
    }
    let kept = &message[..message.floor_char_boundary(ERROR_BYTES_MAX)];
    Cow::Owned(format!("{kept}... ({} bytes in all)", message.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_sentence_is_cut_between_two_characters() {
        assert_eq!(cut("short"), "short");
        let long = format!("{}€ and more", "x".repeat(ERROR_BYTES_MAX - 1));
        let expected = format!("{}... ({} bytes in all)", "x".repeat(ERROR_BYTES_MAX - 1), long.len());
        assert_eq!(cut(&long), expected);
    }
}
