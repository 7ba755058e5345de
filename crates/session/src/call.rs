//! How is each call of a session carried out?

use std::sync::Arc;

use nerite_api::{Category, Scope, aside};
use nerite_request::Status;
use nerite_wire::proto::messages::ModelMetadataResponse;
use nerite_wire::proto::session::{ANSWERS_HEAD_BYTES, VERSION, v1};
use prost::Message as _;
use v1::client_message::Call;
use v1::server_message::Answer;

use crate::answer::{CallOutcome, lease_message};
use crate::limits::{DESCRIPTORS_MAX, INFERENCES_MAX, PACKET_BYTES_MAX};
use crate::operator::{is_operators, only_operators_calls};
use crate::session::Session;
use crate::waiting::RemainingWork;

/// The most bytes of an answer's id, and of a field's tag and length.
const ID_BYTES_MAX: usize = 16;

impl Session {
    /// Carries out one call of a client that has sent Hello.
    pub(crate) async fn carry_out(&mut self, id: u64, call: Call) -> Result<CallOutcome, Status> {
        if is_operators(&call) {
            return self.operate(call).await;
        }
        if self.entry.reserve().is_some() {
            return Err(only_operators_calls());
        }
        self.allow(categories(&call), changes(&call))?;
        let scope = &self.scope;
        Ok(match call {
            Call::Hello(_) => return Err(Status::invalid("Hello was said before")),
            Call::Infer(infer) => {
                Box::pin(crate::inference::infer(id, infer, self)).await?;
                CallOutcome::UnderWay
            }
            Call::Prepare(prepare) => Box::pin(self.prepare(id, prepare)).await?,
            Call::CallPrepared(calls) => {
                self.call_prepared(id, calls).await?;
                CallOutcome::UnderWay
            }
            Call::Release(release) => {
                self.prepared.release(&release.handles)?;
                CallOutcome::from(Answer::Done(v1::Done {}))
            }
            Call::DescribeModel(model) => self.describe_or_wait(id, model)?,
            Call::Cancel(cancel) => {
                self.cancel_waiting(cancel.id);
                self.in_flight.cancel(cancel.id);
                CallOutcome::from(Answer::Done(v1::Done {}))
            }
            Call::Borrow(borrow) => lend(scope, borrow.byte_size).await?,
            Call::Fetch(fetch) => send_leases(scope, &fetch.names)?,
            Call::Abandon(abandon) => {
                scope.abandon(abandon.tag, &abandon.kept);
                CallOutcome::from(Answer::Done(v1::Done {}))
            }
            Call::RegisterSystem(region) => {
                let v1::RegisterSystem { name, key, offset, byte_size } = region;
                self.api.look_up_groups(&key).await?;
                let (scope, mapped) = (Arc::clone(scope), scope.mapped_bytes());
                let register = move || scope.register_system(&name, &key, offset, byte_size);
                self.api.change_mappings(mapped, register).await?;
                CallOutcome::from(Answer::Done(v1::Done {}))
            }
            Call::UnregisterSystem(region) => {
                let scope = Arc::clone(scope);
                self.api.change_mappings(scope.mapped_bytes(), move || scope.unregister_system(&region.name)).await?;
                CallOutcome::from(Answer::Done(v1::Done {}))
            }
            Call::SystemStatus(status) if status.name.is_empty() => {
                let scope = Arc::clone(scope);
                // There may be many regions with long keys.
                let all = aside(self.api.account(), move || regions(&scope, "")).await??;
                CallOutcome::from(Answer::Regions(all))
            }
            Call::SystemStatus(status) => CallOutcome::from(Answer::Regions(regions(scope, &status.name)?)),
            Call::SessionStatus(_) => {
                let ((leases, bytes), limits) = (scope.used(), scope.limits());
                let (session_bytes_max, inferences) = (limits.session_bytes_max, self.in_flight.count() as u32);
                CallOutcome::from(Answer::SessionReport(v1::SessionReport {
                    leases,
                    bytes,
                    session_bytes_max,
                    inferences,
                }))
            }
            _ => return Err(Status::unsupported("the server does not know this call")),
        })
    }

    fn describe_or_wait(&mut self, id: u64, model: v1::DescribeModel) -> Result<CallOutcome, Status> {
        if let Some(described) = self.find_unless_waiting(&model.name, || self.describe(&model))? {
            return Ok(CallOutcome::from(described));
        }
        let (name, bytes) = (model.name.clone(), model.name.len() + model.version.len());
        self.wait_for(&name, id, bytes, RemainingWork::Describe(model))?;
        Ok(CallOutcome::UnderWay)
    }

