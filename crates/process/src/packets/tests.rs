//! Do these types read and write the packets in `tests/packets`?
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Display;

use nerite_backend::{MetricChange, ResponseDurations, ResponseOutcome};
use nerite_memory::Reason;
use nerite_request::report::{MemoryUsage, MetricKind};
use nerite_request::{Parameter, Parameters, Sequence, SequenceId, Status, TraceContext};
use nerite_tensor::{DataType, Shape};
use serde_json::Value;

use super::*;
use crate::limits::MEMORY_USES_MAX;

mod packed;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/packets/");

fn packed_golden(name: &str) -> Vec<u8> {
    std::fs::read(format!("{FOLDER}{name}.bin")).unwrap()
}

fn golden(name: &str) -> String {
    std::fs::read_to_string(format!("{FOLDER}{name}.json")).unwrap()
}

#[track_caller]
fn check(name: &str, written: impl Display) {
    assert_eq!(written.to_string(), golden(name), "{name}");
}

fn command(name: &str) -> Command {
    Command::read(golden(name).as_bytes()).unwrap()
}

fn said(name: &str) -> Said {
    Said::read(golden(name).as_bytes()).unwrap()
}

fn side(name: &str) -> SideSaid {
    SideSaid::read(golden(name).as_bytes()).unwrap()
}

fn at(segment: u64, offset: usize) -> SegmentOffset {
    SegmentOffset { segment, offset }
}

fn tensor<'a>(
    name: &'a str,
    datatype: DataType,
    shape: &'a [i64],
    location: impl Into<Option<SegmentOffset>>,
    bytes: usize,
) -> TensorAt<'a, &'a [i64]> {
    TensorAt { name, datatype, shape, location: location.into(), bytes }
}

fn as_read<'a>(written: &TensorAt<'a, &[i64]>) -> TensorAt<'a> {
    let TensorAt { name, datatype, shape, location, bytes } = *written;
    TensorAt { name, datatype, shape: Shape::from_slice(shape), location, bytes }
}

fn model(instance: &str) -> Model<'_> {
    let (version_dir, model_dir) = ("/models/m/1".to_owned(), "/models/m".to_owned());
    let (version, title) = ("1".to_owned(), format!("nerite: model {instance}"));
    Model { name: "m", version, file: "model.py", version_dir, model_dir, class_dir: None, instance, title }
}

#[test]
fn every_packet_is_tried() {
    let here = concat!(include_str!("tests.rs"), include_str!("tests/packed.rs"));
    for entry in std::fs::read_dir(FOLDER).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if let Some(name) = name.strip_suffix(".json") {
            assert!(here.contains(&format!("(\"{name}\"")), "no test reads {name}");
        } else if let Some(name) = name.strip_suffix(".bin") {
            assert!(here.contains(&format!("packed_golden(\"{name}\")")), "no test reads {name}, packed");
        }
    }
}

