//! How are the operator's calls answered?

use std::sync::Arc;

use nerite_api::{Operator, Scope, aside, quoted};
use nerite_request::inspect::{Dropped, RegionView};
use nerite_request::{Code, Status};
use nerite_wire::proto::session::v1;
use prost::Message as _;
use v1::client_message::Call;
use v1::server_message::Answer;

use crate::answer::{CallOutcome, failure_packet};
use crate::limits::{PAGE_BYTES, PAGE_REGIONS, SESSIONS_MAX};
use crate::outbox::Closed;
use crate::session::Session;
use crate::session_table::{SessionEntry, SessionTable};

/// Whether the call is one of the operator's.
pub(crate) fn is_operators(call: &Call) -> bool {
    matches!(
        call,
        Call::InspectRegions(_)
            | Call::InspectPools(_)
            | Call::InspectSessions(_)
            | Call::InspectLeases(_)
            | Call::DropRegion(_)
            | Call::DropAllRegions(_)
            | Call::EndSession(_)
    )
}

/// The error for a session in the operator's reserve that makes other calls.
pub(crate) fn only_operators_calls() -> Status {
    Status::unavailable(format!(
        "all {SESSIONS_MAX} places are taken; this session has one of the operator's, for the operator's calls alone"
    ))
}

impl Session {
    /// Carries out one of the operator's calls, if the session is the operator's. Changes are logged.
    pub(crate) async fn operate(&mut self, call: Call) -> Result<CallOutcome, Status> {
        let change = change_of(&call);
        let outcome = self.answer_operator(call).await;
        if let Some(change) = change {
            self.api.note_operator_change(&outcome, &change);
        }
        outcome
    }

    async fn answer_operator(&mut self, call: Call) -> Result<CallOutcome, Status> {
        let sessions = self.entry.sessions();
        let operator = self.api.operator(self.entry.uid(), sessions.own_uid());
        let operator = operator.map_err(|refusal| Status::new(Code::Denied, refusal.to_string()))?;
        let answer = match call {
            Call::InspectRegions(request) => {
                let (operator, sessions) = (operator.clone(), Arc::clone(sessions));
                // A page takes one pass over all regions for each few of its entries.
                let page = aside(self.api.account(), move || regions(&operator, &sessions, request)).await?;
                Answer::InspectedRegions(page)
            }
            Call::InspectPools(_) => Answer::InspectedPools(operator.pools().into()),
            Call::InspectSessions(_) => Answer::InspectedSessions(list_sessions(&operator, &self.entry)),
            Call::InspectLeases(of) => {
                let leases = sessions.one(of.session, |parts| operator.leases(&parts.scope));
                let leases = leases.ok_or_else(|| no_session(of.session))?.into_iter().map(Into::into).collect();
                Answer::InspectedLeases(v1::InspectedLeases { leases })
            }
            Call::DropRegion(region) => {
                let scope = match region.session {
                    0 => None,
                    number => {
                        let scope = sessions.one(number, |parts| Arc::clone(&parts.scope));
                        Some(scope.ok_or_else(|| no_session(number))?)
                    }
                };
                // The table's lock is not held here, because the driver may take long.
                let (operator, name) = (operator.clone(), region.name.clone());
                let dropped =
                    self.api.change_mappings(u64::MAX, move || operator.drop_region(scope.as_deref(), &name)).await?;
                Answer::Dropped(dropped.into())
            }
            Call::DropAllRegions(_) => {
                let operator = operator.clone();
                let dropped = self.api.change_mappings(u64::MAX, move || operator.drop_all_regions()).await?;
                Answer::Dropped(dropped.into())
            }
            Call::EndSession(request) => {
                let dropped = end(&self.entry, request.session)?;
                Answer::Dropped(dropped.into())
            }
            _ => return Err(Status::unsupported("the server does not know this call")),
        };
        Ok(CallOutcome::from(answer))
    }
}

/// What the call changes, for a line of the log. `None`: it changes nothing.
fn change_of(call: &Call) -> Option<String> {
    match call {
        Call::DropRegion(region) if region.session == 0 => Some(format!("unregister region {}", quoted(&region.name))),
        Call::DropRegion(v1::DropRegion { name, session }) => {
            Some(format!("unregister region {} of session {session}", quoted(name)))
        }
        Call::DropAllRegions(_) => Some("unregister all regions that belong to no session".to_owned()),
        Call::EndSession(request) => Some(format!("end session {}", request.session)),
        _ => None,
    }
}

