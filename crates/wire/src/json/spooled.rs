//! How is a long JSON text read from disk?
//!
//! ```text
//!   on disk    {"parameters":{"file:1/model.onnx":"TG9uZyBmaWxl…","config":"{}"}}
//!   in memory  {"parameters":{"file:1/model.onnx":"","config":"{}"}}      and the position of the long string
//! ```
//!
//! The text without its long strings is read like any other. A long string is read from disk in steps when its bytes are needed. So the memory in use
//! does not grow with its length.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nerite_memory::MemoryReservation;
use nerite_request::Status;
use nerite_request::setting::FileContent;

use super::base64::Decoder;
use super::fault::Malformed;
use super::lex::Reader;
use super::limits::{SPOOLED_CONFIG_BYTES_MAX, SPOOLED_STEP_BYTES, SPOOLED_STRING_BYTES_MIN, SPOOLED_TEXT_BYTES_MAX};
use super::value::text_of;

/// A text whose long strings remain on disk.
#[derive(Debug)]
pub struct Spooled {
    file: Arc<File>,
    text: Vec<u8>,
    cuts: Vec<Cut>,
    _reservation: MemoryReservation,
}

/// A string whose bytes are not in the text.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// The index of its opening quotation mark in the text.
    at: usize,
    /// Where its bytes begin on disk.
    offset: u64,
    /// Bytes between its quotation marks.
    len: u64,
}

/// A long string of a text on disk. It is base64 if it is the content of a file.
#[derive(Debug)]
pub struct LongString {
    file: Arc<File>,
    offset: u64,
    len: u64,
}

impl Spooled {
    /// Reads the text of `len` bytes in `file`.
    pub fn read(file: File, len: u64) -> Result<Spooled, Status> {
        let most = usize::try_from(len).unwrap_or(usize::MAX).min(SPOOLED_TEXT_BYTES_MAX);
        let reservation =
            MemoryReservation::take(most).map_err(|refused| Status::no_memory("what a load request says", refused))?;
        let mut scan = Scan::default();
        let file = Arc::new(file);
        each_step(&file, 0, len, |step| scan.take(step))?;
        Ok(Spooled { file, text: scan.text, cuts: scan.cuts, _reservation: reservation })
    }

    /// The text without its long strings.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// The long string that begins at this index of the text.
    pub fn string_at(&self, at: usize) -> Option<LongString> {
        let found = self.cuts.binary_search_by_key(&at, |cut| cut.at).ok()?;
        let Cut { offset, len, .. } = self.cuts[found];
        Some(LongString { file: Arc::clone(&self.file), offset, len })
    }

    /// The same error, with the offset in the text on disk.
    pub fn located(&self, fault: Malformed) -> Malformed {
        let before = self.cuts.iter().take_while(|cut| cut.at < fault.offset);
        let left_out: u64 = before.map(|cut| cut.len).sum();
        Malformed { offset: fault.offset.saturating_add(left_out as usize), ..fault }
    }
}

impl LongString {
    /// Its length on disk in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Its text, or an error if it is too long for a configuration.
    pub fn text(&self) -> Result<String, Status> {
        if self.len > SPOOLED_CONFIG_BYTES_MAX {
            return Err(Status::invalid(format!(
                "a configuration has at most {SPOOLED_CONFIG_BYTES_MAX} bytes, got {}; send only a model's configuration",
                self.len
            )));
        }
        let reservation = MemoryReservation::take(2 * self.len as usize);
        let _reservation = reservation.map_err(|refused| Status::no_memory("a configuration", refused))?;
        let mut quoted = vec![b'"'];
        each_step(&self.file, self.offset, self.len, |step| {
            quoted.extend_from_slice(step);
            Ok(())
        })?;
        quoted.push(b'"');
        let mut reader = Reader::new(&quoted)?;
        Ok(text_of(reader.raw_string()?))
    }
}

