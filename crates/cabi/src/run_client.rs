//! For which client does the run on this thread work?
//!
//! A request that a backend makes within a run counts as one of that client in the other model's queue.

use std::cell::Cell;

use nerite_request::{Client, SequenceOwner};

thread_local! {
    /// The client of the run on this thread. The server itself outside of a run.
    static CLIENT: Cell<Client> = const { Cell::new(Client { peer: 0, flow: 0, owner: SequenceOwner::SERVER }) };
}

/// Does the work of a run for this client.
pub fn running_for<T>(client: Client, run: impl FnOnce() -> T) -> T {
    let _outer = Outer(CLIENT.replace(client));
    run()
}

/// The client of the run on this thread.
pub fn client_of_run() -> Client {
    CLIENT.get()
}

/// The client of the run around this one. It is restored on drop, also after a panic.
struct Outer(Client);

impl Drop for Outer {
    fn drop(&mut self) {
        CLIENT.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_within_a_run_has_its_own_client() {
        let client = |flow| Client { peer: 1, flow, ..Client::default() };
        running_for(client(1), || {
            running_for(client(2), || assert_eq!(client_of_run(), client(2)));
            assert_eq!(client_of_run(), client(1));
        });
        assert_eq!(client_of_run(), Client::default());
    }
}
