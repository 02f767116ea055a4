"""Convert the kernel tables of aiconfigurator-core (NVIDIA, Apache-2.0) to `hw_profiles/kernels`.

    python scripts/build_kernels.py SYSTEMS_FOLDER [CARD ...]

SYSTEMS_FOLDER is `aiconfigurator_core/systems` of the installed or unpacked package. One card gives two files: CARD.npz
holds the measured times, CARD.yaml says where they come from. `hermes.hardware.kernel_tables` describes the format.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np
import pandas as pd

from hermes.calibration.fit.kernels import coded

VERSION = "aiconfigurator-core 0.12.0"
SYSTEMS = {
    "a100-80gb": ("a100_sxm", "0.14.0"), "h100-sxm": ("h100_sxm", "0.24.0"), "h200": ("h200_sxm", "0.24.0"),
    "b200": ("b200_sxm", "0.24.0"),
    "b300": ("b300_sxm", "0.24.0"), "gb200": ("gb200", "0.24.0"),
    "l40s": ("l40s", "0.24.0"), "rtx-pro-6000": ("rtx_pro_6000_server", "0.24.0"),
}
"""Card of hermes -> system of the package, version of vLLM that the tables were measured with."""
GEMM = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
KV = {"bfloat16": "bf16", "fp8": "fp8"}
EXPERTS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "int4_wo": "int4", "nvfp4": "nvfp4",
           "w4a16_mxfp4": "mxfp4"}
ROUTINGS = {"balanced": "balanced", "power_law_1.01": "power_law_1.01", "power_law_1.2": "power_law_1.2"}
SHAPE = ["hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]
COLLECTIVES = {"all_gather": "all_gather", "reduce_scatter": "reduce_scatter"}
HEAD_DIMS = (64, 128, 256)
FEWEST = 0.9    # a table with fewer of its points is left out
NS_PER_MS = 1e6
VALUE_BYTES = 2   # of bf16 and half


def table(rows: pd.DataFrame, axes: list[str], values: list[np.ndarray]) -> np.ndarray:
    """The rows' times on a grid, shape of the axes; the fastest where a point was measured by several kernels."""
    found = rows.groupby(axes)["latency"].min()
    grid = found.reindex(pd.MultiIndex.from_product(values, names=axes)) if len(axes) > 1 else found.reindex(values[0])
    return coded(NS_PER_MS * grid.to_numpy().reshape([len(v) for v in values]))