#[test]
fn the_first_packets_of_an_interpreter() {
    let modules = BTreeMap::from([("m", "x = \"1\"\n"), ("m.stub", "def run(): pass")]);
    check("greeting", Greeting { modules, main: "m.stub" });
    assert_eq!(command("greeting").part("main").as_str(), Some("m.stub"));
    let config = r#"{"name":"m","max_batch_size":8}"#;
    check("complete", Complete { config, model: &model("m") });
    let args = [("model_config", r#"{"name":"m"}"#), ("model_instance_kind", "CPU")];
    let (one, whole) = (model("m_0"), model("m"));
    let initialize = Initialize { args: &args, model: &one, decoupled: false, template: false, debug: None };
    check("initialize", initialize);
    check("initialize_template", Initialize { model: &whole, template: true, ..initialize });
    check("initialize_debugged", Initialize { debug: Some(5678), ..initialize });
    assert_eq!(command("initialize_debugged").part("debug").as_u64(), Some(5678));
    assert_eq!(command("initialize_template").part("template").as_bool(), Some(true));
    check("fork", FORK);
    assert_eq!((command("fork").name(), said("forked").forked()), (Some("fork"), Some(4711)));
    check("reap", Reap(4711));
    assert_eq!((said("reaped").reaped(), said("forked").reaped()), (Some(9), None));
    for (name, instance) in [("complete", "m"), ("initialize", "m_0")] {
        assert_eq!(command(name).name(), Some(name));
        assert_eq!(
            command(name).part("model").to_string(),
            serde_json::from_str::<Value>(&model(instance).to_string()).unwrap().to_string()
        );
    }
    assert_eq!(command("initialize").part("args")["model_instance_kind"], "CPU");
}

#[test]
fn the_answers_to_the_first_packets() {
    let config: Value = serde_json::from_str(&said("completed").config()).unwrap();
    check("completed", Answer { config: Some(&config), ..Answer::default() });
    let ready = Ready { python: Some("3.11.2"), numpy: Some("1.24.2"), guard: true, ..Ready::default() };
    let deciding = Ready { decides: true, ..ready.clone() };
    let imported = vec![
        ImportedFile { path: "/srv/größe.py", bytes: 120, modified_ns: 1_700_000_000_123_456_789 },
        ImportedFile { path: "/srv/lib/\"b\".py", bytes: 0, modified_ns: 0 },
    ];
    let importing = Ready { imported, unreported: 3, ..deciding.clone() };
    let isolated = Ready { guard: true, ..Ready::default() };
    let cases = [
        ("initialized", ready),
        ("initialized_deciding", deciding),
        ("initialized_importing", importing),
        ("initialized_isolated", isolated),
    ];
    for (name, ready) in cases {
        check(name, &ready);
        assert_eq!(said(name).ready(), ready);
    }
    let error = "ValueError: größer als \"1\"";
    check("failed", Answer { error: Some(error), ..Answer::default() });
    assert_eq!(said("failed").error(), Some(Some(error)));
    assert_eq!(said("failed").failure(), Some(Status::internal(error)));
    let failure = Status::invalid("unexpected shape");
    check("failed_isolated", Answer { failure: Some(&failure), ..Answer::default() });
    assert_eq!((said("failed_isolated").error(), said("failed_isolated").failure()), (Some(None), Some(failure)));
}

#[test]
fn commands_without_parts() {
    check("ready", IS_READY);
    check("is_ready", IsReady(true));
    assert!(said("is_ready").is_ready());
    check("finalize", FINALIZE);
    assert_eq!(command("finalize").name(), Some("finalize"));
    check("done", DONE);
    assert!(said("done").is_done() && !said("failed").is_done());
    check("long", Long(70_000));
    assert_eq!(Long::read(golden("long").as_bytes()), Some(Long(70_000)));
}

#[test]
fn a_batch() {
    let mut parameters = Parameters::new();
    parameters.insert("double", Parameter::Double(0.5));
    parameters.insert("flag", Parameter::Bool(true));
    parameters.insert("int", Parameter::Int(-7));
    parameters.insert("text", Parameter::String("a\nb".into()));
    let inputs = [
        tensor("IN", DataType::Fp32, &[2, 3], at(5, 64), 24),
        tensor("TEXT", DataType::Bytes, &[1], at(6, 0), 9),
        tensor("NONE", DataType::Uint8, &[0], None, 0),
    ];
    let place = |name, location, capacity, fixed| OutputMemory { name, location, capacity, fixed };
    let outputs = [
        place("OUT", Some(at(5, 128)), 24, true),
        place("KNOWN", Some(at(6, 0)), 4096, false),
        place("NEW", None, 0, false),
    ];
    let first = Sequence { id: SequenceId::Number(7), start: true, end: false };
    let second = Sequence { id: SequenceId::Text("sequence".into()), start: false, end: true };
    let none = Parameters::new();
    let request = |number, id, rows, sequence, timeout_us, parameters, count: usize| Request {
        number,
        id,
        rows,
        sequence,
        timeout_us,
        parameters,
        inputs: inputs.iter().take(count).cloned(),
        outputs: outputs.iter().take(count).copied(),
        must_wait: false,
        trace: None,
        own: None,
    };
    let requests =
        [request(41, "größe \"1\"", 2, &first, 500, &parameters, 3), request(42, "", 0, &second, 0, &none, 0)];
    let maps = [
        Segment { number: 5, bytes: 8192, file_offset: 4096, is_region: true, device: None, is_private: false },
        Segment { number: 6, bytes: 4096, file_offset: 0, is_region: false, device: None, is_private: false },
        Segment { number: 7, bytes: 4096, file_offset: 0, is_region: true, device: Some(1), is_private: false },
        Segment { number: 8, bytes: 4096, file_offset: 0, is_region: false, device: None, is_private: true },
    ];
    let [requests_text, map] =
        [requests.each_ref().map(ToString::to_string).join(","), maps.map(|one| one.to_string()).join(",")];
    check("execute", Execute { requests: &requests_text, map: &map, forget: &[3, 4] });

    let alone = Sequence::default();
    let again = Request { must_wait: true, ..request(43, "", 1, &alone, 0, &none, 0) };
    check("execute_again", Execute { requests: &again.to_string(), map: "", forget: &[] });

    let mut packed = BatchPacket::new(true);
    for request in &requests {
        packed.add(request);
    }
    assert_eq!(packed.finish(&map, &[3, 4]), packed_golden("execute"));
    let mut packed = BatchPacket::new(true);
    packed.add(&again);
    assert_eq!(packed.finish("", &[]), packed_golden("execute_again"));

    let read = command("execute");
    assert_eq!((read.name(), read.map(), read.forget().collect()), (Some("execute"), Some(maps.to_vec()), vec![3, 4]));
    let all: Vec<_> = read.requests().collect();
    for (read, request) in all.iter().zip(&requests) {
        assert_eq!((read.number(), read.id(), read.rows()), (request.number, request.id, request.rows));
        assert_eq!((read.timeout_us(), &read.sequence()), (request.timeout_us, request.sequence));
        assert_eq!(&read.parameters(), request.parameters);
        assert!(read.inputs().eq(request.inputs.clone().map(|request| as_read(&request)).map(Some)));
        assert!(read.outputs().eq(request.outputs.clone().map(Some)));
    }
    assert_eq!(all.len(), 2);
}

#[test]
fn a_batch_of_a_request_whose_trace_becomes_spans() {
    let span = TraceContext { trace_id: [0x1a; 16], span_id: [0x2b; 8], state: "vendor=\"x\"".into() };
    let traced = Request {
        number: 44,
        id: "",
        rows: 1,
        sequence: &Sequence::default(),
        timeout_us: 0,
        parameters: &Parameters::new(),
        inputs: std::iter::empty::<TensorAt<'_, &[i64]>>(),
        outputs: std::iter::empty::<OutputMemory<'_>>(),
        must_wait: false,
        trace: Some(&span),
        own: None,
    };
    check("execute_traced", Execute { requests: &traced.to_string(), map: "", forget: &[] });
    let mut packed = BatchPacket::new(true);
    packed.add(&traced);
    assert_eq!(packed.finish("", &[]), packed_golden("execute_traced"));
}

#[test]
fn the_answer_to_a_batch() {
    let mut parameters = Parameters::new();
    parameters.insert("key", Parameter::String("value".into()));
    let outputs =
        [tensor("OUT", DataType::Fp32, &[2, 3], at(5, 128), 24), tensor("NONE", DataType::Uint8, &[0], None, 0)];
    let gone = Status::new(nerite_request::Code::NotFound, "gone");
    let responses = [WrittenResponse::Outputs(outputs.to_vec(), &parameters), WrittenResponse::Error(gone.clone())];
    let lost = [[5, 4096]];
    let responses = Some(&responses[..]);
    let answer =
        Answer { responses, lost: Some(&lost), held: &[6], let_go: &[7, 8], unmapped: &[10], ..Answer::default() };
    check("executed", answer);
    let mut read = said("executed");
    let [held, let_go, unmapped] =
        [read.held().collect(), read.let_go().collect(), read.unmapped().collect::<Vec<_>>()];
    assert_eq!((held, let_go, unmapped), (vec![6], vec![7, 8], vec![10]));
    assert_eq!(read.lost().collect::<Vec<_>>(), [(5, 4096)]);
    assert!(read.executions().is_none() && read.copied().next().is_none());
    let mut responses = read.take_responses().unwrap();
    let [first, second] = std::array::from_fn(|_| responses.next().unwrap());
    assert!(responses.next().is_none());
    assert_eq!((first.error(), first.parameters()), (None, Some(parameters)));
    assert!(first.outputs().eq(outputs.iter().map(as_read).map(Some)));
    assert_eq!((second.error(), second.failed(), second.outputs().count()), (Some(gone), None, 0));
}

#[test]
fn the_answer_of_an_isolated_model_to_a_batch() {
    let failed = Status::unavailable("no memory");
    let responses = [WrittenResponse::Failed(failed.clone())];
    let executions = [Execution { rows: 1, input_ns: 10, infer_ns: 200, output_ns: 30 }];
    let copied = [(Reason::Convert, 12)];
    let (given, spent) = (Some(&responses[..]), Some(&executions[..]));
    check("executed_isolated", Answer { responses: given, executions: spent, copied: &copied, ..Answer::default() });
    let mut read = said("executed_isolated");
    assert_eq!(read.executions().unwrap().collect::<Vec<_>>(), executions);
    assert_eq!(read.copied().collect::<Vec<_>>(), copied);
    assert_eq!(read.take_responses().unwrap().next().unwrap().failed(), Some(failed));
}

#[test]
fn memory_for_an_output() {
    let need = Need { index: 1, name: "NEW", bytes: 5000 };
    check("need", need);
    assert_eq!(said("need").need(), Some(Some(need)));
    let segment = Segment { number: 9, bytes: 8192, file_offset: 0, is_region: false, device: None, is_private: false };
    let location = at(9, 0);
    check("room", OutputSpace { location, capacity: 8192, map: &segment.to_string() });
    assert_eq!((command("room").space(), command("room").map()), (Some(Some((location, 8192))), Some(vec![segment])));
    check("no_room", NoMemoryFound("output 'OUT': no memory is left"));
    assert_eq!(command("no_room").error(), Some("output 'OUT': no memory is left"));
    check("forget", Forget(&[5]));
    assert!(command("forget").forget().eq([5]));
}

fn called(name: &str) -> CallSaid {
    CallSaid::read(golden(name).as_bytes()).unwrap()
}

#[test]
fn a_response_of_a_decoupled_model() {
    let said = called("respond");
    let Some(Call::Respond(Respond { number, response, is_last })) = said.call() else { panic!("a response") };
    let response = response.unwrap();
    assert_eq!((said.number(), number, is_last), (3, 41, false));
    assert_eq!(response.parameters().unwrap().get("key"), Some(&Parameter::String("value".into())));
    let output = tensor("OUT", DataType::Fp32, &[2, 3], at(5, 128), 24);
    assert!(response.outputs().eq([Some(as_read(&output))]));
    assert!(said.lost().eq([(5, 4096)]));
    let said = called("ended");
    let Some(Call::Respond(Respond { number, response, is_last })) = said.call() else { panic!("an end") };
    assert_eq!((number, response.is_none(), is_last), (41, true, true));

    let segment = Segment { number: 9, bytes: 8192, file_offset: 0, is_region: false, device: None, is_private: false }
        .to_string();
    let outputs = [
        OutputMemory { name: "OUT", location: Some(at(5, 128)), capacity: 24, fixed: true },
        OutputMemory { name: "NEW", location: None, capacity: 0, fixed: false },
    ];
    check("places", NextOutputMemory { call: 3, outputs: outputs.into_iter(), map: &segment });
    check("over", Over(3));
    let said = called("place");
    let Some(Call::OutputMemory { number, name, bytes }) = said.call() else { panic!("a question for a place") };
    assert_eq!((said.number(), number, name, bytes), (4, 41, "NEW", 5000));
    check("place_found", MemoryFound { call: 4, location: at(9, 0), capacity: 8192, map: &segment });
    check("no_place", CallFailed { call: 4, why: "output 'OUT': no memory is left" });
    let said = called("release");
    assert_eq!(said.release().map(|release| release.number), Some(41));
    assert!(said.held().eq([6]) && said.let_go().eq([7]) && said.call().is_none());
}

#[test]
fn a_request_to_another_model() {
    let Some(Call::Space(4096)) = called("space").call() else { panic!("a question for memory") };
    let said = called("infer");
    let Some(Call::Infer(call_read)) = said.call() else { panic!("a request") };
    let read = call_read.request();
    assert_eq!((said.number(), call_read.model(), call_read.version(), read.id()), (6, "other", None, "mine"));
    assert_eq!((call_read.is_decoupled(), call_read.is_waited_for(), read.timeout_us()), (true, true, 500));
    assert_eq!(read.sequence(), Sequence { id: SequenceId::Number(7), start: true, end: false });
    assert_eq!(read.parameters().get("key"), Some(&Parameter::String("value".into())));
    assert!(call_read.wanted().eq(["OUT"]));
    let inputs = [tensor("IN", DataType::Fp32, &[2, 3], at(5, 64), 24), tensor("NONE", DataType::Uint8, &[0], None, 0)];
    assert!(read.inputs().eq(inputs.iter().map(as_read).map(Some)));

    check("unknown", Unknown(6));
    let outputs = [as_read(&tensor("OUT", DataType::Fp32, &[2, 3], at(9, 0), 24))];
    let mut parameters = Parameters::new();
    parameters.insert("key", Parameter::String("value".into()));
    let segment = Segment { number: 9, bytes: 8192, file_offset: 0, is_region: false, device: None, is_private: false }
        .to_string();
    let response = Some(Ok((&outputs[..], &parameters)));
    check("answered", Answered { call: 6, response, is_last: false, from: None, own: &[9], map: &segment });
    let error = Status::internal("no way");
    let response = Some(Err(&error));
    check("answered_error", Answered { call: 6, response, is_last: true, from: None, own: &[], map: "" });
    check("answered_end", Answered { call: 6, response: None, is_last: true, from: None, own: &[], map: "" });
    assert_eq!((called("taken").taken(), called("cancel").cancelled()), (Some(6), Some(6)));
    assert_eq!(called("waits").waited_for(), Some(6));
}

#[test]
fn models_that_are_loaded_by_a_model() {
    let said = called("load");
    let Some(Call::Load { model, config, files }) = said.call() else { panic!("a load") };
    assert_eq!((said.number(), model, config, files), (7, "other", "{}", vec![("1/model.py", at(9, 0), 24)]));
    assert!(matches!(called("unload").call(), Some(Call::Unload("other", true))));
    assert!(matches!(called("is_model_ready").call(), Some(Call::IsReady("other", Some(2)))));
    assert!(matches!(called("run_again").call(), Some(Call::Again)) && called("run_again").again().eq([41, 42]));
    assert!(matches!(called("readiness").call(), Some(Call::Readiness(Some(Ok(false))))));
    for (answer, found) in [("null", None), ("true", Some(Ok(true))), ("\"why\"", Some(Err("why")))] {
        let said = CallSaid::read(format!(r#"{{"call":8,"readiness":{answer}}}"#).as_bytes()).unwrap();
        assert!(matches!(said.call(), Some(Call::Readiness(read)) if read == found), "{answer}");
    }
    check("did", Done { call: 7, is: true });
}

#[test]
fn the_side_channel() {
    let line = Log { level: "WARNING", text: "it is \"late\"", at: ("model.py", 12) };
    check("log", line);
    assert_eq!((side("log").log(), side("log").log_of()), (Some(line), None));
    assert_eq!((side("log_of_run").log(), side("log_of_run").log_of()), (Some(line), Some(41)));
    check("is_cancelled", IsCancelled(41));
    assert_eq!(side("is_cancelled").cancelled(), Some(41));
    check("cancelled", Cancelled(false));
    assert_eq!(side("cancelled").cancelled(), None);
    check("gone", Gone(41));
    assert_eq!(side("gone").gone(), Some(41));
    let question = |name: &str| side(name).metric().map(|question| format!("{question:?}"));
    let family = MetricQuestion::Family { name: "cats", description: "Cats \"seen\"", kind: MetricKind::Counter };
    assert_eq!(question("metric_family"), Some(format!("{family:?}")));
    check("metric_family", &family);
    let labels = Ok([("a".to_owned(), "1".to_owned())].into());
    let metric = MetricQuestion::Metric { family: 3, labels, buckets: Some(vec![0.1, f64::INFINITY]) };
    assert_eq!(question("metric"), Some(format!("{metric:?}")));
    check("metric", &metric);
    let change = MetricQuestion::Change { metric: 4, change: MetricChange::Increment(2.5) };
    assert_eq!(question("measure"), Some(format!("{change:?}")));
    check("measure", &change);
    let value = MetricQuestion::Change { metric: 4, change: MetricChange::Value };
    let said = SideSaid::read(value.to_string().as_bytes()).unwrap();
    assert_eq!(said.metric(), Some(value));
    for broken in [r#"{"measure":[4,"double","1"]}"#, r#"{"measure":[4,"set",1]}"#, r#"{"metric":[3,{},[1]]}"#] {
        assert!(SideSaid::read(broken.as_bytes()).unwrap().metric().is_none(), "{broken}");
    }
    assert!(side("unmeasured").unmeasured().unwrap().eq([3]));
    check("unmeasured", Unmeasured(3));
    let refused = Measured::Error("Invalid metric name".to_owned());
    for (name, answer) in
        [("measured_number", Measured::Number(3)), ("measured", Measured::Value(2.5)), ("not_measured", refused)]
    {
        check(name, &answer);
        assert_eq!(side(name).measured(), Some(answer));
    }
    assert!(side("gone").measured().is_none());
    check("let_go", LetGo(&[6, 7]));
    assert!(side("let_go").let_go().unwrap().eq([6, 7]));
}

#[test]
fn what_a_compiled_backend_reports() {
    let durations = |outcome, infer_ns, output_ns| ResponseDurations { outcome, infer_ns, output_ns, total_ns: 1900 };
    let failed = Responded(3, durations(ResponseOutcome::Failed, Some(1700), None));
    check("responded", failed);
    assert_eq!(side("responded").responded(), Some(failed));
    for outcome in [ResponseOutcome::Success, ResponseOutcome::Empty, ResponseOutcome::Cancelled] {
        let one = Responded(0, durations(outcome, None, Some(2)));
        assert_eq!(SideSaid::read(one.to_string().as_bytes()).unwrap().responded(), Some(one));
    }
    let broken =
        [r#"{"responded":[3,"late",1,2,3]}"#, r#"{"responded":[-1,"fail",1,2,3]}"#, r#"{"responded":[3,"fail",1,2]}"#];
    assert!(broken.iter().all(|text| SideSaid::read(text.as_bytes()).unwrap().responded().is_none()));
    let used = [MemoryUsage { kind: "CPU", id: 0, bytes: 1020 }, MemoryUsage { kind: "GPU", id: 1, bytes: 1023 }];
    check("memory", MemoryReported(&used));
    assert_eq!(side("memory").memory().unwrap(), used);
    let many = vec![used[0]; 2 * MEMORY_USES_MAX];
    let read = SideSaid::read(MemoryReported(&many).to_string().as_bytes()).unwrap();
    assert_eq!(read.memory().unwrap().len(), MEMORY_USES_MAX);
}
