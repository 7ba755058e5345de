//! What does a client's token allow?
//!
//! Each call of a front end passes `Api::enter` once: through [`Api::allow`], for sessions through
//! [`Api::allow_session`], for metrics through [`Api::allow_metrics`]. The order of the checks is the same for all:
//! headers of restricted categories, the token, its scopes, its quotas. Whether the token allows a model is checked
//! where the model is looked up, and the request's `Admission` keeps the token.

use std::sync::Arc;

use nerite_access::{Booking, OverQuota, Scope, Token, Tokens, Unknown};
use nerite_request::{Code, InferRequest, Status, TRACEPARENT, TraceContext};
use nerite_watchdog::now_ns;

use crate::access::{Category, Refused};
use crate::api::{AUTHORIZATION, FORWARDED_FOR};
use crate::caller::{BodyCounter, Caller, FrontEnd, Line};
use crate::refusals::RefusalReason;
use crate::{Api, Scope as SessionScope, codes};

/// A token needs one of these scopes to make a call. If empty, no token is needed.
fn scopes(category: Category, changes: bool) -> &'static [Scope] {
    match (category, changes) {
        (Category::Health, _) => &[],
        (Category::Inference, _) => &[Scope::Infer],
        // Clients read the metadata before their first inference.
        (Category::Metadata, _) => &[Scope::Read, Scope::Infer],
        (Category::SharedMemory, true) => &[Scope::Regions],
        (Category::SharedMemory, false) => &[Scope::Regions, Scope::Read],
        (Category::ModelRepository | Category::Trace | Category::Logging, true) => &[Scope::Control],
        (Category::ModelRepository | Category::Trace | Category::Logging, false) => &[Scope::Read, Scope::Control],
        (Category::ModelConfig | Category::Statistics, _) => &[Scope::Read],
    }
}

