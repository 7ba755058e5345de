//! Which groups is a user in?

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use nerite_locks::Mutex;
use nix::unistd::{Uid, User, getgrouplist};

/// How long an answer is cached. The user directory may be on another host, and clients decide how often it is asked.
const KEPT_FOR: Duration = Duration::from_mins(1);
/// The most users whose answers are cached.
const USERS_KEPT_MAX: usize = 1024;

struct Answer {
    at: Instant,
    groups: Vec<u32>,
}

/// The groups of a user in the system's user directory, including the primary one. An unknown user has none.
pub(super) fn of(uid: u32) -> Vec<u32> {
    static ANSWERS: Mutex<Option<HashMap<u32, Answer>>> = Mutex::new(None);
    let now = Instant::now();
    {
        let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = answers.get_or_insert_default();
        kept.retain(|_, answer| now.duration_since(answer.at) < KEPT_FOR);
        if let Some(answer) = kept.get(&uid) {
            return answer.groups.clone();
        }
    }
    // Outside the lock: a slow directory delays only lookups of users that are not cached.
    let groups = look_up(uid);
    let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = answers.get_or_insert_default();
    if kept.len() < USERS_KEPT_MAX {
        kept.insert(uid, Answer { at: now, groups: groups.clone() });
    }
    groups
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
        assert!(of(0).contains(&0));
        assert_eq!(of(4_000_000_123), [0u32; 0]);
    }
}
