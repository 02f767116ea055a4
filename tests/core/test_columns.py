"""The log of rows: its columns are the rows that were added, whatever their width."""

import gc
import weakref

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hermes.core import columns
from hermes.core.columns import RowLog

WIDE = st.integers(-2**62, 2**62) | st.integers(-2**31 - 1, 2**31) | st.integers(-3, 3)


@given(st.lists(st.tuples(WIDE, WIDE, st.just(7)), max_size=40))
def test_columns_are_the_rows(rows):
    patched, columns._ROWS = columns._ROWS, 16   # several pieces
    try:
        log = RowLog(("a", "b", "c"), frozenset("b"))
    finally:
        columns._ROWS = patched
    for row in rows:
        log.add(*row)
    assert len(log) == len(rows)
    found = log.columns()
    for name, expected in zip("abc", zip(*rows, strict=True) if rows else ((), (), ()), strict=True):
        assert found[name].tolist() == list(expected)
    assert found["a"].dtype == np.int64
    fits = all(-2**31 <= row[1] < 2**31 for row in rows)
    equal = len({row[1] for row in rows}) <= 1
    assert found["b"].dtype == (np.int32 if fits and not equal else np.int64)


def test_a_log_that_was_read_keeps_no_rows():
    log = RowLog(("a", "b"))
    for i in range(3):
        log.add(i, 5)
    log.flush()
    piece = weakref.ref(log._packed[0][0])
    log.columns()
    gc.collect()
    assert piece() is None