impl Api {
    /// Checks a call of all these categories. `changes` says that it may change something. Returns the record of its client; `None` if none is
    /// needed. `named` says for the log what the client asked for: a method and a path, or an RPC. `header` looks up a header by its lower-case name.
    pub(crate) fn enter<'h>(
        &self,
        front: FrontEnd,
        categories: &[Category],
        changes: bool,
        named: impl FnOnce() -> String,
        header: impl Fn(&str) -> Option<&'h [u8]>,
    ) -> Result<Option<Arc<Caller>>, Refused> {
        let entered = self.check_entry(front, categories, changes, named, header);
        entered.inspect_err(|refused| self.count_refused_entry(refused))
    }

    fn check_entry<'h>(
        &self,
        front: FrontEnd,
        categories: &[Category],
        changes: bool,
        named: impl FnOnce() -> String,
        header: impl Fn(&str) -> Option<&'h [u8]>,
    ) -> Result<Option<Arc<Caller>>, Refused> {
        for category in categories {
            category.begins();
        }
        let restrictions = &self.inner.options.restrictions;
        let check = |category: &Category| front.check(restrictions, *category, &header);
        let restricted = if restrictions.is_empty() { Ok(()) } else { categories.iter().try_for_each(check) };
        let Some(first) = categories.first().filter(|_| self.knows_callers()) else {
            return Ok(restricted.map(|()| None)?);
        };
        let authorization = header(AUTHORIZATION);
        let (token, allowed) = match (&self.inner.options.tokens, restricted) {
            (_, Err(status)) => (None, Err(status.into())),
            (None, Ok(())) => (None, Ok(())),
            (Some(tokens), Ok(())) => self.by_token(tokens, front, categories, changes, authorization),
        };
        let line = || self.line(front, *first, &named(), token.as_ref()).forwarded_for(header(FORWARDED_FOR));
        let line = self.logs_calls_of(*first).then(line);
        if let Some(line) = &line
            && let Some(context) = header(TRACEPARENT).and_then(|parent| TraceContext::read(parent, None))
        {
            line.note_trace(&context);
        }
        if let (Err(refused), Some(line)) = (&allowed, &line) {
            line.note_status(front.status_of(refused));
        }
        allowed.map(|()| (token.is_some() || line.is_some()).then(|| Arc::new(Caller::new(token, line))))
    }

    /// Whether a call needs a record of its client: for its token, or for its log line.
    pub(crate) fn knows_callers(&self) -> bool {
        self.inner.options.tokens.is_some() || self.logs_requests()
    }

    /// Whether each request is a line of the log: always, or because the log is that verbose now.
    pub(crate) fn logs_requests(&self) -> bool {
        self.inner.options.log_access || self.inner.log.shows(log::Level::Trace)
    }

    /// Whether a call of this category is a line of the log.
    fn logs_calls_of(&self, category: Category) -> bool {
        self.logs_requests() && (category != Category::Health || self.inner.options.log_access_health)
    }

    /// Notes the trace of the inference for its line in the log, if it has one.
    pub(crate) fn note_trace(&self, context: Option<&TraceContext>) {
        if self.logs_requests()
            && let Some(context) = context
            && let Some(line) = self.caller().as_ref().and_then(|caller| caller.line.as_ref())
        {
            line.note_trace(context);
        }
    }

    /// The token of a call, if the call needs one, and whether the token allows it.
    fn by_token(
        &self,
        tokens: &Tokens,
        front: FrontEnd,
        categories: &[Category],
        changes: bool,
        authorization: Option<&[u8]>,
    ) -> (Option<Arc<Token>>, Result<(), Refused>) {
        if categories.iter().all(|category| scopes(*category, changes).is_empty()) {
            return (None, Ok(()));
        }
        // An inference changes nothing, whatever memory it writes.
        let can_change = |first: &&Category| scopes(**first, true) != scopes(**first, false);
        let changed = categories.first().filter(|_| changes).filter(can_change);
        let token = match tokens.find(authorization) {
            Ok(token) => tokens.with_quotas_of(token, || self.peer().to_string(), now_ns()),
            Err(fault) => {
                let refused = unknown(fault);
                let may_be_changed = categories.first().filter(|first| changes || front.hides_changes(**first));
                if let Some(category) = may_be_changed.filter(can_change) {
                    self.audit_unknown(*category, changes, &refused);
                }
                return (None, Err(refused));
            }
        };
        let check = |category: &Category| check_scopes(tokens, &token, scopes(*category, changes));
        let allowed = categories.iter().try_for_each(check).and_then(|()| take_request(&token, Booking::default()));
        if let Some(category) = changed {
            self.audit_refusal(&token, *category, &allowed);
        }
        (Some(token), allowed)
    }

    fn line(&self, front: FrontEnd, category: Category, named: &str, token: Option<&Arc<Token>>) -> Line {
        Line::begin(&self.inner.log, front, category, named, self.peer(), token)
    }

    /// Checks the token that a session sends with Hello. It may send none.
    pub fn check_session_token(&self, authorization: Option<&[u8]>) -> Result<(), Status> {
        match &self.inner.options.tokens {
            Some(tokens) if authorization.is_some() => {
                let known = tokens.find(authorization).map(drop).map_err(unknown);
                Ok(known.inspect_err(|refused| self.count_refused_entry(refused))?)
            }
            _ => Ok(()),
        }
    }

    /// Whether a client may see the metrics.
    pub fn allow_metrics(&self, authorization: Option<&[u8]>) -> Result<(), Refused> {
        let header = |name: &str| authorization.filter(|_| name == AUTHORIZATION);
        let caller =
            self.enter(FrontEnd::Metrics, &[Category::Statistics], false, || "GET /metrics".to_owned(), header)?;
        if let Some(line) = caller.as_ref().and_then(|caller| caller.line.as_ref()) {
            line.note_status(200);
        }
        Ok(())
    }

    /// Checks whether the next request of an allowed call is allowed, too. Returns the [`Api`] to use for it, if that is another one. Each request of a
    /// stream counts against quotas, except one that was counted with its call (`is_counted`).
    pub fn allow_next(&self, is_counted: bool) -> (Option<Api>, Result<(), Status>) {
        let Some(caller) = self.caller() else { return (None, Ok(())) };
        let line = caller.line.as_ref().map(Line::next);
        let (token, allowed) = match self.next_token(is_counted) {
            Ok(token) => (token, Ok(())),
            Err(refused) => {
                self.count_refused_entry(&refused);
                let status = Status::from(refused);
                if let Some(line) = &line {
                    line.note_status(codes::grpc_status(status.code));
                }
                (caller.token.clone(), Err(status))
            }
        };
        (Some(self.with_caller(Arc::new(caller.next(token, line)))), allowed)
    }

    /// The same client, in the call of this caller.
    pub(crate) fn with_caller(&self, caller: Arc<Caller>) -> Api {
        Api { inner: Arc::clone(&self.inner), client: Arc::clone(&self.client), caller: Some(caller) }
    }

    fn next_token(&self, is_counted: bool) -> Result<Option<Arc<Token>>, Refused> {
        let Some((tokens, token)) = self.token_now()? else { return Ok(None) };
        check_scopes(tokens, &token, &[Scope::Infer])?;
        if !is_counted {
            take_request(&token, self.caller().map_or_else(Booking::default, |caller| caller.booking()))?;
        }
        Ok(Some(token))
    }

    /// Notes that each request of the call has a line of its own in the log.
    pub fn silence_call(&self) {
        self.caller.iter().filter_map(|caller| caller.line.as_ref()).for_each(Line::silence);
    }

    /// Notes the status with which a call over HTTP or gRPC was answered.
    pub fn note_status(&self, status: u32) {
        self.caller.iter().filter_map(|caller| caller.line.as_ref()).for_each(|line| line.note_status(status));
    }

    /// Notes which inference the call is, or which model it asks about. Call this before the checks, so that the line of a refused call has them too. The id
    /// is empty if it is not known yet.
    pub fn note_inference(&self, model: &str, version: &str, id: &str) {
        if self.logs_requests()
            && let Some(line) = self.caller().as_ref().and_then(|caller| caller.line.as_ref())
        {
            line.note_request(model, version, id);
        }
    }

    /// As [`Api::note_inference`], for a request that was read.
    pub fn note_request(&self, infer_request: &InferRequest) {
        self.note_inference(&infer_request.model, &infer_request.version, &infer_request.id);
    }

    /// Books the bytes of an inference's message at the client's token before they are read, so that many messages at once cannot exceed the token's quota.
    /// `announced` is `None` if the client did not announce the size. Call this after [`Api::allow`]. Returns the counter for the bytes that arrive, or
    /// `None` if nothing has to be counted.
    pub fn book_message(&self, announced: Option<u64>) -> Result<Option<BodyCounter>, Refused> {
        let Some(caller) = self.caller().filter(|caller| caller.books_bytes()) else { return Ok(None) };
        let booked = caller.book(announced).map_err(over_quota);
        booked.inspect_err(|refused| self.count_refused_entry(refused))?;
        Ok(Some(BodyCounter(caller)))
    }

    /// Whether [`Api::book_message`] books anything for this client.
    pub fn books_bytes(&self) -> bool {
        self.caller().is_some_and(|caller| caller.books_bytes())
    }

    /// Notes the bytes of tensors that came with a request.
    pub(crate) fn note_bytes_in(&self, infer_request: &InferRequest) {
        if let Some(caller) = self.caller() {
            caller.note_bytes_in(infer_request.inline_bytes() as u64);
        }
    }

    /// Whether the client's token allows this model.
    pub(crate) fn check_model(&self, model: &str) -> Result<(), Status> {
        let Some((_, token)) = self.token_now()? else { return Ok(()) };
        if token.allows_model(model) {
            return Ok(());
        }
        token.note_denied();
        self.count_refusal(RefusalReason::Denied);
        Err(Status::new(Code::Denied, format!("{} does not reach model '{model}'", token_label(&token))))
    }

    /// Whether the client may read in which state a model is, and why.
    pub(crate) fn may_read_states(&self, model: &str) -> bool {
        let restrictions = &self.inner.options.restrictions;
        if restrictions.iter().any(|rule| rule.category == Category::ModelRepository) {
            return false;
        }
        let wanted = scopes(Category::ModelRepository, false);
        match self.token_now() {
            Ok(Some((_, token))) => token.has_any(wanted) && token.allows_model(model),
            Ok(None) => self.inner.options.tokens.is_none(),
            Err(_) => false,
        }
    }

    /// Whether the client's token has no list of models. A call that can use any model needs such a token.
    pub(crate) fn check_no_model_list(&self, what: &str) -> Result<(), Status> {
        let Some((_, token)) = self.token_now()? else { return Ok(()) };
        if !token.has_list() {
            return Ok(());
        }
        token.note_denied();
        self.count_refusal(RefusalReason::Denied);
        Err(Status::new(
            Code::Denied,
            format!("{what}, which wants a token without a list of models; {} has one", token_label(&token)),
        ))
    }

    /// Whether the client's token has the scope `regions`, which it needs to have outputs placed in leases. Without
    /// tokens it is always allowed.
    pub(crate) fn check_leased_outputs(&self) -> Result<(), Status> {
        let Some((tokens, token)) = self.token_now()? else { return Ok(()) };
        let allowed = check_scopes(tokens, &token, scopes(Category::SharedMemory, true));
        Ok(allowed.inspect_err(|refused| self.count_refused_entry(refused))?)
    }

    /// Whether the client's token allows it to change settings; `None` if the server has no tokens.
    pub(crate) fn may_control(&self, settings: Category) -> Option<Result<(), Status>> {
        let tokens = self.inner.options.tokens.as_ref()?;
        let token = self.token();
        let allowed = match &token {
            Some(token) => check_scopes(tokens, token, scopes(settings, true)),
            None => Err(without(tokens, &[Scope::Control])),
        };
        if let Err(refused) = &allowed {
            self.count_refused_entry(refused);
        }
        // Over gRPC only the message shows that the call is a change.
        if let Some(token) = &token {
            self.audit_refusal(token, settings, &allowed);
        }
        Some(allowed.map_err(Status::from))
    }

    /// Whether the client's token has the scope for loads. Nothing is counted or logged, because nothing was tried.
    pub fn has_scope_for_loads(&self) -> Result<(), Status> {
        let Some((_, token)) = self.token_now()? else { return Ok(()) };
        let wanted = scopes(Category::ModelRepository, true);
        if token.has_any(wanted) {
            return Ok(());
        }
        Err(Status::new(
            Code::Denied,
            format!("{} has no scope for loads, which want {}", token_label(&token), names(wanted)),
        ))
    }

    /// The token of the call. `None` if the server has no tokens, or the call needs none.
    pub(crate) fn token(&self) -> Option<Arc<Token>> {
        self.inner.options.tokens.as_ref()?;
        self.caller()?.token.clone()
    }

    /// The record of the client of the call. `None` if nothing has to be recorded.
    pub(crate) fn caller(&self) -> Option<Arc<Caller>> {
        self.caller.clone().or_else(|| self.client.session_caller.load_full())
    }

    /// The token of the call as the token file has it now, because a call may last long.
    fn token_now(&self) -> Result<Option<(&Tokens, Arc<Token>)>, Status> {
        let Some(tokens) = &self.inner.options.tokens else { return Ok(None) };
        let Some(token) = self.token() else { return Ok(None) };
        let renewed = tokens.renewed(&token).map_err(unknown)?;
        Ok(Some((tokens, renewed.unwrap_or(token))))
    }
}

