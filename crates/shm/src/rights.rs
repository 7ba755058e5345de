//! May this client map that object?
//!
//! The server opens objects with its own rights, which are those of root in many containers. A client may map an object only if it could have opened it
//! itself. The kernel identifies the client's user. The object's owner, group and mode come from the open descriptor, so the checked object is the
//! mapped one. The mode decides; access control lists are ignored.

mod groups;

use std::fmt;

pub(crate) use groups::UserGroups;

/// The rights of a client to objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rights {
    /// To all objects that the server can open.
    Any,
    /// To objects that this user could open for reading and writing.
    User(u32),
    /// To objects of the server's own user, and to those that all users may read and write.
    Unidentified {
        /// The client's name in error texts.
        who: String,
    },
    /// To objects that all users may read and write.
    OpenToAll {
        /// The client's name in error texts.
        who: String,
    },
}

/// The owner, group and mode of an object, from its inode. They decide who may open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u32,
}

/// Read and write permission. Both are needed, because a region is mapped for both.
const READ_WRITE: u32 = 0o6;

/// Why a client may not map an object. A user of this host is told the owner, which any user there can look up. Other clients are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    User {
        uid: u32,
        access: Access,
    },
    /// The user's groups decide, and they are not cached.
    GroupsUnknown {
        uid: u32,
    },
    Unidentified {
        who: String,
    },
    OpenToAll {
        who: String,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::User { uid, access: Access { uid: owner, gid, mode } } => {
                let mode = mode & 0o777;
                write!(
                    f,
                    "user {uid} asks for an object of user {owner}, group {gid}, mode {mode:04o}, which user {uid} "
                )?;
                write!(f, "may not read and write; let its owner change the mode, or ")?;
            }
            Refused::GroupsUnknown { uid } => {
                return write!(f, "the groups of user {uid} decide, and they are not known yet; try again");
            }
            Refused::Unidentified { who } => {
                write!(
                    f,
                    "{who} asks, whose user on this host is not known, and the object is neither the server's own "
                )?;
                write!(f, "nor open to all; ")?;
            }
            Refused::OpenToAll { who } => {
                write!(f, "{who} asks, whose user is not known, and the object is not open to all; ")?;
                write!(f, "keep the connection open until it is answered, do not bind it to a network device, or ")?;
            }
        }
        f.write_str("start the server with --shm-key-prefix or --shm-trust=any, or use a session's leases")
    }
}

impl Rights {
    /// Checks whether a client with these rights may map an object with that access, on a server that runs as `own_uid`. This uses only groups that are
    /// cached, because the calling thread may serve connections.
    pub(crate) fn check(&self, access: Access, own_uid: u32, groups: &UserGroups) -> Result<(), Refused> {
        let permitted = match self {
            Rights::Any => true,
            // The kernel checked the rights of the server's own user when the object was opened.
            Rights::User(uid) if *uid == own_uid => true,
            Rights::User(uid) => {
                may_open(*uid, access, || groups.known(*uid)).ok_or(Refused::GroupsUnknown { uid: *uid })?
            }
            Rights::Unidentified { .. } => access.uid == own_uid || may_others(access),
            Rights::OpenToAll { .. } => may_others(access),
        };
        match (permitted, self) {
            (true, _) | (_, Rights::Any) => Ok(()),
            (false, Rights::User(uid)) => Err(Refused::User { uid: *uid, access }),
            (false, Rights::Unidentified { who }) => Err(Refused::Unidentified { who: who.clone() }),
            (false, Rights::OpenToAll { who }) => Err(Refused::OpenToAll { who: who.clone() }),
        }
    }
}

impl Rights {
    /// The cause to report for an object that the server itself may not open. `cause` names the owner and the mode. A client whose user is not known must not
    /// learn these, so it gets the refusal that it would get if the server could open the object.
    pub(crate) fn cause_to_report(&self, access: Access, own_uid: u32, groups: &UserGroups, cause: String) -> String {
        match self.check(access, own_uid, groups) {
            Err(refused @ (Refused::Unidentified { .. } | Refused::OpenToAll { .. })) => refused.to_string(),
            _ => cause,
        }
    }
}

/// Whether a user's groups decide if the user may open an object with that access.
pub(crate) fn depends_on_groups(uid: u32, access: Access) -> bool {
    may_open(uid, access, || None).is_none()
}

/// The effective user of this process, which does not change.
pub(crate) fn own_uid() -> u32 {
    nix::unistd::Uid::effective().as_raw()
}

/// The kernel's rule for an object without an access control list: exactly one of the three classes decides. `None` if the groups decide and are not
/// known.
fn may_open(uid: u32, access: Access, groups: impl FnOnce() -> Option<Vec<u32>>) -> Option<bool> {
    if uid == 0 {
        return Some(true);
    }
    if uid == access.uid {
        return Some((access.mode >> 6) & READ_WRITE == READ_WRITE);
    }
    let group = (access.mode >> 3) & READ_WRITE == READ_WRITE;
    let others = access.mode & READ_WRITE == READ_WRITE;
    if group == others {
        return Some(group);
    }
    Some(if groups()?.contains(&access.gid) { group } else { others })
}

