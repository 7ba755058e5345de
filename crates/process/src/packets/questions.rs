//! Which requests to other models does a child process of this program send on the channel for calls?

use std::fmt::{Display, Formatter, Result};

use nerite_request::{Parameters, Sequence, SequenceId, Status};

use super::answer::Failure;
use super::tensors::{List, SegmentOffset, TensorAt, Text};
use crate::words::parameters_text;

/// Asks for memory for inputs. [`super::Call::Space`]
#[derive(Clone, Copy, Debug)]
pub struct SpaceCall {
    /// The call, which the answer repeats.
    pub call: u64,
    /// How many bytes.
    pub bytes: usize,
}

impl Display for SpaceCall {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"call":{},"space":{}}}"#, self.call, self.bytes)
    }
}

/// Sends a nested request, which may have any number of responses and gets failures unchanged. [`super::Call::Infer`]
#[derive(Clone, Copy, Debug)]
pub struct InferCall<'a> {
    /// The call, which the answers repeat.
    pub call: u64,
    /// The model's name.
    pub model: &'a str,
    /// Its version. Less than 0 for the highest.
    pub version: i64,
    /// The request's id.
    pub id: &'a str,
    /// Its sequence.
    pub sequence: &'a Sequence,
    /// Its timeout. 0 for none.
    pub timeout_us: u64,
    /// Its priority. 0 for the model's default.
    pub priority: u64,
    /// Its parameters.
    pub parameters: &'a Parameters,
    /// Its inputs.
    pub inputs: &'a [TensorAt<'a, &'a [i64]>],
    /// Names of the requested outputs. None means all.
    pub wanted: &'a [String],
}

impl Display for InferCall<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let InferCall { call, model, version, id, sequence, timeout_us, priority, parameters, inputs, wanted } = self;
        write!(f, r#"{{"call":{call},"infer":{{"model":{},"version":{version},"id":{}"#, Text(model), Text(id))?;
        match &sequence.id {
            SequenceId::None => f.write_str(r#","correlation":0"#)?,
            SequenceId::Number(number) => write!(f, r#","correlation":{number}"#)?,
            SequenceId::Text(text) => write!(f, r#","correlation":{}"#, Text(text))?,
        }
        let flags = u32::from(sequence.start) | u32::from(sequence.end) << 1;
        let (parameters, inputs) = (parameters_text(parameters), List(inputs.iter()));
        let wanted = List(wanted.iter().map(|name| Text(name)));
        write!(f, r#","flags":{flags},"timeout":{timeout_us},"priority":{priority},"parameters":{parameters}"#)?;
        write!(f, r#","inputs":{inputs},"wanted":{wanted},"decoupled":true,"plain":true}}}}"#)
    }
}

/// Asks for the configuration of a model. [`super::Call::Config`]
#[derive(Clone, Copy, Debug)]
pub struct ConfigCall<'a> {
    /// The call, which the answer repeats.
    pub call: u64,
    /// The model's name.
    pub model: &'a str,
    /// Its version. Less than 0 for the highest.
    pub version: i64,
}

impl Display for ConfigCall<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"call":{},"config":[{},{}]}}"#, self.call, Text(self.model), self.version)
    }
}

/// Loads a model. [`super::Call::Load`]
#[derive(Clone, Copy, Debug)]
pub struct LoadCall<'a> {
    /// The call, which the answer repeats.
    pub call: u64,
    /// The model's name.
    pub model: &'a str,
    /// Its configuration in JSON. Empty if there is none.
    pub config: &'a str,
    /// The paths of the files, and the memory in which they lie.
    pub files: &'a [(&'a str, SegmentOffset, usize)],
}

impl Display for LoadCall<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let LoadCall { call, model, config, files } = self;
        let file = |(path, location, bytes): &(&str, SegmentOffset, usize)| {
            let SegmentOffset { segment, offset } = location;
            format!("[{},{segment},{offset},{bytes}]", Text(path))
        };
        write!(f, r#"{{"call":{call},"load":[{},{},{}]}}"#, Text(model), Text(config), List(files.iter().map(file)))
    }
}

/// Unloads a model. [`super::Call::Unload`]
#[derive(Clone, Copy, Debug)]
pub struct UnloadCall<'a> {
    /// The call, which the answer repeats.
    pub call: u64,
    /// The model's name.
    pub model: &'a str,
    /// Whether those that it is made of are unloaded as well.
    pub dependents: bool,
}

