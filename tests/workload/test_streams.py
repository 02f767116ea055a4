"""Random streams depend on the seed and the consumer's name, and on nothing else."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hermes.config.streams import stream
from hermes.errors import InputError

GOLDEN = [746442196, 439197186, 2230485920]


def test_same_name_same_numbers() -> None:
    np.testing.assert_array_equal(stream(7, "arrivals/a").random(100), stream(7, "arrivals/a").random(100))


@pytest.mark.parametrize(("seed", "name"), [(8, "arrivals/a"), (7, "arrivals/b"), (7, "lengths/a"), (7, "")])
def test_other_name_or_seed_other_numbers(seed: int, name: str) -> None:
    n = 20_000
    mine, other = stream(7, "arrivals/a").random(n), stream(seed, name).random(n)
    assert abs(np.corrcoef(mine, other)[0, 1]) < 5 / np.sqrt(n)


def test_numbers_do_not_depend_on_the_process() -> None:
    # A golden value: it changes only if every seeded result of every user changes.
    assert stream(1, "arrivals/main").integers(0, 2**32, 3).tolist() == GOLDEN
    code = (
        "from hermes.config.streams import stream\n"
        "print(stream(1, 'arrivals/main').integers(0, 2**32, 3).tolist())"
    )
    for hash_seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        )
        assert done.stdout.strip() == str(GOLDEN)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "1"])
def test_bad_seeds(seed: object) -> None:
    with pytest.raises(InputError, match="seed"):
        stream(seed, "x")  # type: ignore[arg-type]


def test_large_seeds_are_fine() -> None:
    assert stream(2**200, "x").random() != stream(2**200 + 1, "x").random()
