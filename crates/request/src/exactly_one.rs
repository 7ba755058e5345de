//! What does a caller that can take only one response get?

use crate::{InferResponse, Recycled, Response, Status};

/// Collects the responses of one request for a caller that wants exactly one.
#[derive(Debug, Default)]
pub struct ExactlyOne {
    first: Option<Result<Recycled<InferResponse>, Status>>,
    count: usize,
}

/// The error of a request that had no response, or more than one.
#[derive(Debug)]
pub struct NotOne {
    /// How many responses there were.
    pub count: usize,
    /// The error of the first, if it was one.
    pub first_error: Option<Status>,
}

impl ExactlyOne {
    /// Takes the next response. Returns `Some` when it is the last: the only response, or an error if there was not exactly one.
    pub fn take(&mut self, response: Response) -> Option<Result<Result<Recycled<InferResponse>, Status>, NotOne>> {
        let is_last = response.is_last();
        if let Some(content) = response.into_content() {
            self.count += 1;
            self.first.get_or_insert(content);
        }
        if !is_last {
            return None;
        }
        Some(match (self.first.take(), self.count) {
            (Some(only), 1) => Ok(only),
            (first, count) => Err(NotOne { count, first_error: first.and_then(Result::err) }),
        })
    }
}

impl From<NotOne> for Status {
    fn from(not_one: NotOne) -> Status {
        Status::internal(format!("expected a single response, got {}", not_one.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(responses: Vec<Response>, expected: Result<Result<(), &str>, (usize, Option<&str>)>) {
        let mut one = ExactlyOne::default();
        let outcomes: Vec<_> = responses.into_iter().filter_map(|response| one.take(response)).collect();
        let [outcome] = &outcomes[..] else { panic!("{} outcomes", outcomes.len()) };
        let text = |status: &Status| status.message.clone();
        let found = match outcome {
            Ok(only) => Ok(only.as_ref().map(drop).map_err(text)),
            Err(not_one) => Err((not_one.count, not_one.first_error.as_ref().map(text))),
        };
        let expected = expected
            .map(|only| only.map_err(str::to_owned))
            .map_err(|(count, error)| (count, error.map(str::to_owned)));
        assert_eq!(found, expected);
    }

    #[test]
    fn one_response_is_one_wherever_the_end_is_said() {
        let (part, last) = (|| Response::Part(Recycled::new()), || Response::Final(Recycled::new()));
        let failed = |more| Response::Failed { error: Status::internal("no"), more, refused: false, permit: None };
        check(vec![last()], Ok(Ok(())));
        check(vec![part(), Response::End], Ok(Ok(())));
        check(vec![failed(false)], Ok(Err("no")));
        check(vec![failed(true), Response::End], Ok(Err("no")));
        check(vec![Response::End], Err((0, None)));
        check(vec![part(), last()], Err((2, None)));
        check(vec![failed(true), part(), failed(false)], Err((3, Some("no"))));
    }
}
