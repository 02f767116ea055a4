"""Messages about the wrong kind of file or word say what to type."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hermes.cli import main
from hermes.errors import suggest
from hermes.explore import run_sweep

SCENARIO = {"workload": {"requests": 3, "arrivals": {"kind": "poisson", "rate": 1},
                         "lengths": {"kind": "fixed", "prompt": 10, "output": 2}},
            "clients": [{"model": "llama-3.1-8b", "device": "l40s"}]}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("types")
    (folder / "one.yaml").write_text(yaml.safe_dump(SCENARIO))
    (folder / "many.yaml").write_text(yaml.safe_dump({"scenario": "one.yaml", "grid": {"clients.0.count": [1]}}))
    assert main(["run", str(folder / "one.yaml"), "-o", str(folder / "run"), "-q"]) == 0
    run_sweep(folder / "many.yaml", folder / "sweep", workers=0)
    return folder


@pytest.mark.parametrize(("call", "said"), [
    ("run many.yaml", "many.yaml is a sweep; `hermes sweep many.yaml -o DIR` runs it"),
    ("run sweeps/which-batching", "is a sweep; `hermes sweep sweeps/which-batching -o DIR` runs it"),
    ("run sweep", "the folder of a sweep; `hermes sweep sweep` prints its table"),
    ("run run", "the folder of a run; name its scenario, run/scenario.resolved.yaml"),
    ("sweep one.yaml -o out", "one.yaml is a scenario; `hermes run one.yaml` runs it"),
    ("sweep quickstart -o out", "quickstart is a scenario; `hermes run quickstart` runs it"),
    ("compare run one.yaml", "a scenario has no latencies; run it (`hermes run one.yaml -o DIR`), then compare"),
    ("compare sweep run", "a sweep's; `hermes sweep sweep` compares its points"),
    ("plot one.yaml -o a.png", "a scenario; `hermes run one.yaml -o DIR` makes one"),
    ("explain run", "the folder of a run; name one of its requests (--request 0), or"),
    ("size operations/hour", "take `hermes size SCENARIO --scale --minutes 10`"),
])
def test_a_file_of_another_kind(there: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
                                call: str, said: str) -> None:
    monkeypatch.chdir(there)
    assert main(call.split()) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("autoscaler", "word"), [
    ("kind: hpa, minReplicas: 1, metrics: [{metric: running, target: 2}]", "min"),
    ("kind: hpa, maxReplicas: 1, metrics: [{metric: running, target: 2}]", "max"),
    ("kind: keda, maxReplicaCount: 1, triggers: [{metric: running, target: 2}]", "max"),
    ("kind: keda, pollingInterval: 1, triggers: [{metric: running, target: 2}]", "polling"),
    ("kind: keda, triggers: [{metric: running, threshold: 2}]", "target"),
    ('kind: hpa, metrics: [{metric: "vllm:num_requests_waiting", target: 2}]', "waiting"),
    ("kind: hpa, metrics: [{metric: num_requests_running, target: 2}]", "running"),
    ('kind: hpa, metrics: [{metric: "vllm:kv_cache_usage_perc", target: 2}]', "kv_use"),
])
def test_a_word_of_kubernetes_or_vllm(there: Path, capsys: pytest.CaptureFixture[str], autoscaler: str, word: str
                                      ) -> None:
    fleet = f"clients.0.fleet={{start: 1, start_up: {{total: 1}}, autoscaler: {{{autoscaler}}}}}"
    assert main(["validate", str(there / "one.yaml"), "--set", fleet]) == 2
    assert f"(did you mean '{word}'?)" in capsys.readouterr().err


def test_a_word_inside_another_is_meant_if_it_is_the_only_one() -> None:
    assert suggest("minReplicas", ["min", "max"]) == "min"
    assert suggest("minToMax", ["min", "max"]) is None
    assert suggest("scaleUpPolicy", ["scale_up", "scale_down"]) == "scale_up"


def test_an_interrupted_sweep_says_what_it_keeps(there: Path, capsys: pytest.CaptureFixture[str],
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    import hermes.explore

    def interrupted(*_: object, progress: object, **__: object) -> None:
        progress("run", 0, 3)   # type: ignore[operator]
        progress("run", 2, 3)   # type: ignore[operator]
        raise KeyboardInterrupt

    monkeypatch.setattr(hermes.explore, "run_sweep", interrupted)
    assert main(["sweep", str(there / "many.yaml"), "-o", str(there / "half"), "--workers", "0"]) == 130
    assert f"{there / 'half'} keeps 2 finished points; the same command continues" in capsys.readouterr().err
