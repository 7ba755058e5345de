//! Which errors do the users of a region get when its memory is lost?

use nerite_memory::{Buffer, Reason, Slot};

use super::{Host, PAGE, check_all_gone, new_host, read};
use crate::ErrorKind;

#[track_caller]
fn check_lost(fault: Option<String>, name: &str, key: &str) {
    let fault = fault.unwrap();
    let start = format!(
        "shared memory region '{name}' can no longer be used: its object '{key}' was 8192 bytes when registered"
    );
    assert!(fault.starts_with(&start) && fault.contains("register it again"), "{fault}");
}

pub(super) fn only_users_of_a_lost_region_get_an_error<H: Host>() {
    let mut host = new_host::<H>();
    let (key, other_key) = (host.make(2 * PAGE), host.make(2 * PAGE));
    host.registry().register_system("a", &key, 0, 2 * PAGE as u64).unwrap();
    // Another window of the same object, before the lost part, and an object that remains complete.
    host.registry().register_system("b", &key, 0, PAGE as u64).unwrap();
    host.registry().register_system("c", &other_key, 0, 2 * PAGE as u64).unwrap();
    host.client_writes(&key, 0, b"kept");
    let users = |name: &str| {
        let at = |offset| host.registry().locate(name, offset, 4).unwrap();
        (at(0).into_buffer(), at(4).into_slot())
    };
    let (input, output): (Buffer, Slot) = users("a");
    let others = [users("b"), users("c")];
    let beyond = host.registry().locate("a", PAGE as u64 + 8, 4).unwrap().into_buffer();
    assert_eq!((input.fault(), output.fault(), beyond.fault()), (None, None, None));
    host.lose(&key, PAGE);
    assert_eq!(read(&beyond), [0; 4]);
    for fault in [beyond.fault(), input.fault(), output.fault()] {
        check_lost(fault, "a", &key);
    }
    for (input, output) in &others {
        read(input);
        assert_eq!((input.fault(), output.fault()), (None, None));
    }
    assert_eq!(read(&others[0].0), b"kept");
}

pub(super) fn a_lost_region_refuses_requests_until_it_is_registered_again<H: Host>() {
    let mut host = new_host::<H>();
    let key = host.make(2 * PAGE);
    let register = |host: &H| host.registry().register_system("a", &key, 0, 2 * PAGE as u64);
    register(&host).unwrap();
    let old = host.registry().locate("a", PAGE as u64, 4).unwrap().into_buffer();
    host.lose(&key, 0);
    read(&old);
    let refused = host.registry().locate("a", 0, 4).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    check_lost(Some(refused.to_string()), "a", &key);
    host.restore(&key, 2 * PAGE);
    assert!(host.registry().locate("a", 0, 4).is_err(), "the mapping is not the object's any more");
    register(&host).unwrap();
    host.client_writes(&key, PAGE, b"anew");
    let new = host.registry().locate("a", PAGE as u64, 4).unwrap().into_buffer();
    assert_eq!((read(&new), new.fault()), (b"anew".to_vec(), None));
    check_lost(old.fault(), "a", &key);
    assert_eq!((host.registry().counts().registered, host.registry().counts().mapped), (1, 2));
    assert_eq!(register(&host).unwrap_err().kind(), ErrorKind::Taken);
    drop((old, new));
    host.registry().unregister_system("a").unwrap();
    check_all_gone(&host);
}

pub(super) fn a_lost_region_can_be_unregistered_like_any_other<H: Host>() {
    let mut host = new_host::<H>();
    let key = host.make(PAGE);
    host.registry().register_system("a", &key, 0, PAGE as u64).unwrap();
    let mut slot = host.registry().locate("a", 0, 4).unwrap().into_slot();
    host.lose(&key, 0);
    slot.write(0, b"lost", Reason::Model).unwrap();
    assert!(slot.fault().is_some());
    host.registry().unregister_system("a").unwrap();
    assert_eq!(host.registry().system_status(None).unwrap().len(), 1);
    drop(slot);
    check_all_gone(&host);
}
