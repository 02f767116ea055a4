"""An engine that does not start is no answer of `size`, `init`, `import` and `capacity`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from hermes.api import load_scenario
from hermes.cli import main
from hermes.config.yaml_document import as_node
from hermes.deploy.engine_scenario import read_source
from hermes.deploy.vllm import commands_of
from hermes.deploy.vllm_features import Told
from hermes.errors import HermesError
from hermes.explore import first_load, size
from hermes.explore.size.layouts import Kind
from hermes.hardware.descriptions.files import names_in
from hermes.scenario import scenario_of
from hermes.scenario.starts import budgets

SCENARIOS = Path(__file__).parents[2] / "scenarios"
CARDS = ("h100-sxm", "h200", "l4", "l40s", "a100-80gb", "a100-40gb", "b200", "mi300x", "rtx-4090", "rtx-pro-6000")
DRAWS = 200


def question(client: dict[str, Any]) -> dict[str, Any]:
    return {"workload": {"requests": 10, "arrivals": {"kind": "poisson", "rate": 1.0},
                         "lengths": {"kind": "fixed", "prompt": 100, "output": 10}},
            "clients": [client], "slo": {"ttft": "1 s"}}


TIGHT = {"model": "llama-3.1-8b", "device": "l4", "engine": "vllm-0.33"}   # 3.9 GiB for KV, 16 for 131,072 tokens


def test_the_reason_has_bytes_and_flags() -> None:
    [(_, budget, longest, why)] = budgets(load_scenario(question(TIGHT)))
    assert longest == 131_072
    assert why is not None
    assert f"KV memory of {budget.device_bytes / 2**30:.2f} GiB a device, one request of 131,072 tokens" in why
    assert "needs 16.00 GiB" in why   # 131,072 x 131,072 bytes
    room = int(why.split("--max-model-len ")[1].split()[0])
    assert budget.tokens >= room > 0.8 * budget.tokens
    [(_, _, _, none)] = budgets(load_scenario(question({**TIGHT, "max_model_len": room})))
    assert none is None


@pytest.mark.feature("Hardware", "`size`, `init`, `import vllm`, `capacity` refuse engines that do not start")
def test_capacity_size_and_import_refuse_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    file = tmp_path / "tight.yaml"
    file.write_text(yaml.safe_dump(question(TIGHT)))
    for command in (["capacity", str(file)], ["size", str(file), "--device", "l4", "--tp", "1", "--pp", "1"],
                    ["import", "vllm", "vllm serve meta-llama/Llama-3.1-8B-Instruct", "--device", "l4"],
                    ["init", str(tmp_path / "x.yaml"), "--model", "llama-3.1-405b", "--device", "l4"]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert "does not start: KV memory of" in said or "do not fit in" in said


def test_sglang_starts_with_less() -> None:
    client = {"model": "llama-3.1-8b", "device": "l4", "scheduler": {"kind": "sglang"}, "memory": {"utilization": 0.85}}
    assert [why for *_, why in budgets(load_scenario(question(client)))] == [None]


@pytest.mark.long   # loads every shipped scenario
def test_no_shipped_scenario_exports_flags_that_do_not_start() -> None:
    for file in sorted(SCENARIOS.rglob("*.yaml")):
        if "sweeps" not in file.parts:
            assert [why for *_, why in budgets(load_scenario(file)) if why] == [], file


class _SimulatedError(Exception):
    """The command has come to its first simulation."""


def drawn(draw: random.Random) -> dict[str, Any]:
    tp = draw.choice((1, 1, 1, 2, 4, 8))
    client: dict[str, Any] = {
        "model": draw.choice([name for name in names_in("models") if name not in ("contriever", "e5-base")]),
        "device": draw.choice(CARDS), "engine": f"vllm-0.{draw.randint(15, 33)}", "parallel": {"tp": tp},
        "memory": {"utilization": draw.choice((0.5, 0.8, 0.9, 0.92, 0.95))}, "scheduler": {"kind": "chunked"}}
    for key, values in (("max_num_seqs", (None, 8, 64, 512)), ("max_num_batched_tokens", (None, 1024, 8192))):
        if (value := draw.choice(values)) is not None:
            client["scheduler"][key] = value
    if (longest := draw.choice((None, None, 4096, 32_768))) is not None:
        client["max_model_len"] = longest
    return client


@pytest.mark.long   # the sums of 200 engines, twice
def test_no_import_or_size_of_200_exports_flags_that_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `import`, `init` and `size` let through is exported, read again, and summed up again."""
    def simulated(*_: object, **__: object) -> None:
        raise _SimulatedError

    monkeypatch.setattr(first_load, "_cut", simulated)
    draw, let_through, refused = random.Random(53), 0, 0
    for number in range(DRAWS):
        client = drawn(draw)
        document = question(client)
        try:
            if number % 2:
                first_load.lone(document)
            else:
                kind = Kind(client["device"], client["parallel"]["tp"])
                _, checked, starts, _ = size._kinds(document, Path(), [kind])
                assert list(starts) == [kind]
                assert checked is not None
                raise _SimulatedError
        except _SimulatedError:
            let_through += 1
        except HermesError:
            refused += 1
            continue
        for _, command in commands_of(scenario_of(as_node(document), Path())):
            read = read_source(command, None, device=client["device"], engine=client["engine"], model=client["model"],
                               told=Told(None, None, None))
            again = load_scenario({**question(read.clients[0])})
            for _, budget, longest, _ in budgets(again):
                assert longest is None or budget.num_blocks * budget.block_size >= longest * 0.999, command
    assert let_through > DRAWS / 5
    assert refused > DRAWS / 5
