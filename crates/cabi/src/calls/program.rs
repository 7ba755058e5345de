//! How does a program make and end a server in its own process, and read the server's state?

use std::ffi::c_char;
use std::sync::Arc;

use nerite_request::Status;

use super::exports;
use crate::abi::Out;
use crate::fault::Fault;
use crate::objects::{Message, MetricsPage, ServerObject, ServerOptions};
use crate::server_calls::start;
use crate::table::Handle;

type Server = Handle<ServerObject>;

/// The only format of metrics that Triton has.
const PROMETHEUS: u32 = 0;

fn new_server(options: &ServerOptions) -> Result<ServerObject, Fault> {
    let Some(start) = start() else {
        let text = "a server is made by programs that load libtritonserver.so; this process is a server";
        return Err(Status::unsupported(text).into());
    };
    Ok(ServerObject::of_program(start(&options.flags())?))
}

/// Writes a message that the server made.
pub(super) fn put_message(place: &Out<Handle<Message>>, json: Vec<u8>) -> Result<(), Fault> {
    let json = String::from_utf8(json).map_err(|_| Status::internal("the server wrote JSON that is no UTF-8"))?;
    place.put(Handle::to(Arc::new(Message::new(json)))?)
}

exports! {
    "TRITONSERVER_ServerNew" = server_new(server: Out<Server>, options: Handle<ServerOptions>) {
        server.check()?;
        let made = new_server(&*options.get()?)?;
        server.put(Handle::to(Arc::new(made))?)?;
    }

    "TRITONSERVER_ServerDelete" = server_delete(server: Server) {
        if !server.is_null() {
            let stopped = server.get()?.calls()?.stop();
            // Two threads may delete it at the same time. The second one gets an error.
            server.take()?;
            stopped?;
        }
    }

    "TRITONSERVER_ServerStop" = server_stop(server: Server) {
        server.get()?.calls()?.stop()?;
    }

    "TRITONSERVER_ServerSetExitTimeout" = server_set_exit_timeout(server: Server, seconds: u32) {
        server.get()?.calls()?.set_exit_timeout(seconds);
    }

    "TRITONSERVER_ServerPollModelRepository" = server_poll(server: Server) {
        server.get()?.calls()?.poll()?;
    }

    "TRITONSERVER_ServerIsReady" = server_is_ready(server: Server, is_ready: Out<bool>) {
        is_ready.put(false)?;
        is_ready.put(server.get()?.reports("TRITONSERVER_ServerIsReady")?.is_ready()?)?;
    }

    "TRITONSERVER_ServerMetadata" = server_metadata(server: Server, message: Out<Handle<Message>>) {
        message.check()?;
        put_message(&message, server.get()?.reports("TRITONSERVER_ServerMetadata")?.metadata()?)?;
    }

    "TRITONSERVER_ServerMetrics" = server_metrics(server: Server, metrics: Out<Handle<MetricsPage>>) {
        metrics.check()?;
        let page = MetricsPage::new(server.get()?.reports("TRITONSERVER_ServerMetrics")?.metrics()?);
        metrics.put(Handle::to(Arc::new(page))?)?;
    }

    "TRITONSERVER_MetricsFormatted" =
        metrics_formatted(metrics: Handle<MetricsPage>, format: u32, base: Out<*const c_char>, bytes: Out<usize>) {
        if format != PROMETHEUS {
            return Err(Status::invalid(format!("unknown metrics format '{format}'")).into());
        }
        // The text lives as long as the handle.
        let page = metrics.get()?;
        base.put(page.text().as_ptr().cast())?;
        bytes.put(page.text().len())?;
    }

    "TRITONSERVER_MetricsDelete" = metrics_delete(metrics: Handle<MetricsPage>) {
        metrics.delete()?;
    }
}
