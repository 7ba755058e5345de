//! Which sequence do the steps of an ensemble belong to?

use nerite_request::{Parameter, Parameters, Sequence, SequenceId};

/// The sequence of the request. A step's response may change it for the steps after it.
#[derive(Clone, Debug)]
pub struct SequenceOfSteps(Sequence);

impl SequenceOfSteps {
    /// The sequence of the ensemble's own request.
    pub fn of(sequence: &Sequence) -> SequenceOfSteps {
        SequenceOfSteps(sequence.clone())
    }

    /// The sequence for the next step.
    pub fn get(&self) -> Sequence {
        self.0.clone()
    }

    /// Takes the sequence from the parameters of a step's response. Parameters of other types are ignored.
    pub fn take_over(&mut self, parameters: &Parameters) {
        match parameters.get("sequence_id") {
            Some(Parameter::Int(0)) => self.0.id = SequenceId::None,
            Some(Parameter::Int(id)) => self.0.id = SequenceId::Number(id.cast_unsigned()),
            Some(Parameter::String(id)) if id.is_empty() => self.0.id = SequenceId::None,
            Some(Parameter::String(id)) => self.0.id = SequenceId::Text(id.clone()),
            _ => {}
        }
        if let Some(Parameter::Bool(start)) = parameters.get("sequence_start") {
            self.0.start = *start;
        }
        if let Some(Parameter::Bool(end)) = parameters.get("sequence_end") {
            self.0.end = *end;
        }
    }

    /// The parameters with which the ensemble's response names the sequence.
    pub fn parameters(&self) -> Parameters {
        let mut parameters = Parameters::new();
        let id = match &self.0.id {
            SequenceId::None => Parameter::Int(0),
            SequenceId::Number(id) => Parameter::Int(id.cast_signed()),
            SequenceId::Text(id) => Parameter::String(id.clone()),
        };
        parameters.insert("sequence_id", id);
        parameters.insert("sequence_start", Parameter::Bool(self.0.start));
        parameters.insert("sequence_end", Parameter::Bool(self.0.end));
        parameters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(pairs: &[(&str, Parameter)]) -> Parameters {
        let mut parameters = Parameters::new();
        for (key, value) in pairs {
            parameters.insert(*key, value.clone());
        }
        parameters
    }

    #[track_caller]
    fn check(pairs: &[(&str, Parameter)], id: SequenceId, start: bool, end: bool) {
        let mut sequence = SequenceOfSteps::of(&Sequence { id: SequenceId::Number(7), start: true, end: false });
        sequence.take_over(&parameters(pairs));
        assert_eq!(sequence.get(), Sequence { id, start, end }, "{pairs:?}");
    }

    #[test]
    fn a_response_changes_what_it_names() {
        check(&[], SequenceId::Number(7), true, false);
        check(&[("sequence_id", Parameter::Int(9))], SequenceId::Number(9), true, false);
        check(&[("sequence_id", Parameter::Int(0))], SequenceId::None, true, false);
        check(&[("sequence_id", Parameter::String("a".into()))], SequenceId::Text("a".into()), true, false);
        check(&[("sequence_end", Parameter::Bool(true))], SequenceId::Number(7), true, true);
        check(&[("sequence_start", Parameter::Bool(false))], SequenceId::Number(7), false, false);
        check(&[("sequence_start", Parameter::Int(0))], SequenceId::Number(7), true, false);
    }

    #[test]
    fn an_ensemble_says_its_sequence() {
        let sequence = SequenceOfSteps::of(&Sequence::default());
        let shown: Vec<_> = sequence.parameters().iter().map(|(key, value)| format!("{key} {value:?}")).collect();
        assert_eq!(shown, ["sequence_id Int(0)", "sequence_start Bool(false)", "sequence_end Bool(false)"]);
    }
}
