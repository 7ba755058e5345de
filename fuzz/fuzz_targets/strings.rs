//! Can any BYTES tensor make its reader step outside?
//!
//! The first byte is the number of elements expected.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nerite_memory::Buffer;
use nerite_tensor::strings;

fuzz_target!(|bytes: &[u8]| {
    let Some((&expected, bytes)) = bytes.split_first() else { return };
    let data = Buffer::from(bytes.to_vec());
    let Ok(found) = strings::extents(&data, u64::from(expected)) else { return };
    let mut again = Vec::new();
    for extent in found {
        strings::push(&mut again, &bytes[extent.offset()..extent.end()]).expect("shorter than the whole");
    }
    assert_eq!(again, bytes);
});