fn may_others(access: Access) -> bool {
    let class = |shift: u32| (access.mode >> shift) & READ_WRITE == READ_WRITE;
    // An unknown client may be the owner or in any group, so all three classes must allow it.
    class(6) && class(3) && class(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: u32 = 1000;
    const GROUP: u32 = 2000;

    /// No user's groups are known.
    fn nobody() -> std::sync::Arc<UserGroups> {
        UserGroups::looked_up_by(|_| Vec::new())
    }

    #[track_caller]
    fn check(uid: u32, groups: &[u32], mode: u32, permitted: bool) {
        let access = Access { uid: OWNER, gid: GROUP, mode };
        assert_eq!(may_open(uid, access, || Some(groups.to_vec())), Some(permitted), "{uid} {groups:?} {mode:04o}");
    }

    #[test]
    fn a_user_may_map_what_the_kernel_lets_it_open() {
        check(OWNER, &[], 0o600, true);
        check(OWNER, &[], 0o400, false);
        check(OWNER, &[GROUP], 0o066, false);
        check(1001, &[], 0o600, false);
        check(1001, &[GROUP], 0o600, false);
        check(1001, &[GROUP], 0o660, true);
        check(1001, &[GROUP], 0o640, false);
        check(1001, &[3, GROUP], 0o606, false);
        check(1001, &[3], 0o606, true);
        check(1001, &[], 0o666, true);
        check(1001, &[], 0o664, false);
        check(0, &[], 0o000, true);
    }

    #[test]
    fn groups_have_to_be_known_only_if_the_answer_depends_on_them() {
        let access = |mode| Access { uid: OWNER, gid: GROUP, mode };
        assert_eq!(may_open(1001, access(0o600), || None), Some(false));
        assert_eq!(may_open(1001, access(0o666), || None), Some(true));
        assert_eq!(may_open(OWNER, access(0o660), || None), Some(true));
        assert_eq!(may_open(1001, access(0o660), || None), None);
        let refused = Rights::User(1001).check(access(0o660), 7, &nobody()).expect_err("its groups are not known");
        assert!(refused.to_string().contains("the groups of user 1001"), "{refused}");
    }

    #[test]
    fn a_stranger_does_not_learn_whose_object_the_server_may_not_open() {
        let cause = || "owner uid 1000".to_owned();
        let reported = |rights: &Rights| {
            rights.cause_to_report(Access { uid: OWNER, gid: GROUP, mode: 0o600 }, 7, &nobody(), cause())
        };
        for rights in [Rights::Unidentified { who: "X".into() }, Rights::OpenToAll { who: "X".into() }] {
            let text = reported(&rights);
            assert!(text.starts_with("X asks, whose user") && !text.contains("1000"), "{text}");
        }
        assert_eq!(reported(&Rights::Any), cause());
        assert_eq!(reported(&Rights::User(5)), cause());
    }

    #[test]
    fn a_stranger_may_map_the_servers_objects_and_those_open_to_all() {
        let stranger = Rights::Unidentified { who: "address 10.0.0.7".into() };
        let access = |uid, mode| Access { uid, gid: GROUP, mode };
        assert_eq!(stranger.check(access(7, 0o600), 7, &nobody()), Ok(()));
        assert_eq!(stranger.check(access(OWNER, 0o666), 7, &nobody()), Ok(()));
        assert!(stranger.check(access(OWNER, 0o660), 7, &nobody()).is_err());
        assert!(stranger.check(access(OWNER, 0o606), 7, &nobody()).is_err());
        let text = stranger.check(access(OWNER, 0o600), 7, &nobody()).expect_err("it is another's").to_string();
        assert!(text.starts_with("address 10.0.0.7 asks") && !text.contains("1000") && !text.contains("600"), "{text}");
    }

    #[test]
    fn who_is_not_identified_may_map_only_what_is_open_to_all() {
        let rights = Rights::OpenToAll { who: "an unidentified client of this host".into() };
        let access = |uid, mode| Access { uid, gid: GROUP, mode };
        for uid in [0, 7, OWNER] {
            assert_eq!(rights.check(access(uid, 0o666), 7, &nobody()), Ok(()), "{uid}");
            for mode in [0o600, 0o660, 0o606, 0o644, 0o066] {
                assert!(rights.check(access(uid, mode), 7, &nobody()).is_err(), "{uid} {mode:04o}");
            }
        }
        let text = rights.check(access(OWNER, 0o600), 7, &nobody()).expect_err("it is another's").to_string();
        assert!(text.starts_with("an unidentified client of this host asks") && !text.contains("1000"), "{text}");
        assert!(text.contains("keep the connection open") && text.contains("--shm-key-prefix"), "{text}");
    }

    #[test]
    fn the_error_for_a_user_names_the_owner_and_the_cure() {
        let refused = Rights::User(1001).check(Access { uid: OWNER, gid: GROUP, mode: 0o100_600 }, 0, &nobody());
        let text = refused.expect_err("it is another's").to_string();
        assert!(text.contains("user 1001") && text.contains("of user 1000") && text.contains("0600"), "{text}");
        assert!(text.contains("--shm-key-prefix"), "{text}");
        assert_eq!(Rights::Any.check(Access { uid: OWNER, gid: GROUP, mode: 0 }, 7, &nobody()), Ok(()));
        assert_eq!(Rights::User(7).check(Access { uid: OWNER, gid: GROUP, mode: 0 }, 7, &nobody()), Ok(()));
    }
}
