//! Which regions of shared memory are registered?

use nerite_api::{Api, aside};
use nerite_request::Status;
use nerite_wire::json::{read_cuda_register, read_system_register, write_cuda_status, write_system_status};

use super::{CallResult, pass_over, read_control_body};
use crate::identifier;
use crate::incoming::Incoming;
use crate::reply::{done, json};
use crate::route::{RegionCall, RegionKind};

/// Status, registration and unregistration of regions of both kinds. `segment` is the name as the path has it.
pub async fn region(api: &Api, body: Incoming, kind: RegionKind, segment: &str, call: RegionCall) -> CallResult {
    let name = &*identifier::region(segment);
    if call != RegionCall::Register {
        pass_over(body).await;
        return without_body(api, kind, name, call).await;
    }
    match kind {
        RegionKind::System => {
            check_register(api, name, "system")?;
            let body = read_control_body(api, body).await?;
            let region = read_system_register(body.bytes())?;
            api.register_own_system(name.to_owned(), region.key, region.offset, region.byte_size).await?;
            Ok(done())
        }
        RegionKind::Cuda => {
            check_register(api, name, "cuda")?;
            api.check_cuda(name)?;
            let body = read_control_body(api, body).await?;
            let region = read_cuda_register(body.bytes())?;
            // A number that no device can have is refused like an unknown device.
            let device_id = i64::try_from(region.device_id).unwrap_or(i64::MAX);
            let name = name.to_owned();
            let register = move |api: &Api| api.register_cuda(&name, &region.raw_handle, device_id, region.byte_size);
            Ok(api.change_own_regions(register).await.map(|()| done())?)
        }
    }
}

async fn without_body(api: &Api, kind: RegionKind, name: &str, call: RegionCall) -> CallResult {
    Ok(match (kind, call) {
        (_, RegionCall::Status) if name.is_empty() => {
            // Written on another thread than a front thread, because there may be many regions with long names.
            let reader = api.clone();
            json(aside(api.account(), move || status(&reader, kind, "")).await??)
        }
        (kind, RegionCall::Status) => json(status(api, kind, name)?),
        (kind, _) => {
            let name = name.to_owned();
            let unregister = move |api: &Api| match kind {
                RegionKind::System => api.unregister_system(&name),
                RegionKind::Cuda => api.unregister_cuda(&name),
            };
            api.change_own_regions(unregister).await.map(|()| done())?
        }
    })
}

/// One region as JSON, or all that the client may see if the name is empty.
fn status(api: &Api, kind: RegionKind, name: &str) -> Result<Vec<u8>, Status> {
    match kind {
        RegionKind::System => api.write_system_status(name, |regions| write_system_status(&regions)),
        RegionKind::Cuda => api.write_cuda_status(name, |regions| write_cuda_status(&regions)),
    }
}

/// The checks of a registration before its body is read.
fn check_register(api: &Api, name: &str, kind: &str) -> Result<(), Status> {
    api.check_client_shm()?;
    if name.is_empty() {
        return Err(Status::invalid(format!("'region name' is necessary to register {kind} shared memory region")));
    }
    Ok(())
}