    pub(crate) fn describe(&self, model: &v1::DescribeModel) -> Result<Answer, Status> {
        let report = self.api.model_report(&model.name, &model.version)?;
        let metadata = ModelMetadataResponse::from(report).encode_to_vec();
        let (bytes, most) = (metadata.len(), PACKET_BYTES_MAX - ANSWERS_HEAD_BYTES - ID_BYTES_MAX);
        if bytes > most {
            let text =
                format!("the metadata of model '{}' has {bytes} bytes, at most {most} fit in an answer", model.name);
            return Err(Status::unavailable(text));
        }
        Ok(Answer::Described(v1::Described { metadata: metadata.into() }))
    }

    /// The answer to Hello, if client and server have a version in common.
    pub(crate) fn welcome(&self, hello: &v1::Hello) -> Result<CallOutcome, Status> {
        let v1::Hello { version_min, version_max, .. } = hello;
        if !(*version_min..=*version_max).contains(&VERSION) {
            return Err(Status::unsupported(format!(
                "the client speaks versions {version_min} to {version_max} of the session protocol, this server {VERSION}"
            )));
        }
        let limits = self.scope.limits();
        Ok(CallOutcome::from(Answer::Welcome(v1::Welcome {
            version: VERSION,
            server_name: self.server.name.clone(),
            server_version: self.server.version.clone(),
            packet_bytes_max: PACKET_BYTES_MAX as u64,
            session_bytes_max: limits.session_bytes_max,
            lease_bytes_max: limits.bytes_max,
            inferences_max: INFERENCES_MAX as u32,
            server_id: self.api.server_id().to_owned(),
            session_key: self.scope.key().map(|key| key.to_string()).unwrap_or_default(),
        })))
    }
}

async fn lend(scope: &Arc<Scope>, byte_size: u64) -> Result<CallOutcome, Status> {
    let borrowed = scope.borrow_aside(byte_size).await?;
    let message = lease_message(&borrowed);
    Ok(CallOutcome::Answer(Answer::Lease(message), borrowed.descriptor.into_iter().collect()))
}

/// Sends all leases or an error. A client would not know which leases are missing if only some were sent.
fn send_leases(scope: &Scope, names: &[String]) -> Result<CallOutcome, Status> {
    if names.len() > DESCRIPTORS_MAX {
        return Err(Status::invalid(format!(
            "{} leases are asked for, at most {DESCRIPTORS_MAX} descriptors fit in an answer",
            names.len()
        )));
    }
    scope.check_leases(names)?;
    let mut all = names.iter().map(|name| scope.fetch(name)).collect::<Result<Vec<_>, Status>>()?;
    let leases = all.iter().map(lease_message).collect();
    let descriptors = all.iter_mut().filter_map(|borrowed| borrowed.descriptor.take()).collect();
    Ok(CallOutcome::Answer(Answer::Leases(v1::Leases { leases }), descriptors))
}

fn regions(scope: &Scope, name: &str) -> Result<v1::Regions, Status> {
    let region = |r: nerite_request::report::SystemRegionReport| v1::Region {
        name: r.name,
        key: r.key,
        offset: r.offset,
        byte_size: r.byte_size,
    };
    Ok(v1::Regions { regions: scope.system_status(name)?.into_iter().map(region).collect() })
}

/// Whether a call may change which memory of the client the server holds, for access rules. An inference may, because its outputs can be placed in leases.
fn changes(call: &Call) -> bool {
    !matches!(call, Call::SystemStatus(_) | Call::DescribeModel(_) | Call::CallPrepared(_))
}

/// The categories of a call, for the operator's restrictions.
fn categories(call: &Call) -> &'static [Category] {
    match call {
        // An output in a lease that the server chooses also takes shared memory, so the rule for shared memory applies as well.
        Call::Infer(infer) if !infer.leased_outputs.is_empty() => &[Category::Inference, Category::SharedMemory],
        Call::Prepare(prepare) if prepare.infer.as_ref().is_some_and(|infer| !infer.leased_outputs.is_empty()) => {
            &[Category::Inference, Category::SharedMemory]
        }
        // The scopes of a token may change, so the right to the memory of a prepared inference is checked each time it is submitted. The headers of a
        // session do not change, so the operator's restrictions were checked when the inference was prepared.
        Call::Infer(_) | Call::Prepare(_) | Call::CallPrepared(_) => &[Category::Inference],
        Call::DescribeModel(_) => &[Category::Metadata],
        Call::Borrow(_)
        | Call::Fetch(_)
        | Call::RegisterSystem(_)
        | Call::UnregisterSystem(_)
        | Call::SystemStatus(_) => &[Category::SharedMemory],
        Call::Hello(_) | Call::Cancel(_) | Call::Abandon(_) | Call::SessionStatus(_) | Call::Release(_) => &[],
        // The operator's calls have a separate rule, which is checked first.
        Call::InspectRegions(_)
        | Call::InspectPools(_)
        | Call::InspectSessions(_)
        | Call::InspectLeases(_)
        | Call::DropRegion(_)
        | Call::DropAllRegions(_)
        | Call::EndSession(_) => &[],
    }
}
