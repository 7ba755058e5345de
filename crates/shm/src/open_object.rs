//! Who closes an object that was opened to be registered?

use crate::deferred::{OwnerId, Unmap};
use crate::mapped_counts::OpenPermit;
use crate::source::Object;

/// A client's object that is open to be registered. If the registration is refused, this descriptor may be the last reference to the object.
pub(crate) struct OpenObject {
    pub(crate) object: Box<dyn Object>,
    /// Last, because fields drop in order: the object counts until it is closed.
    pub(crate) permit: OpenPermit,
}

impl Unmap for OpenObject {
    fn byte_size(&self) -> usize {
        0
    }

    fn owner(&self) -> OwnerId {
        self.permit.owner()
    }

    fn is_of_client(&self) -> bool {
        true
    }

    fn frees_little(&self) -> bool {
        self.object.frees_little()
    }
}