impl SessionScope {
    /// As [`Api::allow_next`], for a request of a packet whose first one was counted.
    pub fn allow_next(&self) -> Result<(), Status> {
        let (next, allowed) = self.api().allow_next(false);
        if let Some(next) = next {
            self.api().client.session_caller.store(next.caller);
        }
        allowed
    }
}

fn check_scopes(tokens: &Tokens, token: &Token, scopes: &[Scope]) -> Result<(), Refused> {
    if scopes.is_empty() || token.has_any(scopes) {
        return Ok(());
    }
    token.note_denied();
    if token.is_anonymous() {
        return Err(without(tokens, scopes));
    }
    let text = format!("token '{}' has no scope for this call, which wants {}", token.name(), names(scopes));
    Err(Status::new(Code::Denied, text).into())
}

fn without(tokens: &Tokens, scopes: &[Scope]) -> Refused {
    tokens.note_without();
    let text =
        format!("this call wants a token with {}: send the header authorization with 'Bearer <secret>'", names(scopes));
    Status::new(Code::Unauthenticated, text).into()
}

fn unknown(unknown: Unknown) -> Refused {
    Status::new(Code::Unauthenticated, unknown.to_string()).into()
}

fn take_request(token: &Token, booking: Booking) -> Result<(), Refused> {
    token.take_request(booking, now_ns()).map_err(over_quota)
}

fn over_quota(over: OverQuota) -> Refused {
    Refused {
        status: Status::new(Code::Exhausted, over.to_string()),
        retry_after_s: Some(over.wait_ns.div_ceil(1_000_000_000)),
    }
}

/// `scope 'read' or 'infer'`.
fn names(scopes: &[Scope]) -> String {
    let names: Vec<_> = scopes.iter().map(|scope| format!("'{}'", scope.name())).collect();
    format!("scope {}", names.join(" or "))
}

/// How log lines and errors name the token.
fn token_label(token: &Token) -> String {
    if token.is_anonymous() { "a request without a token".to_owned() } else { format!("token '{}'", token.name()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_but_health_wants_a_scope_and_changes_want_one_of_their_own() {
        for category in Category::ALL {
            for changes in [false, true] {
                assert_eq!(scopes(category, changes).is_empty(), category == Category::Health, "{category:?}");
            }
        }
        for category in [Category::ModelRepository, Category::Trace, Category::Logging] {
            assert_eq!(scopes(category, true), [Scope::Control]);
        }
        assert!(!scopes(Category::SharedMemory, true).contains(&Scope::Read));
        assert!(!scopes(Category::Inference, false).contains(&Scope::Read));
    }
}
