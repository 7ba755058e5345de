//! How does a backend read and write messages and parameters?

use std::ffi::c_char;
use std::sync::Arc;

use super::{exports, plain_exports};
use crate::abi::{List, Opaque, Out, Text, value};
use crate::objects::{Content, Kept, Message, ParameterObject};
use crate::table::Handle;

exports! {
    "TRITONSERVER_MessageNewFromSerializedJson" = message_new(message: Out<Handle<Message>>, base: List<u8>, bytes: usize) {
        let json = base.read(bytes as u64)?;
        message.put(Handle::to(Arc::new(Message::parse(&json)?))?)?;
    }

    "TRITONSERVER_MessageSerializeToJson" = message_serialize(message: Handle<Message>, base: Out<*const c_char>, bytes: Out<usize>) {
        // The text lives as long as the message's handle.
        let message = message.get()?;
        base.put(message.json().as_ptr().cast())?;
        bytes.put(message.json().len())?;
    }

    "TRITONSERVER_MessageDelete" = message_delete(message: Handle<Message>) {
        message.delete()?;
    }
}

plain_exports! {
    "TRITONSERVER_ParameterNew" = parameter_new(name: Text, kind: u32, from: Opaque) -> Handle<ParameterObject> {
        let (Some(name), Some(value)) = (name.read_if_given(), value(kind, from)) else { return Handle::NULL };
        Handle::to(Arc::new(ParameterObject::new(name, Content::Value(value)))).unwrap_or_default()
    }

    "TRITONSERVER_ParameterBytesNew" = parameter_bytes_new(name: Text, bytes: Opaque, size: u64) -> Handle<ParameterObject> {
        let name = name.read_if_given().unwrap_or_default();
        Handle::to(Arc::new(ParameterObject::new(name, Content::Bytes(Kept(bytes.address()), size)))).unwrap_or_default()
    }

    "TRITONSERVER_ParameterDelete" = parameter_delete(parameter: Handle<ParameterObject>) {
        if let Err(fault) = parameter.delete() {
            fault.into_status("TRITONSERVER_ParameterDelete");
        }
    }
}
