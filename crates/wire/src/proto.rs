//! How do requests and answers look as protobuf?
