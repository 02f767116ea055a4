"""Made-up machines whose step times are known, and steps measured on them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hermes.calibration.steps import STATS, MeasuredSteps, StepsHeader, tidy_rows
from hermes.testing.hardware import batch


def measured(batches, seconds, configurations, **columns):
    """Steps from lists: `batches` are (prefills, contexts) as `hermes.testing.hardware.batch` takes them."""
    stats = [batch(*entry) for entry in batches]
    rows = pd.DataFrame({name: [getattr(entry, name) for entry in stats] for name in STATS})
    header = StepsHeader(
        name="machine", hardware="a machine", engine="none", model="none", dtype="bf16", date="2026-01-01",
        clock="made up", source="made up",
    )
    rows = rows.assign(time_s=seconds, configuration=configurations, **columns)
    return MeasuredSteps(header, tidy_rows(rows, "rows"))


def gpu_seconds(prefills, contexts):
    """Prefills bound by arithmetic above 256 tokens, decodes by memory, with a kernel that changes its tile at 64."""
    tokens = sum(n for n, _ in prefills)
    pairs = sum(n * past + n * (n + 1) / 2 for n, past in prefills)
    decodes = len(contexts)
    if prefills:
        return 0.012 + 5e-5 * max(0, tokens + decodes - 256) + 4e-10 * pairs + 2e-8 * sum(contexts)
    return 0.009 + 2e-5 * decodes + 0.002 * (decodes > 64) + 2e-8 * sum(contexts)


def cpu_seconds(prefills, contexts):
    """Everything adds up."""
    pairs = sum(n * past + n * (n + 1) / 2 for n, past in prefills)
    tokens = sum(n for n, _ in prefills) + len(contexts)
    return 0.02 + 3e-4 * tokens + 8e-8 * pairs + 1e-6 * sum(contexts) + 2e-4 * max(0, len(contexts) - 8)


def grid():
    """Prefills with and without past, and decodes, every one a configuration of its own."""
    for n in (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
        for past in (0, 1000, 8000):
            yield [(n, past)], []
            yield [(n // 2, past)] * 2, []
    for seqs in (1, 2, 4, 8, 16, 32, 48, 64, 96, 128):
        for context in (100, 400, 1600, 6400):
            yield [], [context] * seqs


def gpu_and_mixed_steps(noise=0.01, mixed=0.9, seed=2, every=1):
    """The grid with some mixed steps, which take `mixed` times what the machine should: the phases do not meet.

    every: 2 takes every second point of the grid, which is fitted in a fraction of the time.
    """
    rng = np.random.default_rng(seed)
    entries = list(grid())[::every]
    entries += [([(n, 0)], [800] * seqs) for n in (64, 256, 1024, 4096) for seqs in (1, 8, 32, 64)]
    seconds = [gpu_seconds(*entry) * (mixed if all(entry) else 1) * rng.normal(1, noise) for entry in entries]
    return measured(entries, seconds, [str(entry) for entry in entries])


def gpu_steps(noise=0.0, repetitions=1, seed=1, every=1):
    """A grid measured on the GPU, or every second point of it and so on, some steps repeated."""
    rng = np.random.default_rng(seed)
    entries = [entry for entry in list(grid())[::every] for _ in range(repetitions)]
    names = [f"{prefills} {len(contexts)} x {contexts[:1]}" for prefills, contexts in entries]
    seconds = [gpu_seconds(*entry) * rng.normal(1, noise) for entry in entries]
    return measured(entries, seconds, names, repetition=[i % repetitions for i in range(len(entries))])


def cpu_steps(noise=0.02, configurations=12, steps=30, seed=1):
    """Steps of an engine that ran with several settings: mostly mixed and decode steps, no grid."""
    rng = np.random.default_rng(seed)
    entries, names = [], []
    for i in range(configurations):
        for _ in range(steps):
            kind = rng.integers(0, 5)
            prefills = [(int(rng.integers(1, 64 << i % 5)), int(rng.integers(0, 500)))] if kind < 3 else []
            contexts = [int(c) for c in rng.integers(10, 1500, rng.integers(1, 4 << i % 4))] if kind else []
            entries.append((prefills, contexts))
            names.append(f"settings {i}")
    seconds = np.array([cpu_seconds(*entry) for entry in entries])
    seconds *= rng.normal(1, noise, len(seconds))
    overhead = np.full(len(seconds), 0.001) * rng.normal(1, 0.05, len(seconds))
    return measured(entries, seconds + 0.001, names, overhead_s=overhead)