impl Display for UnloadCall<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"call":{},"unload":[{},{}]}}"#, self.call, Text(self.model), self.dependents)
    }
}

/// The answer to that nested request is not needed any more.
#[derive(Clone, Copy, Debug)]
pub struct Cancelling(pub u64);

impl Display for Cancelling {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"cancel":{}}}"#, self.0)
    }
}

/// A response of that nested request was read, and its memory is not used any more.
#[derive(Clone, Copy, Debug)]
pub struct Taken<'a> {
    /// The nested request.
    pub call: u64,
    /// The memory.
    pub let_go: &'a [u64],
}

impl Display for Taken<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"taken":{},"let_go":{}}}"#, self.call, List(self.let_go.iter()))
    }
}

/// The answer to [`ConfigCall`].
#[derive(Clone, Copy, Debug)]
pub struct ConfigAnswer<'a> {
    /// The call that is answered.
    pub call: u64,
    /// The configuration as JSON, or the error.
    pub config: std::result::Result<&'a str, &'a Status>,
}

impl Display for ConfigAnswer<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.config {
            Ok(config) => write!(f, r#"{{"call":{},"config":{config}}}"#, self.call),
            Err(status) => write!(f, r#"{{"call":{},"error":{}}}"#, self.call, Failure(status)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use nerite_tensor::DataType;

    use super::*;
    use crate::packets::{Call, CallSaid, Command};

    fn read(packet: &impl Display) -> CallSaid {
        CallSaid::read(packet.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn the_server_reads_what_is_asked_and_the_process_what_is_answered() {
        let location = Some(SegmentOffset { segment: 5, offset: 64 });
        let input = TensorAt { name: "IN", datatype: DataType::Fp32, shape: &[2i64, 3][..], location, bytes: 24 };
        let sequence = Sequence { id: SequenceId::Text("s".to_owned()), start: true, end: false };
        let call = InferCall {
            call: 6,
            model: "other",
            version: -1,
            id: "mine",
            sequence: &sequence,
            timeout_us: 500,
            priority: 2,
            parameters: &Parameters::new(),
            inputs: &[input],
            wanted: &["OUT".to_owned()],
        };
        let said = read(&call);
        let Some(Call::Infer(call_read)) = said.call() else { panic!("{said:?}") };
        assert_eq!(
            (said.number(), call_read.model(), call_read.version(), call_read.priority()),
            (6, "other", None, 2)
        );
        assert!(call_read.is_decoupled() && call_read.is_plain() && !call_read.is_waited_for());
        assert_eq!(call_read.wanted().collect::<Vec<_>>(), ["OUT"]);
        assert_eq!((call_read.request().id(), call_read.request().sequence()), ("mine", sequence));
        assert_eq!(call_read.request().inputs().flatten().map(|input| input.location).collect::<Vec<_>>(), [location]);
        assert!(matches!(read(&SpaceCall { call: 1, bytes: 9 }).call(), Some(Call::Space(9))));
        let said = read(&ConfigCall { call: 1, model: "m", version: 3 });
        assert!(matches!(said.call(), Some(Call::Config("m", Some(3)))), "{said:?}");
        let said = read(&UnloadCall { call: 1, model: "m", dependents: true });
        assert!(matches!(said.call(), Some(Call::Unload("m", true))), "{said:?}");
        let files = [("1/a", SegmentOffset { segment: 2, offset: 0 }, 7)];
        let said = read(&LoadCall { call: 1, model: "m", config: "{}", files: &files });
        let Some(Call::Load { model: "m", config: "{}", files: read_files }) = said.call() else { panic!("{said:?}") };
        assert_eq!(read_files, files);
        assert_eq!(read(&Cancelling(6)).cancelled(), Some(6));
        let said = read(&Taken { call: 6, let_go: &[3] });
        assert_eq!((said.taken(), said.let_go().collect::<Vec<_>>()), (Some(6), vec![3]));
        let command = |packet: &dyn Display| Command::read(packet.to_string().as_bytes()).unwrap();
        let said = command(&ConfigAnswer { call: 4, config: Ok(r#"{"name":"m"}"#) });
        assert_eq!((said.call(), said.failure()), (Some(4), None));
        assert_eq!(said.part("config").to_string(), r#"{"name":"m"}"#);
        let status = Status::not_found("none");
        assert_eq!(command(&ConfigAnswer { call: 4, config: Err(&status) }).failure(), Some(status));
    }
}
