"""Contract suites for arrival processes, length models, token counts and trace formats.

Inherit one in a test module, give `make()`, and pytest checks what the simulator relies on:

    class TestMyArrivals(ArrivalProcessContract):
        def make(self):
            return MyArrivals(rate=4.0)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np

from hermes.arrays import IntArray
from hermes.config.streams import stream
from hermes.errors import InputError
from hermes.testing.components import ComponentContract
from hermes.workload.arrivals import ARRIVALS
from hermes.workload.base import MAX_TOKENS
from hermes.workload.importers import TRACE_IMPORTERS
from hermes.workload.lengths import LENGTHS, TOKEN_COUNTS
from hermes.workload.traces import read_trace, write_trace

__all__ = ["ArrivalProcessContract", "LengthModelContract", "TokenCountsContract", "TraceImporterContract"]


class _DrawnContract(ComponentContract):
    """Properties of every component that draws columns; subclasses draw them."""

    n: ClassVar[int] = 500
    """Number of requests the tests draw; lower it for a component with fewer."""

    @abstractmethod
    def columns(self, component: Any, n: int, rng: np.random.Generator) -> dict[str, IntArray]:
        """Return the arrays of one draw, by name."""

    def drawn(self, n: int, seed: int = 1) -> dict[str, IntArray]:
        """Return the arrays of a new component, drawn with a fresh stream."""
        return self.columns(self.make(), n, stream(seed, "contract"))

    def test_arrays_have_the_shape_and_type_asked_for(self) -> None:
        for n in (0, 1, 2, self.n):
            for name, column in self.drawn(n).items():
                assert column.dtype == np.int64, f"{name} is {column.dtype}, not int64"
                assert column.shape == (n,), f"{name} has shape {column.shape} for {n} requests"

    def test_same_seed_same_arrays(self) -> None:
        first, second = self.drawn(self.n), self.drawn(self.n)
        for name, column in first.items():
            np.testing.assert_array_equal(column, second[name], err_msg=name)

    def test_drawing_leaves_the_component_unchanged(self) -> None:
        component = self.make()
        before = component.model_dump()
        first = self.columns(component, self.n, stream(1, "contract"))
        again = self.columns(component, self.n, stream(1, "contract"))
        assert component.model_dump() == before
        for name, column in first.items():
            np.testing.assert_array_equal(column, again[name], err_msg=name)

    def test_asking_for_more_does_not_change_the_first_ones(self) -> None:
        for n in (1, 7, self.n // 2):
            few, many = self.drawn(n), self.drawn(self.n)
            for name, column in few.items():
                np.testing.assert_array_equal(column, many[name][:n], err_msg=name)

    def test_no_randomness_but_the_generator(self) -> None:
        np.random.seed(1)
        before = np.random.get_state()
        self.drawn(self.n)
        after = np.random.get_state()
        assert all(np.array_equal(x, y) for x, y in zip(before, after, strict=True)), "numpy's global state was used"


class ArrivalProcessContract(_DrawnContract):
    """Properties of every `ArrivalProcess`."""

    registry = ARRIVALS
    mean_rate_per_s: ClassVar[float | None] = None
    """Long-run rate of `make()`, if a test is to compare it with the drawn arrivals."""
    rate_tolerance: ClassVar[float] = 0.05
    """Relative tolerance of that test."""
    rate_n: ClassVar[int] = 50_000
    """Number of requests that test draws."""

    def columns(self, component: Any, n: int, rng: np.random.Generator) -> dict[str, IntArray]:
        return {"times_ns": component.times_ns(n, rng)}

    def test_times_do_not_decrease_from_zero_on(self) -> None:
        times = self.drawn(self.n)["times_ns"]
        assert times[0] >= 0
        assert (np.diff(times) >= 0).all()

    def test_rate(self) -> None:
        if self.mean_rate_per_s is not None:
            times = self.drawn(self.rate_n)["times_ns"]
            rate = self.rate_n / (times[-1] / 1e9)
            assert abs(rate / self.mean_rate_per_s - 1) < self.rate_tolerance


class LengthModelContract(_DrawnContract):
    """Properties of every `LengthModel`."""

    registry = LENGTHS

    def columns(self, component: Any, n: int, rng: np.random.Generator) -> dict[str, IntArray]:
        return {name: value for name, value in vars(component.draw(n, rng)).items() if isinstance(value, np.ndarray)}

    def test_lengths_are_token_counts(self) -> None:
        drawn = self.drawn(self.n)
        for name in ("prompt_tokens", "output_tokens"):
            assert drawn[name].min() >= 1, name
            assert drawn[name].max() <= MAX_TOKENS, name


class TokenCountsContract(_DrawnContract):
    """Properties of every `TokenCounts`."""

    registry = TOKEN_COUNTS

    def columns(self, component: Any, n: int, rng: np.random.Generator) -> dict[str, IntArray]:
        return {"tokens": component.draw(n, rng)}

    def test_counts_are_token_counts(self) -> None:
        tokens = self.drawn(self.n)["tokens"]
        assert tokens.min() >= 1
        assert tokens.max() <= MAX_TOKENS


class TraceImporterContract(ComponentContract):
    """Properties of every `TraceImporter`. Inherit it, give `make()`, and as `text` a file of the format with a few
    requests, in order."""

    registry = TRACE_IMPORTERS
    text: ClassVar[str]

    @contextmanager
    def file(self, content: bytes | None = None) -> Iterator[Path]:
        """Return a file with this content; default: `text`."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "trace.txt"
            path.write_bytes(self.text.encode() if content is None else content)
            yield path

    def test_a_trace_starts_at_zero_and_is_in_order(self) -> None:
        with self.file() as path:
            frame = self.make().read(path)
        assert len(frame) >= 2, "`text` has too few requests to tell"
        times = frame["arrival_s"].to_numpy()
        assert times[0] == 0
        assert (np.diff(times) >= 0).all()

    def test_lengths_are_token_counts(self) -> None:
        with self.file() as path:
            frame = self.make().read(path)
        for name in ("prompt_tokens", "output_tokens"):
            assert frame[name].dtype == np.int64, name
            assert frame[name].min() >= 1, name
            assert frame[name].max() <= MAX_TOKENS, name

    def test_what_is_read_can_be_kept(self) -> None:
        with self.file() as path:
            frame = self.make().read(path)
            write_trace(frame, path.with_suffix(".parquet"), source="contract")
            table = read_trace(path.with_suffix(".parquet"))
        np.testing.assert_array_equal(table.prompt_tokens, frame["prompt_tokens"])
        np.testing.assert_array_equal(table.output_tokens, frame["output_tokens"])

    def test_a_file_that_is_none_is_refused(self) -> None:
        """An invalid file raises `InputError`, which names the file, and no other exception. An empty file may be a
        trace without requests."""
        for content in (b"", b"\x00\xff\xfe", b"[[[[1", b"a\nb\n"):
            with self.file(content) as path:
                try:
                    found = self.make().read(path)
                except InputError as error:
                    assert path.name in str(error), f"an error that does not name the file: {error}"
                else:
                    assert not content, f"a file of {content!r} was read"
                    assert not len(found)
