//! How is a terminal drawn on, and left as it was?

use std::io::{IsTerminal, Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::frame::Size;

/// The other screen, no cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// To the first place of the screen; to the next line, with the rest of this one cleared; the rest of the screen cleared.
const HOME: &str = "\x1b[H";
const NEXT_LINE: &str = "\x1b[K\r\n";
const CLEAR_REST: &str = "\x1b[K\x1b[J";
/// Where a terminal does not tell its size.
const USUAL: Size = Size { columns: 80, rows: 24 };
/// Ctrl-C and Ctrl-D, as keys.
const ENDS: [u8; 2] = [3, 4];

/// A terminal that shows one look after the other, until it is dropped.
pub(super) struct Terminal {
    before: Termios,
    keys: Receiver<u8>,
}

impl Terminal {
    /// Takes the terminal over.
    pub(super) fn enter() -> Result<Terminal, String> {
        if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
            return Err("this is no terminal; --once prints one look".to_owned());
        }
        let failed = |error: rustix::io::Errno| format!("the terminal cannot be used: {error}");
        let before = tcgetattr(std::io::stdin()).map_err(failed)?;
        let mut raw = before.clone();
        raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        raw.special_codes[SpecialCodeIndex::VMIN] = 1;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).map_err(failed)?;
        let (sender, keys) = channel();
        // It waits in a read until the program ends.
        let reader = std::thread::Builder::new().name("nerite-keys".to_owned());
        reader.spawn(move || read_keys(&sender)).map_err(|error| format!("no thread to read keys: {error}"))?;
        let terminal = Terminal { before, keys };
        write(ENTER)?;
        Ok(terminal)
    }

    /// Its size now.
    pub(super) fn size() -> Size {
        let size = tcgetwinsize(std::io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        size.map_or(USUAL, |size| Size { columns: size.ws_col.into(), rows: size.ws_row.into() })
    }

    /// Shows these lines. The terminal must have room for all of them.
    pub(super) fn draw(lines: &[String]) -> Result<(), String> {
        write(&format!("{HOME}{}{CLEAR_REST}", lines.join(NEXT_LINE)))
    }

    /// Waits until then, or until somebody wants to quit: true.
    pub(super) fn wait_for_quit(&mut self, until: Instant) -> bool {
        loop {
            match self.keys.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(key) if key == b'q' || key == b'Q' || ENDS.contains(&key) => return true,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing any more.
        let _ = write(LEAVE);
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Sends on what is typed, until the receiver is gone or the input ends.
fn read_keys(sender: &Sender<u8>) {
    let mut some = [0; 64];
    while let Ok(count @ 1..) = std::io::stdin().lock().read(&mut some) {
        if some.iter().take(count).any(|key| sender.send(*key).is_err()) {
            return;
        }
    }
}

fn write(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| format!("the terminal is gone: {error}"))
}