fn no_session(number: u64) -> Status {
    Status::not_found(format!("there is no session {number}"))
}

/// All sessions except the caller's own.
fn list_sessions(operator: &Operator, caller: &SessionEntry) -> v1::InspectedSessions {
    let mut sessions = Vec::new();
    caller.sessions().each_from(0, |number, member, parts| {
        if number != caller.number() {
            let mut view = operator.session(&parts.scope, member.view(number));
            view.inferences = parts.in_flight.count() as u64;
            sessions.push(view.into());
        }
        true
    });
    v1::InspectedSessions { sessions }
}

/// Ends a session as if its client had closed it. The client gets the reason.
fn end(caller: &SessionEntry, number: u64) -> Result<Dropped, Status> {
    if number == caller.number() {
        return Err(Status::invalid(format!("session {number} is this one")));
    }
    let ended = caller.sessions().one(number, |parts| {
        let in_use = u64::from(parts.in_flight.count() > 0);
        parts.outbox.end(failure_packet(&Status::unavailable(Closed::Ended.to_string())));
        Dropped { count: 1, in_use }
    });
    ended.ok_or_else(|| no_session(number))
}

/// One page of all regions, or the regions with one name.
fn regions(operator: &Operator, sessions: &SessionTable, request: v1::InspectRegions) -> v1::InspectedRegions {
    let v1::InspectRegions { after: cursor, name } = request;
    let mut page = Page::default();
    let mut fill = |session: u64, scope: Option<&Scope>| {
        let after = cursor.as_ref().filter(|cursor| cursor.session == session).map(|cursor| cursor.name.as_str());
        match &name {
            Some(_) if after.is_some() => {}
            Some(name) => operator.region(scope, name).into_iter().for_each(|region| page.add(session, region)),
            None => page.fill(session, after, |after| operator.regions(scope, after, PAGE_REGIONS)),
        }
        !page.is_full()
    };
    let first = cursor.as_ref().map_or(0, |cursor| cursor.session);
    if first > 0 || fill(0, None) {
        sessions.each_from(first, |number, _, parts| fill(number, Some(&parts.scope)));
    }
    page.close()
}

#[derive(Default)]
struct Page {
    regions: Vec<v1::InspectedRegion>,
    bytes: usize,
}

impl Page {
    fn add(&mut self, session: u64, region: RegionView) {
        let region = v1::InspectedRegion::from(RegionView { session, ..region });
        // The field's tag and length in the list take a few bytes more.
        self.bytes += region.encoded_len() + 8;
        self.regions.push(region);
    }

    fn fill(&mut self, session: u64, after: Option<&str>, fetch: impl Fn(Option<&str>) -> Vec<RegionView>) {
        let mut after = after.map(str::to_owned);
        loop {
            let some = fetch(after.as_deref());
            let Some(last) = some.last() else { return };
            after = Some(last.name.clone());
            for region in some {
                if self.is_full() {
                    return;
                }
                self.add(session, region);
            }
        }
    }

    fn is_full(&self) -> bool {
        self.bytes >= PAGE_BYTES
    }

    fn close(self) -> v1::InspectedRegions {
        let last = self.regions.last().filter(|_| self.is_full());
        let next = last.map(|region| v1::RegionCursor { session: region.session, name: region.name.clone() });
        v1::InspectedRegions { regions: self.regions, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(after: Option<&str>, count: u32) -> Vec<RegionView> {
        let first = after.map_or(0, |after| after[1..].parse::<u32>().map_or(0, |number| number + 1));
        let region = |number| RegionView { name: format!("r{number:04}"), ..RegionView::default() };
        (first..count.min(first.saturating_add(PAGE_REGIONS as u32))).map(region).collect()
    }

    #[test]
    fn pages_have_a_limit_and_continue_where_the_last_one_ended() {
        let (mut after, mut listed) = (None::<String>, Vec::new());
        loop {
            let mut page = Page::default();
            page.fill(3, after.as_deref(), |after| some(after, 9000));
            let page = page.close();
            assert!(page.encoded_len() < PAGE_BYTES + 1024);
            listed.extend(page.regions.iter().map(|region| region.name.clone()));
            match page.next {
                Some(next) => after = Some(next.name),
                None => break,
            }
        }
        assert_eq!(listed, (0..9000).map(|number| format!("r{number:04}")).collect::<Vec<_>>());
    }
}
