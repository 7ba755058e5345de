//! How does a source of regions without the kernel work?

use std::collections::HashMap;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use nerite_memory::Block;

use crate::loss::ObjectNow;
use crate::source::{Mapping, Object, ObjectError, Source};
use crate::window::Window;

/// Objects on the heap of this process. Clones share their objects.
#[derive(Clone, Default)]
pub(super) struct Heap {
    objects: Arc<Mutex<HashMap<String, HeapObject>>>,
}

#[derive(Clone)]
struct HeapObject {
    block: Arc<Block>,
    byte_size: u64,
    /// 0, or 1 + the offset of the object's first byte without memory. There are no faults here: mappings see the loss at once.
    lost: Arc<AtomicUsize>,
}

struct HeapMapping {
    object: HeapObject,
    window: Window,
}

impl Heap {
    pub(super) fn make(&self, key: &str, byte_size: usize) -> NonNull<u8> {
        let block = Arc::new(Block::new(byte_size));
        let base = block.as_ptr();
        let object = HeapObject { block, byte_size: byte_size as u64, lost: Arc::default() };
        self.objects.lock().unwrap().insert(key.to_string(), object);
        base
    }

    /// Removes the object's memory from `at` on.
    pub(super) fn lose(&self, key: &str, at: usize) {
        self.objects.lock().unwrap()[key].lost.store(at + 1, Ordering::Relaxed);
    }

    /// Restores the memory for new mappings.
    pub(super) fn restore(&self, key: &str) {
        self.objects.lock().unwrap().get_mut(key).unwrap().lost = Arc::default();
    }

    /// Mappings of all objects.
    pub(super) fn mappings(&self) -> usize {
        self.objects.lock().unwrap().values().map(|object| Arc::strong_count(&object.block) - 1).sum()
    }
}

impl Source for Heap {
    fn open(&self, key: &str) -> Result<Box<dyn Object>, ObjectError> {
        let object = self.objects.lock().unwrap().get(key).cloned();
        Ok(Box::new(object.ok_or_else(|| ObjectError::Open { cause: "there is none".to_string() })?))
    }

    fn page_bytes(&self) -> usize {
        4096
    }
}

impl Object for HeapObject {
    fn byte_size(&self) -> u64 {
        self.byte_size
    }

    fn map(&self, window: Window) -> io::Result<Box<dyn Mapping>> {
        Ok(Box::new(HeapMapping { object: self.clone(), window }))
    }
}

// SAFETY: the window ends within the object's `byte_size` (Window::new), which is no more than the block's capacity (Block::new). A Block is
// initialised, and does not move while an Arc holds it.
unsafe impl Mapping for HeapMapping {
    fn base(&self) -> NonNull<u8> {
        // SAFETY: the window's offset is within the block, as said above.
        unsafe { self.object.block.as_ptr().add(self.window.offset()) }
    }

    fn len(&self) -> usize {
        self.window.len()
    }

    fn lost_at(&self) -> Option<usize> {
        let at = self.object.lost.load(Ordering::Relaxed).checked_sub(1)?;
        (at < self.window.offset() + self.window.len()).then(|| at.saturating_sub(self.window.offset()))
    }

    fn object_bytes(&self) -> u64 {
        self.object.byte_size
    }

    fn object_now(&self) -> ObjectNow {
        ObjectNow::Unknown
    }
}