def gemm(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    rows = pd.read_parquet(folder / "gemm_perf.parquet")
    for dtype, name in GEMM.items():
        part = rows[rows.gemm_dtype == dtype]
        values = [np.sort(part[axis].unique()) for axis in "mnk"]
        if len(part) < FEWEST * np.prod([len(v) for v in values]) or part.empty:
            continue
        arrays[f"gemm/{name}"] = table(part, list("mnk"), values)
        for axis, points in zip("mnk", values, strict=True):
            arrays[f"gemm/{name}/{axis}"] = points.astype(np.int32)


def attention(path: Path, phase: str, arrays: dict[str, np.ndarray]) -> None:
    rows = pd.read_parquet(path)
    if "window_size" in rows:
        rows = rows[rows.window_size == 0]
    rows = rows.assign(length=rows.isl if phase == "prefill" else rows.isl + rows.step)
    for head_dim in HEAD_DIMS:
        for dtype, name in KV.items():
            part = rows[(rows.head_dim == head_dim) & (rows.kv_cache_dtype == dtype)]
            if part.empty:
                continue
            pairs = sorted(set(zip(part.num_heads, part.num_key_value_heads, strict=True)))
            index = {pair: i for i, pair in enumerate(pairs)}
            both = zip(part.num_heads, part.num_key_value_heads, strict=True)
            part = part.assign(pair=[index[pair] for pair in both])
            axes = ["pair", "length", "batch_size"]
            values = [np.sort(part[axis].unique()) for axis in axes]
            key = f"{phase}/{head_dim}/{name}"
            arrays[key] = table(part, axes, values)
            arrays[f"{key}/heads"] = np.array(pairs, dtype=np.int32)
            arrays[f"{key}/length"], arrays[f"{key}/batch"] = values[1].astype(np.int32), values[2].astype(np.int32)


def _in_bytes(rows: pd.DataFrame) -> pd.DataFrame:
    """The package's `message_size` counts values of 16 bits: 8-bit messages of twice the size take the same time."""
    return rows.assign(bytes=VALUE_BYTES * rows.message_size).rename(columns={"num_gpus": "ranks"})


def all_reduce(path: Path, arrays: dict[str, np.ndarray]) -> None:
    rows = _in_bytes(pd.read_parquet(path))
    for backend, name in (("vllm_graph", "captured"), ("vllm_eager", "launched")):
        part = rows[rows.backend == backend]
        values = [np.sort(part[axis].unique()) for axis in ("ranks", "bytes")]
        arrays[f"all_reduce/{name}"] = table(part, ["ranks", "bytes"], values)
        arrays["all_reduce/ranks"], arrays["all_reduce/bytes"] = (v.astype(np.int64) for v in values)


def experts(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Grouped products of a mixture's experts: times by (shape, tokens), one array for each routing of the tokens."""
    if not path.exists():
        return
    rows = pd.read_parquet(path)
    tokens = np.sort(rows.num_tokens.unique())
    for dtype, name in EXPERTS.items():
        part = rows[rows.moe_dtype == dtype]
        if part.empty:
            continue
        shapes = np.unique(part[SHAPE].to_numpy(), axis=0)
        index = pd.MultiIndex.from_product([range(len(shapes)), tokens])
        of_shape = {tuple(shape): i for i, shape in enumerate(shapes.tolist())}
        part = part.assign(shape=[of_shape[tuple(shape)] for shape in part[SHAPE].to_numpy().tolist()])
        for routing, ours in ROUTINGS.items():
            found = part[part.distribution == routing].groupby(["shape", "num_tokens"])["latency"].min()
            arrays[f"experts/{name}/{ours}"] = coded(
                NS_PER_MS * found.reindex(index).to_numpy().reshape(len(shapes), len(tokens)))
        arrays[f"experts/{name}/shape"] = shapes.astype(np.int32)
        arrays[f"experts/{name}/tokens"] = tokens.astype(np.int32)


def collectives(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """All-gathers and reduce-scatters of NCCL between devices of one machine, in 16 bits."""
    files = sorted(folder.glob("*/nccl_perf.parquet"), key=lambda path: [int(n) for n in path.parent.name.split(".")])
    if not files:
        return
    rows = pd.read_parquet(files[-1])
    rows = rows[(rows.nccl_dtype == "half") & (rows.op_name.isin(COLLECTIVES))]
    rows = _in_bytes(rows[rows.num_gpus <= 8])
    values = [np.sort(rows[axis].unique()) for axis in ("ranks", "bytes")]
    for op, name in COLLECTIVES.items():
        arrays[f"{name}/nccl"] = table(rows[rows.op_name == op], ["ranks", "bytes"], values)
    arrays["nccl/ranks"], arrays["nccl/bytes"] = (v.astype(np.int64) for v in values)


def build(systems: Path, card: str, out: Path) -> None:
    system, version = SYSTEMS[card]
    data = systems / "data" / system
    arrays: dict[str, np.ndarray] = {}
    gemm(data / "gemm" / "vllm" / version, arrays)
    for phase, name in (("prefill", "context"), ("decode", "generation")):
        attention(data / "attention" / "vllm" / version / f"{name}_attention_perf.parquet", phase, arrays)
    measured = (data / "comm" / "vllm").glob("*/custom_allreduce_perf.parquet")
    newest = max(measured, key=lambda path: [int(part) for part in path.parent.name.split(".")])
    all_reduce(newest, arrays)
    experts(data / "moe" / "vllm" / version / "moe_perf.parquet", arrays)
    collectives(data / "comm" / "nccl", arrays)
    path = out / f"{card}.npz"
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)   # type: ignore[arg-type]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    tables = ", ".join(key for key in arrays if arrays[key].ndim > 1 and not key.endswith(("heads", "shape")))
    (out / f"{card}.yaml").write_text(
        f"# Kernel times of {card}, measured one kernel at a time; the times are in {card}.npz.\n"
        f"format: hermes-kernels/1\nname: {card}\ndevice: {card}\nengine: vllm {version}\n"
        f"tables: [{tables}]\nsha256: {digest}\n"
        f"source: {VERSION} (PyPI, NVIDIA, Apache-2.0), vllm {version} tables of {system} (all-reduce of vllm "
        f"{newest.parent.name}); converted to\n"
        "  1000 * ln(nanoseconds) in int16 (steps of 0.1%), sliding windows left out\n"
        "license: Apache-2.0, SPDX-FileCopyrightText (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES\n",
        encoding="utf-8",
    )
    print(f"{card}: {path.stat().st_size / 1e3:,.0f} kB, {tables}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])   # type: ignore[union-attr]
    parser.add_argument("systems", type=Path)
    parser.add_argument("cards", nargs="*", default=list(SYSTEMS))
    parser.add_argument("-o", "--out", type=Path, default=Path(__file__).parents[1] / "hw_profiles" / "kernels")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for card in args.cards:
        build(args.systems, card, args.out)


if __name__ == "__main__":
    main()
