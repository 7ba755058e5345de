//! How does a program or a backend read the state of its server's models, and register repositories?

use nerite_request::Status;

use super::exports;
use super::program::put_message;
use crate::abi::{List, Out, Text};
use crate::fault::Fault;
use crate::objects::{Message, ParameterObject, ServerObject};
use crate::table::Handle;

type Server = Handle<ServerObject>;

/// The flag for an index of models that are ready.
const INDEX_READY: u32 = 1;

/// Reads pairs of a directory and the name of its model from parameters in Triton's form.
fn names_of(path: &str, parameters: &[Handle<ParameterObject>]) -> Result<Vec<(String, String)>, Fault> {
    let pair = |parameter: &Handle<ParameterObject>| {
        let parameter = parameter.get()?;
        let no_text = || {
            Status::invalid(format!(
                "failed to register '{path}', the name of '{}' must have string type",
                parameter.name()
            ))
        };
        Ok((parameter.name().to_owned(), parameter.text().ok_or_else(no_text)?))
    };
    parameters.iter().map(pair).collect()
}

exports! {
    "TRITONSERVER_ServerModelMetadata" =
        model_metadata(server: Server, model: Text, version: i64, message: Out<Handle<Message>>) {
        message.check()?;
        let reports = server.get()?.reports("TRITONSERVER_ServerModelMetadata")?;
        put_message(&message, reports.model_metadata(&model.read()?, version)?)?;
    }

    "TRITONSERVER_ServerRegisterModelRepository" =
        register(server: Server, path: Text, names: List<Handle<ParameterObject>>, count: u32) {
        let (server, path) = (server.get()?, path.read()?);
        let names = names_of(&path, &names.read(u64::from(count))?)?;
        server.calls()?.register(&path, &names)?;
    }

    "TRITONSERVER_ServerUnregisterModelRepository" = unregister(server: Server, path: Text) {
        server.get()?.calls()?.unregister(&path.read()?)?;
    }

    "TRITONSERVER_ServerModelStatistics" =
        model_statistics(server: Server, model: Text, version: i64, message: Out<Handle<Message>>) {
        message.check()?;
        let reports = server.get()?.reports("TRITONSERVER_ServerModelStatistics")?;
        put_message(&message, reports.statistics(&model.read()?, version)?)?;
    }

    "TRITONSERVER_ServerModelIndex" = model_index(server: Server, flags: u32, message: Out<Handle<Message>>) {
        message.check()?;
        let reports = server.get()?.reports("TRITONSERVER_ServerModelIndex")?;
        put_message(&message, reports.index(flags & INDEX_READY != 0)?)?;
    }
}
