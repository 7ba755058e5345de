"""Which metrics may a Python model make of its own, and where do they appear?"""

import time
import urllib.request

import pytest
import python_catalogue
from clients import Refused, differs, http_call, open_client, text
from python_catalogue import tensors
from python_setup import said

FAILED = "c_python_backend_utils.TritonModelException: {}: Failed to process the request for model 'py_measuring_0', message: "
FAMILY, METRIC = FAILED.format("Error when creating MetricFamily"), FAILED.format("Error when creating Metric")
TYPE_ERROR = "builtins.TypeError: "
MODEL = "c_python_backend_utils.TritonModelException: "


@pytest.fixture(scope="module")
def server(launcher):
    if any(launcher.urls):
        pytest.skip("needs a server of its own")
    repository = launcher.copy_of("python_metrics")
    for name in ("py_measuring", "py_others"):
        model = python_catalogue.python(name, "measuring", tensors(CODE="BYTES"), tensors(SAID="BYTES"))
        python_catalogue.put(repository, model)
    flags = ["--model-control-mode=explicit", "--load-model=*"]
    with launcher.running("python_metrics", *flags, repository=repository) as found:
        yield found


@pytest.fixture
def client(server):
    with open_client("http", server) as found:
        yield found
        # 2.51 dies of families that are deleted one after the other.
        for model in () if server.oracle else ("py_measuring", "py_others"):
            try:
                do(found, "kept.clear()", model=model)
            except Refused:
                found_again = http_call(server.http, "POST", f"/v2/repository/models/{model}/load")
                assert found_again.status == 200


def do(client, *lines: str, model: str = "py_measuring") -> str:
    return said(client.infer(model, [text("CODE", ["\n".join(lines).encode()])]))


def page(server) -> list[str]:
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as answer:
        return answer.read().decode().splitlines()


def shown(server, name: str) -> list[str]:
    return [line for line in page(server) if line.startswith((f"# HELP {name} ", f"# TYPE {name} ", f"{name} ", f"{name}{{", f"{name}_"))]


def test_counters_and_gauges_are_shown(server, client):
    assert do(
        client,
        'f = kept["f"] = Family("cats", "Cats seen", Family.COUNTER)',
        'm = f.Metric(labels={"b": "x\\"y\\\\z\\nw", "a": "1"})',
        "m.increment(2.5)",
        'f.Metric(labels={"a": "1", "b": "x\\"y\\\\z\\nw"}).increment(1)',
        'g = kept["g"] = Family(name="dogs", description="", kind=pb_utils.MetricFamily.GAUGE)',
        'n = g.Metric(labels={"x": "1"})',
        "n.set(-3.25)",
        "n.increment(-1)",
        "out = (m.value(), n.value(), g.Metric().value())",
    ) == "(3.5, -4.25, 0.0)"
    assert shown(server, "cats") == [
        "# HELP cats Cats seen", "# TYPE cats counter", 'cats{a="1",b="x\\"y\\\\z\\nw"} 3.5',
    ]  # fmt: skip
    assert sorted(shown(server, "dogs")) == ["# TYPE dogs gauge", "dogs 0", 'dogs{x="1"} -4.25']


def test_histograms_are_shown(server, client):
    assert do(
        client,
        'h = kept["h"] = Family("spans", "Spans", Family.HISTOGRAM)',
        'm = h.Metric(labels={"x": "1"}, buckets=[0.1, 1, 10.5])',
        "m.observe(0.5)", "m.observe(100)", "m.observe(1)",
        'h.Metric(labels={"x": "1"}, buckets=[7, 8]).observe(7.5)',
        "out = 'ok'",
    ) == "ok"  # fmt: skip
    assert sorted(shown(server, "spans")) == sorted([
        "# HELP spans Spans", "# TYPE spans histogram", 'spans_count{x="1"} 4', 'spans_sum{x="1"} 109',
        'spans_bucket{x="1",le="0.1"} 0', 'spans_bucket{x="1",le="1"} 2', 'spans_bucket{x="1",le="10.5"} 3',
        'spans_bucket{x="1",le="+Inf"} 4',
    ])  # fmt: skip


