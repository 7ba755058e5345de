"""Do dashboard and alerts ask for metrics that the server has, and does Prometheus find data for each?"""

import json
import pathlib
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import gpus
import numpy as np
import pytest
import servers
import setup_prometheus
import tritonclient.http as http_client
from cache_setup import caching, serving
from clients import http_call

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROMETHEUS = ROOT / "packaging" / "prometheus"
KUBERNETES = ROOT / "packaging" / "kubernetes"
sys.path.append(str(ROOT / "packaging" / "grafana"))

import make_dashboard  # noqa: E402

yaml = pytest.importorskip("yaml", reason="python3 tests/setup_venv.py installs it")
trustme = pytest.importorskip("trustme", reason="python3 tests/setup_venv.py installs it")

FLAGS = ("--model-control-mode=demand", "--metrics-config=histogram_latencies=true")
# What Prometheus makes of a histogram's name.
PARTS = re.compile(r"_(bucket|sum|count)$")
DEADLINE_S = 60
# Some metrics are there only with tokens. Who brings none may do all, so that the calls of these tests need none.
TOKENS = """
[[token]]
name = "batch"
secret = "a secret of these tests"
scopes = ["infer"]

[anonymous]
scopes = ["infer", "read", "regions", "control"]
"""


@pytest.fixture(scope="module")
def server(launcher, tmp_path_factory):
    tokens = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    tokens.write_text(TOKENS)
    tokens.chmod(0o600)
    flags = (*FLAGS, f"--access-tokens-file={tokens}", *secured(tmp_path_factory.mktemp("certificates")))
    with gpus.stand_ins(tmp_path_factory.mktemp("gpus")), serving(launcher, "monitored", caching("kept"), flags=flags) as found:
        with http_client.InferenceServerClient(found.http) as client:
            infer(client, 0)
        wait_for_gpus(found)
        yield found


def secured(folder: pathlib.Path) -> list[str]:
    """Flags for TLS at the gRPC port."""
    made = trustme.CA().issue_cert("localhost")
    made.private_key_pem.write_to_path(folder / "key")
    made.cert_chain_pems[0].write_to_path(folder / "pem")
    return ["--grpc-use-ssl=true", f"--grpc-server-cert={folder / 'pem'}", f"--grpc-server-key={folder / 'key'}"]


def wait_for_gpus(server) -> None:
    """Their figures are taken by a thread of their own."""
    deadline = time.monotonic() + DEADLINE_S
    while "nv_energy_consumption" not in families(server):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def infer(client, number: float) -> None:
    given = http_client.InferInput("INPUT0", [1, 1], "FP32")
    given.set_data_from_numpy(np.array([[number]], np.float32))
    client.infer("kept", [given])


def families(server) -> set[str]:
    """The metrics that a server shows, by the names of their families."""
    page = http_call(server.metrics, "GET", "/metrics").ok().body.decode()
    return set(re.findall(r"^# TYPE (\S+) ", page, re.M))


def metrics_in(expression: str, known: set[str]) -> set[str]:
    names = set(re.findall(r"\b(?:nv|nerite|process)_[a-z0-9_]+", expression))
    return {name if name in known else PARTS.sub("", name) for name in names}


def rules() -> list[dict]:
    return yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"][0]["rules"]


def queries() -> list[str]:
    made = make_dashboard.dashboard()
    return [target["expr"] for panel in made["panels"] for target in panel.get("targets", ())]


def test_the_dashboard_in_the_repository_is_what_its_table_says():
    assert make_dashboard.DASHBOARD.read_text() == make_dashboard.text(), "run python3 packaging/grafana/make_dashboard.py"


def test_the_dashboard_shows_every_metric_of_the_server_and_no_other(server):
    known = families(server)
    queried = set().union(*(metrics_in(query, known) for query in queries()))
    assert queried <= known
    assert known - queried <= set(make_dashboard.NOT_SHOWN), "a metric without a panel: add one, or a reason to NOT_SHOWN"
    assert not queried & set(make_dashboard.NOT_SHOWN)


def test_every_metric_is_documented(server):
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert not [name for name in families(server) if f"| `{name}` |" not in page]