impl FileContent for LongString {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let (mut escapes, mut decoder) = (Escapes::default(), Decoder::default());
        let mut decoded = Vec::with_capacity(SPOOLED_STEP_BYTES);
        let written = each_step(&self.file, self.offset, self.len, |step| {
            decoded.clear();
            decoded.extend(step.iter().filter_map(|byte| escapes.push(*byte)).filter_map(|byte| decoder.push(byte)));
            out.write_all(&decoded).map_err(|error| Status::internal(error.to_string()))
        });
        written.map_err(|status| io::Error::other(status.message))
    }
}

/// Reads `len` bytes of a file from `offset` on in steps, and calls `each` with each step.
fn each_step(
    file: &File,
    mut offset: u64,
    len: u64,
    mut each: impl FnMut(&[u8]) -> Result<(), Status>,
) -> Result<(), Status> {
    let unread = |error: io::Error| Status::internal(format!("a load request kept on disk cannot be read: {error}"));
    let (end, mut step) = (offset + len, vec![0; SPOOLED_STEP_BYTES]);
    while offset < end {
        let most = usize::try_from(end - offset).unwrap_or(usize::MAX).min(step.len());
        let got = match file.read_at(&mut step[..most], offset) {
            Ok(0) => return Err(unread(io::ErrorKind::UnexpectedEof.into())),
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(unread(error)),
        };
        each(&step[..got])?;
        offset += got as u64;
    }
    Ok(())
}

/// Decodes escapes as far as base64 needs it. Invalid escapes, and escapes for characters outside of base64's alphabet, are skipped.
#[derive(Debug, Default)]
enum Escapes {
    #[default]
    Plain,
    Backslash,
    Hex {
        left: u8,
        code: u32,
    },
}

impl Escapes {
    /// Takes the next byte. Returns the character that it completes, if that is ASCII.
    fn push(&mut self, byte: u8) -> Option<u8> {
        match (std::mem::take(self), byte) {
            (Escapes::Plain, b'\\') => *self = Escapes::Backslash,
            (Escapes::Plain, _) | (Escapes::Backslash, b'/') => return Some(byte),
            (Escapes::Backslash, b'u') => *self = Escapes::Hex { left: 4, code: 0 },
            (Escapes::Backslash, _) => {}
            (Escapes::Hex { left, code }, _) => {
                let code = code << 4 | char::from(byte).to_digit(16)?;
                if left == 1 {
                    return u8::try_from(code).ok().filter(u8::is_ascii);
                }
                *self = Escapes::Hex { left: left - 1, code };
            }
        }
        None
    }
}

/// Separates the long strings from a text.
#[derive(Default)]
struct Scan {
    text: Vec<u8>,
    cuts: Vec<Cut>,
    /// Bytes of the text on disk that were read.
    seen: u64,
    string: Option<Open>,
    /// Whether the rest of the text is ignored.
    ended: bool,
}

/// A string whose end was not read yet.
struct Open {
    /// The index of its opening quotation mark in the text.
    at: usize,
    offset: u64,
    len: u64,
    escaped: bool,
}

impl Scan {
    fn take(&mut self, step: &[u8]) -> Result<(), Status> {
        for &byte in step {
            if self.ended {
                break;
            }
            match &mut self.string {
                None => {
                    if byte == b'"' {
                        let (at, offset) = (self.text.len(), self.seen + 1);
                        self.string = Some(Open { at, offset, len: 0, escaped: false });
                    }
                    self.keep(byte)?;
                }
                Some(open) if byte == b'"' && !open.escaped => {
                    self.close();
                    self.keep(byte)?;
                }
                Some(_) if byte < 0x20 => {
                    // The reader finds the error here, so the rest of the text is not needed.
                    self.close();
                    self.keep(byte)?;
                    self.ended = true;
                }
                Some(open) => {
                    open.escaped = byte == b'\\' && !open.escaped;
                    open.len += 1;
                    if open.len <= SPOOLED_STRING_BYTES_MIN as u64 {
                        self.keep(byte)?;
                    }
                }
            }
            self.seen += 1;
        }
        Ok(())
    }

