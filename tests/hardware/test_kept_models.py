"""Hardware models that simulations of one process share (`kept` of `hermes.config.data_files`)."""

from __future__ import annotations

from pathlib import Path

from hermes.config.data_files import MOST_KEPT, Kept, files_noted, kept, kept_within, resource_dir
from hermes.explore.sweep.built import Built
from hermes.explore.sweep.jobs import Job, perform
from hermes.hardware.composed import Composed


def composed(tp: int = 1, model: str = "llama-3.1-8b") -> Composed:
    return Composed(model=model, device="h100-sxm", tp=tp)


def test_equal_configurations_have_one_model_within_the_block() -> None:
    assert composed().build() is not composed().build()
    with kept_within({}):
        first = composed().build()
        assert composed().build() is first
        assert composed(tp=2).build() is not first
        assert composed().build(Path("elsewhere")) is not first
        assert composed().build(layers=1) is not first
        with kept_within({}):   # the outer block has them
            assert composed().build() is first
    assert composed().build() is not first


def test_a_file_of_the_user_may_change(tmp_path: Path) -> None:
    text = (resource_dir("hw_profiles") / "devices" / "h100-sxm.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text)
    mine = Composed(model="llama-3.1-8b", device="./mine.yaml")
    with kept_within({}):
        assert mine.build(tmp_path) is not mine.build(tmp_path)


def test_the_files_of_a_kept_model_count_as_read() -> None:
    with kept_within({}):
        with files_noted() as first:
            composed().build()
        with files_noted() as again:
            composed().build()
    assert first
    assert list(again) == list(first)


def test_so_many_are_kept() -> None:
    models: Kept = {}
    with kept_within(models):
        for number in range(MOST_KEPT + 1):
            assert kept(number, lambda number=number: number) == number
    assert list(models) == [MOST_KEPT]


def test_jobs_that_share_a_model_have_the_figures_of_jobs_alone() -> None:
    """The second of a worker finds the tables of step times that the first has filled."""
    text = ('{"workload": {"requests": 200, "arrivals": {"kind": "poisson", "rate": 20.0}, "lengths": {"kind": '
            '"independent", "prompt": 500, "output": 40}}, "clients": [{"model": "llama-3.1-8b", "device": '
            '"h100-sxm"}], "seed": %d}')
    alone = [perform(Job("a", "run", text % seed, ".")).figures for seed in (1, 2)]
    built = Built()
    together = [perform(Job("a", "run", text % seed, "."), built).figures for seed in (1, 2)]
    assert len(built.models) == 1
    assert together == alone
