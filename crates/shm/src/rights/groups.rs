//! Which groups is a user in?

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::{Uid, User, getgrouplist};

/// So long an answer is used again. The directory of users may be another host's, and clients decide how often it is asked.
const KEPT_FOR: Duration = Duration::from_mins(1);
/// Users whose answers are kept.
const USERS_KEPT_MAX: usize = 1024;

struct Answer {
    at: Instant,
    groups: Vec<u32>,
}

/// The groups of a user as the system's directory has them, the primary one included. A user that the directory does not
/// know has none.
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
    // Outside the lock: a slow directory delays only who asks for a user that is not kept.
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