def test_every_panel_shows_the_chosen_instances_alone():
    assert [query for query in queries() if query.count('instance=~"$instance"') != len(re.findall(r"\{[^}]*job=", query)) or "$instance" not in query] == []


def test_alerts_ask_for_metrics_that_the_server_has(server):
    known = families(server)
    for rule in rules():
        assert metrics_in(rule["expr"], known) <= known, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical") and rule["annotations"]["summary"]


def test_the_page_says_how_many_alerts_there_are():
    (said,) = re.findall(r"(\S+) alert rules with their tests", (ROOT / "docs" / "monitoring.md").read_text())
    numbers = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty".split()
    assert said == numbers[len(rules()) - 10]


def test_the_panels_lie_side_by_side():
    taken = set()
    for panel in make_dashboard.dashboard()["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= make_dashboard.WIDTH
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def test_the_dashboard_is_one_as_grafana_reads_it():
    """Of the file that users import: what Grafana asks of a dashboard, its variables and panels."""
    found = json.loads(make_dashboard.DASHBOARD.read_text())
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}", found["uid"]) and found["title"] and found["schemaVersion"] >= 36
    assert set(found["time"]) == {"from", "to"}
    variables = {one["name"]: one for one in found["templating"]["list"]}
    assert variables.pop("datasource")["type"] == "datasource"
    assert all(one["type"] == "query" and one["datasource"] == SOURCE for one in variables.values())
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids)) and all(isinstance(one, int) and one > 0 for one in ids)
    assert {panel["type"] for panel in found["panels"]} == {"row", "timeseries"}
    for panel in found["panels"]:
        at = panel["gridPos"]
        assert panel["title"] and set(at) == {"x", "y", "w", "h"}
        assert at["x"] >= 0 and at["y"] >= 0 and at["w"] > 0 and at["h"] > 0 and at["x"] + at["w"] <= 24, panel["title"]
        if panel["type"] == "row":
            # A row that is open has its panels below it, not in it.
            assert panel["collapsed"] is False and panel["panels"] == [] and at["w"] == 24
            continue
        assert panel["datasource"] == SOURCE and panel["fieldConfig"]["defaults"]["unit"] and panel["fieldConfig"]["overrides"] == []
        letters = [target["refId"] for target in panel["targets"]]
        assert letters and len(letters) == len(set(letters)), panel["title"]
        for target in panel["targets"]:
            assert target["expr"] and target["legendFormat"] and target["datasource"] == SOURCE, panel["title"]
            used = set(re.findall(r"\$\{?(\w+)", target["expr"]))
            assert used <= {*variables, "__rate_interval"}, target["expr"]
            assert "{at}" not in target["expr"] and "{of}" not in target["expr"] and "{rate}" not in target["expr"]


def tool(name: str) -> str:
    found = setup_prometheus.tool(name)
    if not found:
        pytest.skip(f"{name} is not there: python3 tests/packaging/setup_prometheus.py")
    return found