def test_numbers_that_json_does_not_know(server, client):
    values = ['float("inf")', 'float("-inf")', 'float("nan")', "1e300", "1/3", "5", "True"]
    made = [f'm = g.Metric({{"x": "{at}"}}); m.set({value}); out.append(m.value())' for at, value in enumerate(values)]
    assert do(client, 'g = kept["g"] = Family("odd", "d", Family.GAUGE)', "out = []", *made) == (
        "[inf, -inf, nan, 1e+300, 0.3333333333333333, 5.0, 1.0]"
    )
    assert 'odd{x="4"} 0.3333333333333333' in shown(server, "odd") and 'odd{x="0"} +Inf' in shown(server, "odd")


@differs("2.51 dies when one of them lets go of it", run=False)
def test_metrics_of_two_models_with_the_same_name_are_shared(server, client):
    make = ('f = kept["f"] = Family("both", "Both", Family.COUNTER)', 'm = f.Metric({"x": "1"})', "m.increment(2)", "out = m.value()")
    assert [do(client, *make), do(client, *make, model="py_others")] == ["2.0", "4.0"]
    do(client, "kept.clear()")
    assert shown(server, "both")
    do(client, "kept.clear()", model="py_others")


REFUSED = [
    ('Family("a name", "d", Family.COUNTER)', FAMILY + "Invalid metric name"),
    ('Family("", "d", Family.COUNTER)', FAMILY + "Invalid metric name"),
    ('Family("1x", "d", Family.COUNTER)', FAMILY + "Invalid metric name"),
    ('kept["f"] = Family("f1", "d", Family.COUNTER); Family("f1", "d", Family.GAUGE)',
     FAMILY + "Family name already exists with different type"),
    ('Family("nokind", "d")', TYPE_ERROR + "__init__(): incompatible constructor arguments. The following argument types are supported:\n"
     "    1. c_python_backend_utils.MetricFamily(name: str, description: str, kind: c_python_backend_utils.MetricKind)\n\n"
     "Invoked with: 'nokind', 'd'"),
    ('Family("nokind", "d", 0)', TYPE_ERROR + "__init__(): incompatible constructor arguments."),
    ('Family(3, "d", Family.COUNTER)', "Invoked with: 3, 'd', <MetricKind.COUNTER: 0>"),
    ('Family("f2", "d", Family.HISTOGRAM).Metric(labels={"x": "2"})', MODEL + "Failed to create metric. Missing required buckets."),
    ('Family("f3", "d", Family.HISTOGRAM).Metric(buckets=[3, 1, 2])', METRIC + "Bucket Boundaries must be strictly sorted"),
    ('Family("f4", "d", Family.GAUGE).Metric(buckets=[3, 1, 2])', MODEL + "Failed to create metric. Unexpected buckets found."),
    ('Family("f5", "d", Family.COUNTER).Metric(labels=[1])', MODEL + "Failed to create metric. Labels must be a dictionary."),
    ('Family("f6", "d", Family.COUNTER).Metric(labels={"a": 1})', METRIC + "attempt to access JSON non-string as string"),
    ('Family("f7", "d", Family.COUNTER).Metric(labels={1: "a"})', METRIC + "Invalid label name"),
    ('Family("f8", "d", Family.COUNTER).Metric(labels={"bad-name": "a"})', METRIC + "Invalid label name"),
    ('Family("f9", "d", Family.COUNTER).Metric(labels={"__a": "a"})', METRIC + "Invalid label name"),
    ('f = Family("f10", "d", Family.COUNTER); f.Metric().increment("a")', TYPE_ERROR + "increment(): incompatible function arguments. "
     "The following argument types are supported:\n    1. (self: c_python_backend_utils.Metric, arg0: float) -> None\n\nInvoked with: "),
    ('f = Family("f11", "d", Family.COUNTER); m = f.Metric(); del f; m.value()', MODEL + "Failed to get metric value: Invalid metric "
     "operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should be deleted AFTER its "
     "corresponding 'Metric' objects have been deleted."),
    ("import c_python_backend_utils as c; c.Metric()", TYPE_ERROR + "c_python_backend_utils.Metric: No constructor defined!"),
]  # fmt: skip
# 2.51 answers these so as well, and then dies of an exception that nobody catches, now and then.
DEADLY = [
    ("COUNTER", "increment(-1)", "increment", "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."),
    ("COUNTER", "set(1)", "set", "TRITONSERVER_METRIC_KIND_COUNTER does not support Set"),
    ("COUNTER", "observe(1)", "observe", "TRITONSERVER_METRIC_KIND_COUNTER does not support Observe"),
    ("GAUGE", "observe(1)", "observe", "TRITONSERVER_METRIC_KIND_GAUGE does not support Observe"),
    ("HISTOGRAM", "increment(1)", "increment", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment"),
    ("HISTOGRAM", "set(1)", "set", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set"),
    ("HISTOGRAM", "value()", "get", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "message"), REFUSED)
def test_what_is_refused(client, code, message):
    found = do(client, *code.split("; "))
    assert message in found, found


@differs("2.51 dies of it now and then", run=False)
@pytest.mark.parametrize(("kind", "code", "verb", "message"), DEADLY)
def test_a_metric_refuses_operations_that_its_kind_lacks(client, kind, code, verb, message):
    buckets = "buckets=[1]" if kind == "HISTOGRAM" else ""
    found = do(client, f'f = Family("deadly", "d", Family.{kind})', f"f.Metric({buckets}).{code}")
    assert found == FAILED.format(f"Failed to {verb} metric value") + message


@differs("2.51 lets models add to its own families, and dies if they are of another kind", run=False)
@pytest.mark.parametrize("name", ["nv_inference_count", "nv_mine", "nerite_sessions"])
@pytest.mark.parametrize("kind", ["COUNTER", "GAUGE"])
def test_the_servers_own_names_are_its_own(server, client, name, kind):
    before = len(shown(server, name))
    found = do(client, f'kept["f"] = Family("{name}", "mine", Family.{kind})')
    assert found.startswith(FAMILY + "Family name already exists with different type"), found
    assert len(shown(server, name)) == before


@differs("2.51 keeps whatever it is told", run=False)
def test_a_model_has_no_more_than_its_share(server, client):
    lines = ('f = kept["f"] = Family("many", "d", Family.COUNTER)', "for at in range(5000): f.Metric({'a': str(at)}).increment(1)")
    assert "at most 1024 metrics at a time" in do(client, *lines)
    assert len(shown(server, "many")) == 1026
    long = "kept['f'].Metric({'a': 'b' * 5000})"
    assert "at most" in do(client, "kept.clear()", 'f = kept["f"] = Family("long", "d", Family.COUNTER)', long)
    families = "for at in range(1000): kept[at] = Family(f'f_{at}', 'd', Family.COUNTER)"
    assert "at most 256 metric families" in do(client, "kept.clear()", families)
    assert do(client, 'kept["g"] = Family("others", "d", Family.GAUGE)', "out = 'ok'", model="py_others") == "ok"


@differs("2.51 does not start the process of a model again that ended", run=False)
@pytest.mark.parametrize("how", ["unload", "kill"])
def test_metrics_of_a_model_are_removed_with_it(server, client, how):
    do(client, 'f = kept["f"] = Family("passing", "d", Family.COUNTER)', "f.Metric().increment(1)", model="py_others")
    assert shown(server, "passing")
    if how == "unload":
        assert http_call(server.http, "POST", "/v2/repository/models/py_others/unload").status == 200
    else:
        with pytest.raises(Refused):
            do(client, "import os", "os._exit(3)", model="py_others")
    for _ in range(200):
        if not shown(server, "passing"):
            break


        time.sleep(0.05)
    assert not shown(server, "passing")
    assert http_call(server.http, "POST", "/v2/repository/models/py_others/load").status == 200
