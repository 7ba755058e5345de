//! Which groups is a user in?

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError};
use std::time::{Duration, Instant};

use nerite_locks::Mutex;
use nix::unistd::{Uid, User, getgrouplist};

/// How long an answer is cached. The user directory may be on another host, and clients decide how often groups are needed.
const KEPT_FOR: Duration = Duration::from_mins(1);
/// How long a registration can use an answer, because the registration may wait some time after the lookup.
const USABLE_FOR: Duration = Duration::from_mins(2);
/// The most users whose answers are cached.
const USERS_KEPT_MAX: usize = 1024;

struct Answer {
    at: Instant,
    groups: Vec<u32>,
}

/// The groups of users, looked up in a user directory and cached.
pub(crate) struct UserGroups {
    look_up: fn(u32) -> Vec<u32>,
    answers: Mutex<HashMap<u32, Answer>>,
}

impl UserGroups {
    /// The groups in the system's user directory, with one cache for the whole process.
    pub(crate) fn of_system() -> Arc<UserGroups> {
        static SYSTEM: LazyLock<Arc<UserGroups>> = LazyLock::new(|| UserGroups::looked_up_by(look_up));
        Arc::clone(&SYSTEM)
    }

    pub(crate) fn looked_up_by(look_up: fn(u32) -> Vec<u32>) -> Arc<UserGroups> {
        Arc::new(UserGroups { look_up, answers: Mutex::default() })
    }

    /// The groups of a user, if they were looked up lately.
    pub(crate) fn known(&self, uid: u32) -> Option<Vec<u32>> {
        self.not_older(uid, USABLE_FOR)
    }

    /// Whether the groups of a user need not be looked up again.
    pub(crate) fn are_fresh(&self, uid: u32) -> bool {
        self.not_older(uid, KEPT_FOR).is_some()
    }

    fn not_older(&self, uid: u32, than: Duration) -> Option<Vec<u32>> {
        let now = Instant::now();
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|_, answer| now.duration_since(answer.at) < USABLE_FOR);
        answers.get(&uid).filter(|answer| now.duration_since(answer.at) < than).map(|answer| answer.groups.clone())
    }

    /// The groups of a user, including the primary one. An unknown user has none. If they are not cached, this waits for the user directory, which may
    /// take any time.
    pub(crate) fn of(&self, uid: u32) -> Vec<u32> {
        if let Some(groups) = self.not_older(uid, KEPT_FOR) {
            return groups;
        }
        // The lookup runs outside the lock, so a slow directory delays only lookups of users that are not cached.
        let groups = (self.look_up)(uid);
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() >= USERS_KEPT_MAX {
            let oldest = answers.iter().min_by_key(|(_, answer)| answer.at).map(|(uid, _)| *uid);
            oldest.map(|uid| answers.remove(&uid));
        }
        answers.insert(uid, Answer { at: Instant::now(), groups: groups.clone() });
        groups
    }
}

fn look_up(uid: u32) -> Vec<u32> {
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(uid)) else { return Vec::new() };
    let Ok(name) = std::ffi::CString::new(user.name) else { return vec![user.gid.as_raw()] };
    match getgrouplist(&name, user.gid) {
        Ok(groups) => groups.iter().map(|gid| gid.as_raw()).collect(),
        Err(_) => vec![user.gid.as_raw()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_in_its_group_and_an_unknown_user_in_none() {
        let groups = UserGroups::of_system();
        assert!(groups.of(0).contains(&0));
        assert_eq!(groups.of(4_000_000_123), [0u32; 0]);
    }

    #[test]
    fn the_answer_that_was_looked_up_last_is_cached_and_the_number_of_answers_is_bounded() {
        let groups = UserGroups::looked_up_by(|uid| vec![uid + 1]);
        for uid in 0..2 * USERS_KEPT_MAX as u32 {
            assert_eq!(groups.known(uid), None);
            assert_eq!(groups.of(uid), [uid + 1]);
            assert_eq!(groups.known(uid), Some(vec![uid + 1]));
        }
        assert_eq!(groups.answers.lock().unwrap_or_else(PoisonError::into_inner).len(), USERS_KEPT_MAX);
    }
}
