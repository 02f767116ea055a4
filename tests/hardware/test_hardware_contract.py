"""All hardware models, through the contract suite."""


import numpy as np
import pytest

from hermes.hardware import HARDWARE, VectorHardwareModel
from hermes.hardware.fitted.polynomial import PolynomialModel
from hermes.hardware.fitted.profile import Profile
from hermes.hardware.fitted.table import TableModel, Tables
from hermes.testing.hardware import HardwareModelContract, MonotoneHardwareModelContract, batch

PROVENANCE = {"source": "test", "hardware": "none", "engine": "none", "model": "none", "dtype": "bf16", "date": "today"}


def polynomial(prefill, decode, mixed=None, **options):
    def phase(terms):
        return {"terms": [{"term": k, "seconds": v} for k, v in terms.items()], **options}

    phases = {"prefill": phase(prefill), "decode": phase(decode)} | ({"mixed": phase(mixed)} if mixed else {})
    data = {"format": "hermes-profile/1", "name": "test", "provenance": PROVENANCE, "phases": phases}
    return PolynomialModel(Profile.model_validate(data))


def build(**options):
    return HARDWARE.get(options["kind"]).model_validate(options).build()


class TestShippedProfile(MonotoneHardwareModelContract):
    def make(self):
        return build(kind="polynomial", profile="splitwise-2023-llama-2-70b-h100-tp8")


class TestShippedProfileWithKnots(MonotoneHardwareModelContract):
    def make(self):
        return build(kind="polynomial", profile="splitwise-2023-llama-2-70b-a100-tp4", scale=1.37)


class TestEveryFormOfTerm(HardwareModelContract):
    def make(self):
        mixed = {
            "1": 0.011, "tokens": 1.1e-5, "tokens^2": 1e-11, "decode_ctx": 3.3e-9, "decode_ctx_max": 1.7e-8,
            "decode_seqs*decode_ctx": 7e-12, "decode_ctx^2": 1e-18, "prefill_attn*decode_ctx_max^2": 1e-24,
            "max(decode_ctx-5000,0)": 2e-9, "seqs*max(decode_ctx_max-300,0)^2": -1e-15,
            "decode_ctx*decode_ctx_max": 1e-17, "sampled": 1e-6, "prefill_past": 1e-9,
        }
        prefill = {"1": 0.01, "prefill_tokens^2": 1e-10, "prefill_seqs*max(prefill_tokens-100,0)": 1e-7}
        return polynomial(
            prefill | {"prefill_past": 1e-7},
            {"decode_ctx": 1e-8, "decode_seqs*decode_ctx_max": 1e-9, "max(decode_seqs-7.5,0)^2": 1e-6},
            mixed,
        )


class TestCapsAndSegmentsUnderBounds(MonotoneHardwareModelContract):
    def make(self):
        return polynomial(
            {"1": 0.01, "min(prefill_tokens,300)": 1e-5, "max(prefill_tokens-2000,0)": 1e-6, "sampled": 1e-4},
            {"1": 0.012, "clip(decode_seqs-16,0,48)": 1e-4, "min(decode_ctx,9000)": 1e-7, "sampled": 2e-5,
             "min(decode_seqs,32)*clip(decode_ctx_max-500,0,4000)": 1e-8},
            {"1": 0.008, "tokens": 1e-6, "clip(decode_ctx-1000.5,0,20000)": 1e-7},
        )


class TestTermsThatWouldTurnNegative(HardwareModelContract):
    def make(self):
        return polynomial(
            {"1": 0.01, "prefill_tokens": -1e-5}, {"1": 0.01, "decode_ctx": -1e-8}, {"1": -1.0, "decode_ctx": 1e-6},
            floor_s=0.001,
        )


class TestComposedMixedStepsWithRanges(HardwareModelContract):
    def make(self):
        return polynomial(
            {"1": 0.01, "prefill_tokens": 1e-5}, {"1": 0.02, "decode_seqs": 1e-4, "decode_ctx": 1e-8},
            range={"tokens": [2, 2000], "decode_ctx": [50, 200_000], "decode_ctx_max": [20, 30_000]},
        )


class TestSplitwiseTable(HardwareModelContract):
    def make(self):
        return build(kind="table", profile="splitwise-2023-bloom-176b-h100-tp8")


def table(**options):
    data = {
        "format": "hermes-table/1", "name": "test", "provenance": PROVENANCE,
        "prefill": {"x": "prefill_attn", "points": [[0, 0.01], [1000, 0.02], [9e6, 0.3]]},
        "decode": {"x": "decode_ctx", "points": [[100, 0.01], [1000, 0.0101], [50_000, 0.009], [70_000, 0.4]]},
        "mixed": {"x": "decode_ctx_max", "points": [[10, 0.01], [11, 0.3], [5000, 0.2]]},
    }
    return TableModel(Tables.model_validate(data), **options)


class TestTableOverContext(HardwareModelContract):
    def make(self):
        return table()