def test_each_alert_fires_when_it_should_and_only_then():
    promtool = tool("promtool")
    for words in (["check", "config", "prometheus.yaml"], ["test", "rules", "alerts_test.yaml"]):
        done = subprocess.run([promtool, *words], cwd=PROMETHEUS, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    trouble = yaml.safe_load((PROMETHEUS / "alerts_test.yaml").read_text())["tests"][0]["promql_expr_test"][0]
    fired = {re.search(r'alertname="(\w+)"', sample["labels"])[1] for sample in trouble["exp_samples"]}
    assert fired == {rule["alert"] for rule in rules()}


def adapter_rule() -> dict:
    """The rule by which prometheus-adapter makes the autoscaler's metric."""
    (rule,) = yaml.safe_load((KUBERNETES / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    return rule


def adapter_query(rule: dict, pods: list[str]) -> str:
    """What the adapter asks Prometheus for these pods. It replaces the words in angle brackets."""
    words = {"Series": rule["seriesQuery"].partition("{")[0], "LabelMatchers": f'namespace="default",pod=~"{"|".join(pods)}"', "GroupBy": "pod"}
    return re.sub(r"<<\.(\w+)>>", lambda found: words[found[1]], rule["metricsQuery"])


def test_the_adapter_makes_the_metric_that_the_autoscaler_asks_for(server):
    rule = adapter_rule()
    (scaler,) = (one for one in yaml.safe_load_all((KUBERNETES / "nerite.yaml").read_text()) if one["kind"] == "HorizontalPodAutoscaler")
    wanted = [one["pods"]["metric"]["name"] for one in scaler["spec"]["metrics"] if one["type"] == "Pods"]
    series = rule["seriesQuery"].partition("{")[0]
    assert [rule["name"]["as"]] == wanted and re.fullmatch(rule["name"]["matches"], series) and series in families(server)
    # By these labels the adapter finds the objects of Kubernetes, so each must be asked for.
    labels = {label: {"resource": label} for label in ("namespace", "pod")}
    assert rule["resources"]["overrides"] == labels and all(f'{label}!=""' in rule["seriesQuery"] for label in labels)


def test_the_adapters_query_adds_the_models_of_each_pod(tmp_path):
    promtool = tool("promtool")
    name = "nv_inference_pending_request_count"
    waiting = {("nerite-a", "m"): 3, ("nerite-a", "n"): 4, ("nerite-b", "m"): 5, ("other", "m"): 90}
    series = [{"series": f'{name}{{namespace="default", pod="{pod}", model="{model}"}}', "values": f"{number}x5"} for (pod, model), number in waiting.items()]
    expected = [{"labels": f'{{pod="{pod}"}}', "value": number} for pod, number in (("nerite-a", 7), ("nerite-b", 5))]
    query = {"expr": adapter_query(adapter_rule(), ["nerite-a", "nerite-b"]), "eval_time": "3m", "exp_samples": expected}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": [query]}]}))
    done = subprocess.run([promtool, "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def prometheus(server, tmp_path_factory):
    """A Prometheus server that asks nerite twice a second; its address."""
    program = tool("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((PROMETHEUS / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "1s"}
    config["rule_files"] = [str(PROMETHEUS / "alerts.yaml")]
    # The labels that Kubernetes' service discovery would give.
    config["scrape_configs"][0]["static_configs"] = [{"targets": [server.metrics], "labels": {"namespace": "default", "pod": "nerite-a"}}]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    (port,) = servers.free_ports(1)
    command = [
        program, f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with open(folder / "log", "wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def answer(address: str, query: str) -> list[dict]:
    """What Prometheus answers to a query; nothing while it does not listen yet."""
    try:
        with urllib.request.urlopen(f"{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}", timeout=5) as reply:
            return json.load(reply)["data"]["result"]
    except ConnectionError:
        return []
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return []
        raise AssertionError(f"{query}: {error.read().decode()}") from error
    except urllib.error.URLError:
        return []


def has_numbers(found: list[dict]) -> bool:
    return any(sample["value"][1] != "NaN" for sample in found)


def test_every_panel_has_data_while_the_server_is_under_load(server, prometheus):
    values = {"$__rate_interval": "5s", "$job": ".*", "$instance": ".*", "$model": ".*"}
    left = []
    for query in queries():
        for name, value in values.items():
            query = query.replace(name, value)
        left.append(query)
    deadline = time.monotonic() + DEADLINE_S
    number = 0
    with http_client.InferenceServerClient(server.http) as client:
        while left and time.monotonic() < deadline:
            for _ in range(20):
                number += 1
                # Every second one is a hit of the cache.
                infer(client, number // 2)
            left = [query for query in left if not has_numbers(answer(prometheus, query))]
            time.sleep(0.1)
    assert not left
    assert answer(prometheus, 'up{job="nerite"} == 1')


def test_prometheus_has_the_series_that_the_adapter_looks_for(server, prometheus):
    rule = adapter_rule()
    deadline = time.monotonic() + DEADLINE_S
    while not (found := answer(prometheus, rule["seriesQuery"])):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert {sample["metric"]["model"] for sample in found} >= {"kept"}
    (sample,) = answer(prometheus, adapter_query(rule, ["nerite-a"]))
    assert sample["metric"] == {"pod": "nerite-a"} and float(sample["value"][1]) >= 0
