"""Built-in workload profiles: they load, they reproduce their source, and malformed ones are refused."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from outside import OUTSIDE

from hermes.config.data_files import resource_dir
from hermes.errors import InputError
from hermes.workload import Lengths, stream
from hermes.workload.importers import import_trace
from hermes.workload.lengths import EmpiricalLengths
from hermes.workload.profiles import load_workload_profile, workload_profile_names
from hermes.workload.stats import spearman
from hermes.workload.traces import describe_frame

BUILT_IN = ("azure-code-2023", "azure-conv-2023")
AZURE = OUTSIDE / "data" / "azure"


def drawn(name: str) -> Lengths:
    return EmpiricalLengths(profile=name).draw(400_000, stream(11, "test"))


@pytest.mark.feature("Workloads", "Built-in workload profiles")
def test_built_in_names() -> None:
    assert set(BUILT_IN) <= set(workload_profile_names())
    for name in BUILT_IN:
        profile = load_workload_profile(name)
        assert profile.name == name
        assert "CC-BY-4.0" in profile.source["licence"]
        assert "Azure" in profile.source["attribution"]


def test_sharegpt_is_what_benchmarks_draw() -> None:
    """vLLM's benchmark over the first 1,000 pairs of the shuffled file: 217 and 198 tokens a request (GPUStack's page
    on Qwen3-235B, `data/gpustack`), of 4 at least, 1,024 of a prompt and 2,048 of both at most."""
    profile = load_workload_profile("sharegpt")
    assert profile.arrivals is None
    assert profile.prompt_tokens.mean == pytest.approx(217, rel=0.03)
    assert profile.output_tokens.mean == pytest.approx(198, rel=0.03)
    assert profile.prompt_tokens.values[0] == profile.output_tokens.values[0] == 4
    assert profile.prompt_tokens.values[-1] <= 1024
    assert profile.output_tokens.values[-1] < 2048


@pytest.mark.parametrize("name", [*BUILT_IN, "sharegpt"])
@pytest.mark.parametrize("column", ["prompt_tokens", "output_tokens"])
def test_draws_reproduce_the_source_s_figures(name: str, column: str) -> None:
    table, tokens = getattr(load_workload_profile(name), column), getattr(drawn(name), column)
    # Mean: interpolation of the quantiles (a few per mille) and four standard errors of the draw.
    assert tokens.mean() == pytest.approx(table.mean, rel=0.005 + 4 * table.std / table.mean / math.sqrt(len(tokens)))
    assert tokens.std() == pytest.approx(table.std, rel=0.03)
    for level, value in ((0.5, table.p50), (0.9, table.p90), (0.99, table.p99)):
        assert np.quantile(tokens, level) == pytest.approx(value, rel=0.02, abs=1)
    assert tokens.min() >= table.values[0]
    assert tokens.max() <= table.values[-1]


@pytest.mark.parametrize("name", [*BUILT_IN, "sharegpt"])
def test_draws_reproduce_the_rank_correlation(name: str) -> None:
    lengths = drawn(name)
    rho = spearman(lengths.prompt_tokens, lengths.output_tokens)
    assert rho == pytest.approx(load_workload_profile(name).spearman, abs=0.01)


@pytest.mark.outside("data/azure")
@pytest.mark.parametrize("kind", ["conv", "code"])
def test_against_the_real_trace(kind: str) -> None:
    frame = import_trace("azure", AZURE / f"AzureLLMInferenceTrace_{kind}.csv")
    figures = describe_frame(frame)
    profile, lengths = load_workload_profile(f"azure-{kind}-2023"), drawn(f"azure-{kind}-2023")
    assert profile.requests == figures["requests"]
    assert profile.spearman == pytest.approx(figures["spearman"], abs=1e-5)
    for key in ("duration_s", "rate_per_s", "interarrival_cv"):
        assert profile.arrivals is not None
        assert getattr(profile.arrivals, key) == pytest.approx(figures["arrivals"][key], rel=1e-5)
    for column in ("prompt_tokens", "output_tokens"):
        source, tokens = frame[column].to_numpy(), getattr(lengths, column)
        assert tokens.mean() == pytest.approx(source.mean(), rel=0.015)
        # Largest distance of the distribution functions, everywhere: one level of the table, and sampling.
        at = np.unique(source)
        cdf_source = np.searchsorted(np.sort(source), at, side="right") / len(source)
        cdf_drawn = np.searchsorted(np.sort(tokens), at, side="right") / len(tokens)
        assert np.abs(cdf_source - cdf_drawn).max() < 0.01


@cache
def content() -> dict[str, Any]:
    text = (resource_dir("traces") / "azure-conv-2023.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def lengths_of(levels: list[float], values: list[float]) -> dict[str, Any]:
    return {"prompt_tokens": content()["prompt_tokens"] | {"levels": levels, "values": values}}


def test_a_profile_of_one_s_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content() | {"name": "mine"}), encoding="utf-8")
    model = EmpiricalLengths(profile="mine.yaml").bound(tmp_path)
    assert model.draw(3, stream(1, "x")).prompt_tokens.min() >= 1
    assert load_workload_profile(tmp_path / "mine.yaml").name == "mine"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": "hermes-workload/2"}, "format: expected 'hermes-workload/1', found 'hermes-workload/2'"),
        ({"spearman": 1.0}, "spearman: expected a number less than 1, found 1.0"),
        ({"requests": "many"}, "requests: expected an integer, found 'many'"),
        ({"arrivals": 3},
         "arrivals: expected a mapping with keys of duration_s, rate_per_s, interarrival_cv, found 3"),
        ({"arrival": 1}, "arrival: expected one of the keys format, name, source"),
        ({"source": [1]}, "source: expected a mapping, found a list"),
        (lengths_of([0, 1], [1, 2, 3]), "prompt_tokens.values: expected as many values as levels (2), found 3"),
        (lengths_of([0, 0.5], [1, 2]), "prompt_tokens.levels: levels must increase strictly from 0 to 1"),
        (lengths_of([0, 0.5, 0.5, 1], [1, 2, 3, 4]),
         "prompt_tokens.levels: levels must increase strictly from 0 to 1"),
        (lengths_of([0, 1], [2, 1]), "prompt_tokens.values: values must not decrease"),
        (lengths_of([0, 1], [0, 1]), "prompt_tokens.values.0: expected a number of at least 1, found 0"),
    ],
)
def test_malformed_profiles(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(content() | change), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_workload_profile(path)
    assert str(caught.value).startswith(str(path))
    assert f": {problem}" in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"", b"[1, 2", b"\xff\xfe\x00", b"a: &a [*a]", b"- 1", b"format: hermes-workload/1", b"[" * 5000]
)
def test_files_that_are_no_profiles(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bad.yaml").write_bytes(data)
    with pytest.raises(InputError, match=r"bad\.yaml"):
        load_workload_profile(tmp_path / "bad.yaml")


@pytest.mark.parametrize("name", ["", "azure", "a" * 5000, "../traces/azure-conv-2023", "\0", ".yaml", "/"])
def test_names_that_are_no_profiles(name: str) -> None:
    with pytest.raises(InputError):
        load_workload_profile(name)
