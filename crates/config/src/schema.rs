//! How is the schema accessed at run time?

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, MessageDescriptor};

use crate::ModelConfig;

/// The encoded `FileDescriptorSet` of `proto/model_config.proto`.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/model_config.bin"));

static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the build script has just encoded it"));

/// The descriptor of `inference.ModelConfig`.
pub(crate) fn model_config() -> MessageDescriptor {
    POOL.get_message_by_name("inference.ModelConfig").expect("the schema declares it")
}

/// The fields of a message in the order in which the schema declares them.
pub(crate) fn declared(desc: &MessageDescriptor) -> impl Iterator<Item = FieldDescriptor> + '_ {
    desc.descriptor_proto().field.iter().filter_map(|field| desc.get_field_by_name(field.name()))
}

/// The same configuration as a dynamic message, whose fields can be iterated.
pub(crate) fn to_dynamic(config: &ModelConfig) -> DynamicMessage {
    DynamicMessage::decode(model_config(), config.encode_to_vec().as_slice()).expect("both types come from one schema")
}

/// The same configuration as a Rust type.
pub(crate) fn to_typed(config: &DynamicMessage) -> ModelConfig {
    ModelConfig::decode(config.encode_to_vec().as_slice()).expect("both types come from one schema")
}
