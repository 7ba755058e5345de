//! Does each function of the interface exist, once?

use std::collections::HashSet;

use super::all;

#[test]
fn each_function_is_there_once_and_at_an_address_of_its_own_name() {
    let names: Vec<_> = all().map(|export| export.name).collect();
    let different: HashSet<_> = names.iter().collect();
    assert_eq!((names.len(), different.len()), (264, 264));
    assert!(names.iter().all(|name| name.starts_with("TRITONBACKEND_") || name.starts_with("TRITONSERVER_")));
    assert!(all().all(|export| !export.address.is_null()));
}
