//! Is what lies on disk what the store reads?