class TestTableHeldAtItsEnds(HardwareModelContract):
    def make(self):
        return table(extrapolate=False, scale=0.9)


class TestRoofline(MonotoneHardwareModelContract):
    def make(self):
        return build(kind="roofline", model="llama-3.1-70b", device="h100-sxm", tp=4)


class TestRooflineOfExperts(MonotoneHardwareModelContract):
    def make(self):
        return build(kind="roofline", model="mixtral-8x7b", device="a100-80gb", tp=2, dtype="int4-awq", kv_dtype="fp8")


class TestRooflineOfAnEncoder(MonotoneHardwareModelContract):
    def make(self):
        return build(kind="roofline", model="e5-base", device="cpu-small", dtype="fp32", step_overhead=0.0)


class TestVectorBase(HardwareModelContract):
    """The base class for models that write only a vectorised function."""

    def make(self):
        class Model(VectorHardwareModel):
            def run_seconds(self, stats, num_steps):
                context = stats.decode_ctx + np.arange(num_steps, dtype=np.float64) * stats.decode_seqs
                return 1e-3 + 1e-7 * stats.prefill_tokens + 1e-9 * context

        return Model()


class Broken:
    """A correct model, to be broken in one way."""

    name = description = "broken"

    def step_ns(self, stats):
        return 1000 + stats.decode_ctx

    def run_ns(self, stats, num_steps):
        return 1000 + stats.decode_ctx + stats.decode_seqs * np.arange(num_steps)

    def out_of_range(self, columns, num_steps):
        return np.zeros(len(num_steps), dtype=np.int64)


class StepsDiffer(Broken):
    def step_ns(self, stats):
        return 1000 + stats.decode_ctx + (stats.decode_seqs == 3)


class RunsDrift(Broken):
    def run_ns(self, stats, num_steps):
        return super().run_ns(stats, num_steps) + np.arange(num_steps) // 1000


class NotPositive(Broken):
    def step_ns(self, stats):
        return 0

    def run_ns(self, stats, num_steps):
        return np.zeros(num_steps, dtype=np.int64)


class Seconds(Broken):
    def run_ns(self, stats, num_steps):
        return super().run_ns(stats, num_steps) * 1.0


class Remembers(Broken):
    def __init__(self):
        self.calls = 0

    def run_ns(self, stats, num_steps):
        self.calls += 1
        return super().run_ns(stats, num_steps) + self.calls


class WritesIntoStats(Broken):
    def run_ns(self, stats, num_steps):
        out = super().run_ns(stats, num_steps)
        stats.decode_ctx += num_steps
        return out


class HandsOutItsCache(Broken):
    def __init__(self):
        self.cache = {}

    def run_ns(self, stats, num_steps):
        return self.cache.setdefault((repr(stats), num_steps), super().run_ns(stats, num_steps))


class CountsRunsNotSteps(Broken):
    def out_of_range(self, columns, num_steps):
        return (columns["decode_ctx"] > 50).astype(np.int64)


class CheaperWithPrefill(Broken):
    def step_ns(self, stats):
        return super().step_ns(stats) // (2 if stats.prefill_tokens else 1)


class FasterWithContext(Broken):
    def run_ns(self, stats, num_steps):
        return super().run_ns(stats, num_steps)[::-1].copy()


class ForgetsEmpty(Broken):
    def out_of_range(self, columns, num_steps):
        return np.zeros(max(1, len(num_steps)), dtype=np.int64)


@pytest.mark.parametrize(
    ("model", "test"),
    [
        (StepsDiffer, "a_run_is_its_steps_bit_for_bit"),
        (RunsDrift, "a_long_run_is_its_steps"),
        (RunsDrift, "a_run_can_be_cut_anywhere"),
        (NotPositive, "times_are_positive_integers"),
        (Seconds, "times_are_positive_integers"),
        (Remembers, "answers_do_not_depend_on_what_was_asked_before"),
        (WritesIntoStats, "statistics_are_left_alone"),
        (HandsOutItsCache, "the_caller_may_write_into_a_run"),
        (CountsRunsNotSteps, "steps_out_of_range_are_counted_alike_in_runs_and_steps"),
        (ForgetsEmpty, "no_runs_have_no_steps_out_of_range"),
        (CheaperWithPrefill, "a_step_is_never_cheaper_by_more_tokens_context_or_sequences"),
        (FasterWithContext, "a_run_of_decodes_never_gets_faster"),
    ],
)
def test_the_contract_catches_a_broken_model(model, test):
    class Suite(MonotoneHardwareModelContract):
        def make(self):
            return model()

        def cases(self):
            yield from super().cases()
            yield batch([], [9, 9, 9]), 2000

    class Correct(Suite):
        def make(self):
            return Broken()

    getattr(Correct(), f"test_{test}")()
    with pytest.raises(AssertionError):
        getattr(Suite(), f"test_{test}")()