    /// Ends the string. Of a long string only the quotation marks are kept.
    fn close(&mut self) {
        let Some(Open { at, offset, len, .. }) = self.string.take() else { return };
        if len > SPOOLED_STRING_BYTES_MIN as u64 {
            self.text.truncate(at + 1);
            self.cuts.push(Cut { at, offset, len });
        }
    }

    fn keep(&mut self, byte: u8) -> Result<(), Status> {
        if self.text.len() == SPOOLED_TEXT_BYTES_MAX {
            return Err(Status::invalid(format!(
                "a load request has more than {SPOOLED_TEXT_BYTES_MAX} bytes beside its long files; put the model into the \
                 repository"
            )));
        }
        self.text.push(byte);
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::control::read_spooled_load;
    use super::*;
    use nerite_request::setting::LoadOptions;

    fn spool(text: &str) -> (File, u64) {
        let path = std::env::temp_dir().join(format!("nerite-spooled-{}-{:p}", std::process::id(), &raw const *text));
        let mut file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        (file, text.len() as u64)
    }

    fn read(text: &str) -> Result<LoadOptions, Status> {
        let (file, len) = spool(text);
        read_spooled_load(file, len)
    }

    fn content(options: &LoadOptions, at: usize) -> Vec<u8> {
        let mut out = Vec::new();
        options.files[at].1.write_to(&mut out).unwrap();
        out
    }

    #[test]
    fn long_strings_remain_on_disk_and_are_read_from_there() {
        let (long, escaped) = ("Zm9v".repeat(200_000), "Zm9v\\n\\/\\u002fAA\\u00e9".repeat(10_000));
        let config = "x".repeat(100_000);
        let text = format!(
            r#"{{"parameters":{{"file:a":"{long}","file:b":"Zg==","config":"\"{config}","file:c":"{escaped}"}},"z":"{long}"}}"#
        );
        let options = read(&text).unwrap();
        assert_eq!(options.config.as_deref(), Some(&format!("\"{config}")[..]));
        assert!(content(&options, 0) == b"foo".repeat(200_000));
        assert_eq!(content(&options, 1), b"f");
        assert!(content(&options, 2) == [b"foo", &[0xff, 0xf0, 0x00][..]].concat().repeat(10_000));
        let (file, len) = spool(&text);
        assert!(Spooled::read(file, len).unwrap().text().len() < 200);
    }

    #[track_caller]
    fn check_refused(text: &str, expect: &str) {
        assert_eq!(read(text).unwrap_err().message, expect);
    }

    #[test]
    fn errors_have_their_offset_on_disk() {
        let long = "A".repeat(1 << 20);
        let before = "failed to parse the request JSON buffer:";
        let at = 1 + 1 + long.len() + 1;
        check_refused(&format!("[\"{long}\",]"), &format!("{before} Invalid value. at {}", at + 1));
        let at = 1 + 1 + long.len();
        check_refused(&format!("[\"{long}\n\"]"), &format!("{before} Invalid escape character in string. at {at}"));
        assert!(read(&format!("[\"{long}")).unwrap_err().message.contains("Missing a closing quotation mark"));
        check_refused(
            &format!(r#"{{"parameters":{{"x":"{long}"}}}}"#),
            "unexpected error on creating Triton parameter",
        );
    }

    #[test]
    fn the_part_held_in_memory_is_limited() {
        check_refused(
            &format!("[{}]", "1,".repeat(SPOOLED_TEXT_BYTES_MAX / 2)),
            "a load request has more than 67108864 bytes beside its long files; put the model into the repository",
        );
        let long = "x".repeat(SPOOLED_CONFIG_BYTES_MAX as usize + 1);
        check_refused(
            &format!(r#"{{"parameters":{{"config":"{long}"}}}}"#),
            "a configuration has at most 33554432 bytes, got 33554433; send only a model's configuration",
        );
    }
}
