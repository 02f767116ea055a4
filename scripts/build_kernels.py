"""Convert the kernel tables of aiconfigurator-core (NVIDIA, Apache-2.0) to `hw_profiles/kernels`.

    python scripts/build_kernels.py SYSTEMS_FOLDER [NAME ...]

SYSTEMS_FOLDER is `aiconfigurator_core/systems` of the installed or unpacked package. NAME is a card (its tables of
vLLM), CARD-sglang or CARD-trtllm. Each gives two files: NAME.npz holds the measured times, NAME.yaml says where they
come from. `hermes.hardware.composed.kernel_tables` describes the format.

Not every measured time is one of a kernel:

- Products of FP8 blocks that vLLM's collector launched from the host take 57 to 92 us on Hopper and 155 to 270 us on
  Blackwell, however small they are: the launch. Cells below `HIDDEN` times the least time of their kernel are left out,
  and those of the same kernel (DeepGEMM) that SGLang's collector timed inside a CUDA graph take their place.
- A table that contradicts the bytes it reads and its neighbours is refused (`contradicts`), and printed: experts with
  one FP8 scale on Hopper, vLLM 0.24 (FlashInfer's CUTLASS kernels), take 3 to 4 times as long as those of twice the
  bytes. Where an earlier version of the same engine has the table, that one counts.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np
import pandas as pd

from hermes.calibration.fit.kernels import coded
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.models import precision

VERSION = "aiconfigurator-core 0.12.0"
CARDS = {"a100-80gb": "a100_sxm", "h100-sxm": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "b300": "b300_sxm",
         "gb200": "gb200", "l40s": "l40s", "rtx-pro-6000": "rtx_pro_6000_server"}
"""Card of hermes -> system of the package."""
ENGINES = ("vllm", "sglang", "trtllm")
VERSIONS = {"vllm": "0.24.0", "sglang": "0.5.14", "trtllm": "1.3.0rc20"}
OLDER = {("a100-80gb", "vllm"): "0.14.0", ("a100-80gb", "sglang"): "0.5.10"}
LEFT_OUT = {("a100-80gb", "trtllm")}   # of 2025
GEMM = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
KV = {"bfloat16": "bf16", "fp8": "fp8"}
EXPERTS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "int4_wo": "int4", "nvfp4": "nvfp4",
           "w4a16_mxfp4": "mxfp4"}
ROUTINGS = ("balanced", "power_law_1.01")
SHAPE = ["hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]
COLLECTIVES = {"all_gather": "all_gather", "reduce_scatter": "reduce_scatter"}
HEAD_DIMS = (64, 128, 256)
FEWEST = 0.9    # a table with fewer of its points is left out
NS_PER_MS = 1e6
VALUE_BYTES = 2   # of bf16 and half
HIDDEN = 3.0      # times the least time of a kernel below which its launch from the host may hide it
LAUNCHED = 4e-2   # milliseconds; the least time of a kernel that was launched from the host is at least this
TWICE = 2.0       # times its neighbours' slowdown from which on a table of experts is refused
SLOWER = 1.3      # times the wide experts' from which on the file says so
FEW, MANY = 4, 1024   # tokens
LONG = 4096       # tokens of a prompt
UNFOLDED = 128 + 64 + 128   # operations of a pair and head are twice these: widths of a query and of a value
FOLDED = 0.25     # of the peak arithmetic
STREAMED = 0.1    # of a shape's experts are read: few tokens, bound by memory

Arrays = dict[str, np.ndarray]


def table(rows: pd.DataFrame, axes: list[str], values: list[np.ndarray]) -> np.ndarray:
    """The rows' times on a grid, shape of the axes; the fastest where a point was measured by several kernels."""
    found = rows.groupby(axes)["latency"].min()
    grid = found.reindex(pd.MultiIndex.from_product(values, names=axes)) if len(axes) > 1 else found.reindex(values[0])
    return coded(NS_PER_MS * grid.to_numpy().reshape([len(v) for v in values]))


def gemm(rows: pd.DataFrame, captured: pd.DataFrame, arrays: Arrays, notes: list[str]) -> None:
    """captured: SGLang's products of the card, for those whose launch from the host hides the kernel."""
    for dtype, name in GEMM.items():
        part = rows[rows.gemm_dtype == dtype]
        values = [np.sort(part[axis].unique()) for axis in "mnk"]
        if len(part) < FEWEST * np.prod([len(v) for v in values]) or part.empty:
            continue
        least = part.groupby("kernel_source")["latency"].transform("min")
        hidden = (least >= LAUNCHED) & (part.latency < HIDDEN * least)
        if hidden.any():
            part = _without_launches(part, hidden, least, name, [captured[captured.gemm_dtype == dtype],
                                                                 rows[rows.gemm_dtype == "fp8"]], notes)
        arrays[f"gemm/{name}"] = table(part, list("mnk"), values)
        for axis, points in zip("mnk", values, strict=True):
            arrays[f"gemm/{name}/{axis}"] = points.astype(np.int32)


def _without_launches(part: pd.DataFrame, hidden: pd.Series, least: pd.Series, name: str, others: list[pd.DataFrame],
                      notes: list[str]) -> pd.DataFrame:
    """Return the products with those of others in place of the hidden ones: SGLang's as they are, the same engine's
    with one scale in the ratio of those that show."""
    axes, shown = list("mnk"), part[~hidden]
    wanted = part[hidden].set_index(axes).index
    floors = 1e3 * least[hidden].unique()
    said = (f"gemm/{name}: {hidden.mean():.0%} of the times are launches from the host ({floors.min():.0f} to "
            f"{floors.max():.0f} us, however small the product) and left out")
    captured, plain = (each[each.set_index(axes).index.isin(wanted)] for each in others)
    if not captured.empty:
        said += f"; in place of {len(captured):,} stand sglang {VERSIONS['sglang']}'s of the same card, in a CUDA graph"
        wanted = wanted.difference(captured.set_index(axes).index)
        plain = plain[plain.set_index(axes).index.isin(wanted)]
    if not plain.empty:
        both = shown.set_index(axes).latency / others[1].set_index(axes).latency
        ratio = float(both.median())
        said += f"; in place of {len(plain):,} those with one scale, times {ratio:.2f} as where both show"
        plain = plain.assign(latency=plain.latency * ratio)
    notes.append(said)
    return pd.concat([shown, captured, plain])


def attention(path: Path, phase: str, arrays: Arrays) -> None:
    rows = pd.read_parquet(path)
    if "window_size" in rows:
        rows = rows[rows.window_size == 0]
    rows = rows.assign(length=rows.isl if phase == "prefill" else rows.isl + rows.step)
    for head_dim in HEAD_DIMS:
        for dtype, name in KV.items():
            part = rows[(rows.head_dim == head_dim) & (rows.kv_cache_dtype == dtype)]
            if not part.empty:
                _attention(part.assign(kv=part.num_key_value_heads), f"{phase}/{head_dim}/{name}", arrays)


def latent(folder: Path, card: str, arrays: Arrays, notes: list[str]) -> None:
    """Latent attention: its kernels alone, without projections. One latent head is cached.

    Engines unfold a prompt's keys and values into heads; a table of prompts that attend to the latent vectors
    themselves, 3.4 times the arithmetic, is refused.
    """
    for file, phase in (("context_mla_perf", "latent_prefill"), ("generation_mla_perf", "latent_decode")):
        path = folder / f"{file}.parquet"
        if not path.exists():
            continue
        rows = pd.read_parquet(path)
        rows = rows.assign(length=rows.isl if phase == "latent_prefill" else rows.isl + rows.step - 1, kv=1)
        for dtype, name in KV.items():
            part = rows[(rows.kv_cache_dtype == dtype) & (rows.mla_dtype == "bfloat16")]
            part = rows[rows.kv_cache_dtype == dtype] if part.empty else part
            long = part[part.length >= LONG] if phase == "latent_prefill" else part[:0]
            if not long.empty:
                done = long.batch_size * long.length * (long.length + 1) * long.num_heads * UNFOLDED
                share = float((done / (1e-3 * long.latency)).median()) / load_device(card).peak("bf16")
                if share < FOLDED:
                    notes.append(f"{phase}/{name}: refused, prompts that attend to latent vectors (unfolded they would "
                                 f"reach {share:.0%} of the peak)")
                    continue
            if not part.empty:
                _attention(part, f"{phase}/{name}", arrays)


def _attention(part: pd.DataFrame, key: str, arrays: Arrays) -> None:
    pairs = sorted(set(zip(part.num_heads, part.kv, strict=True)))
    index = {pair: i for i, pair in enumerate(pairs)}
    part = part.assign(pair=[index[pair] for pair in zip(part.num_heads, part.kv, strict=True)])
    axes = ["pair", "length", "batch_size"]
    values = [np.sort(part[axis].unique()) for axis in axes]
    arrays[key] = table(part, axes, values)
    arrays[f"{key}/heads"] = np.array(pairs, dtype=np.int32)
    arrays[f"{key}/length"], arrays[f"{key}/batch"] = values[1].astype(np.int32), values[2].astype(np.int32)


def _in_bytes(rows: pd.DataFrame) -> pd.DataFrame:
    """The package's `message_size` counts values of 16 bits: 8-bit messages of twice the size take the same time."""
    return rows.assign(bytes=VALUE_BYTES * rows.message_size).rename(columns={"num_gpus": "ranks"})


def all_reduce(path: Path, arrays: Arrays) -> None:
    rows = _in_bytes(pd.read_parquet(path))
    ways = rows.backend if "backend" in rows else rows.framework   # of one way of launching
    graph, launched = ways.str.endswith("_graph"), ways.str.endswith("_eager")
    if not graph.any():
        graph = launched = ways.notna()
    for which, name in ((graph, "captured"), (launched, "launched")):
        part = rows[which]
        values = [np.sort(part[axis].unique()) for axis in ("ranks", "bytes")]
        arrays[f"all_reduce/{name}"] = table(part, ["ranks", "bytes"], values)
        arrays["all_reduce/ranks"], arrays["all_reduce/bytes"] = (v.astype(np.int64) for v in values)


def _slowdown(rows: pd.DataFrame, card: str, value_bytes: float) -> float:
    """Median time over that of reading the experts at the card's memory bandwidth, where few tokens read few."""
    few = rows[rows.num_tokens * rows.topk <= STREAMED * rows.num_experts]
    few = few if not few.empty else rows[rows.num_tokens <= rows.num_tokens.min()]
    read = np.maximum(few.num_tokens * few.topk / few.moe_ep_size, 1.0)
    weights = 3.0 * few.hidden_size * few.inter_size / few.moe_tp_size
    seconds = read * weights * value_bytes / load_device(card).memory_bandwidth
    return float(np.median(1e-3 * few.latency / seconds))


def _per_byte(rows: pd.DataFrame, wide: pd.DataFrame) -> float:
    """Median time over that of the wide experts of the same shapes and numbers of tokens; nan without any."""
    keys = [*SHAPE, "num_tokens", "distribution"]
    both = rows.groupby(keys)["latency"].min().to_frame("own").join(
        wide.groupby(keys)["latency"].min().rename("wide"), how="inner")
    return float((both.own / both.wide).median())


def _over_wide(part: pd.DataFrame, wide: pd.DataFrame, card: str, name: str) -> float:
    """Times of narrow experts over those of wide ones, which are more bytes; 0 where the table has no wide ones."""
    if name == "bf16" or wide.empty:
        return 0.0
    ratio = _per_byte(part, wide)
    if np.isfinite(ratio):
        return ratio
    narrow, full = (precision(each).layer_bytes for each in (name.replace("_", "-"), "bf16"))
    return _slowdown(part, card, narrow) * narrow / (_slowdown(wide, card, full) * full)


def _slower(part: pd.DataFrame, wide: pd.DataFrame, name: str, notes: list[str]) -> None:
    """Note where narrow experts were measured slower than wide ones of the same shapes."""
    if name == "bf16" or wide.empty:
        return
    found = []
    for which, said in ((part.num_tokens <= FEW, f"up to {FEW} tokens"), (part.num_tokens >= MANY, f"from {MANY} on")):
        keys = [*SHAPE, "num_tokens", "distribution"]
        both = part[which].groupby(keys)["latency"].min().to_frame("own").join(
            wide.groupby(keys)["latency"].min().rename("wide"), how="inner")
        ratio = (both.own / both.wide).quantile(0.9)
        if ratio > SLOWER:
            found.append(f"{said} up to {ratio:.1f} times")
    if found:
        kernels = ", ".join(sorted(part.kernel_source.unique()))
        notes.append(f"experts/{name} ({kernels}): measured slower than bf16 experts, {' and '.join(found)}")


def experts(files: list[Path], card: str, arrays: Arrays, notes: list[str]) -> None:
    """Grouped products of a mixture's experts: times by (shape, tokens), one array for each routing of the tokens.

    files: those of the engine's versions, the one wanted first
    """
    tables = [(path.parent.name, pd.read_parquet(path)) for path in files]
    for dtype, name in EXPERTS.items():
        for version, rows in tables:
            part, wide = rows[rows.moe_dtype == dtype], rows[rows.moe_dtype == "bfloat16"]
            if part.empty:
                continue
            ratio = _over_wide(part, wide, card, name)
            if ratio > TWICE:
                kernels = ", ".join(sorted(part.kernel_source.unique()))
                notes.append(f"experts/{name} of {version} ({kernels}): refused, {ratio:.1f} times the time of bf16 "
                             "experts, which are more bytes")
                continue
            if version != tables[0][0]:
                notes.append(f"experts/{name}: those of version {version}")
            _slower(part, wide, name, notes)
            shapes = np.unique(part[SHAPE].to_numpy(), axis=0)
            tokens = np.sort(part.num_tokens.unique())
            index = pd.MultiIndex.from_product([range(len(shapes)), tokens])
            of_shape = {tuple(shape): i for i, shape in enumerate(shapes.tolist())}
            part = part.assign(shape=[of_shape[tuple(shape)] for shape in part[SHAPE].to_numpy().tolist()])
            for routing in ROUTINGS:
                found = part[part.distribution == routing].groupby(["shape", "num_tokens"])["latency"].min()
                if not found.empty:
                    arrays[f"experts/{name}/{routing}"] = coded(
                        NS_PER_MS * found.reindex(index).to_numpy().reshape(len(shapes), len(tokens)))
            arrays[f"experts/{name}/shape"] = shapes.astype(np.int32)
            arrays[f"experts/{name}/tokens"] = tokens.astype(np.int32)
            break


def collectives(folder: Path, arrays: Arrays) -> None:
    """All-gathers and reduce-scatters of NCCL between devices of one machine, in 16 bits."""
    files = _newest_first(folder.glob("*/nccl_perf.parquet"))
    if not files:
        return
    rows = pd.read_parquet(files[0])
    rows = rows[(rows.nccl_dtype == "half") & (rows.op_name.isin(COLLECTIVES))]
    rows = _in_bytes(rows[rows.num_gpus <= 8])
    values = [np.sort(rows[axis].unique()) for axis in ("ranks", "bytes")]
    for op, name in COLLECTIVES.items():
        arrays[f"{name}/nccl"] = table(rows[rows.op_name == op], ["ranks", "bytes"], values)
    arrays["nccl/ranks"], arrays["nccl/bytes"] = (v.astype(np.int64) for v in values)


def _newest_first(files: object) -> list[Path]:
    def numbers(path: Path) -> list[int]:
        return [int(n) for n in path.parent.name.replace("rc", ".").replace(".post", ".").split(".")]

    return sorted(files, key=numbers, reverse=True)   # type: ignore[call-overload, no-any-return]


def build(systems: Path, card: str, engine: str, out: Path) -> None:
    data = systems / "data" / CARDS[card]
    version = OLDER.get((card, engine), VERSIONS[engine])
    arrays: Arrays = {}
    notes: list[str] = []
    captured = data / "gemm" / "sglang" / OLDER.get((card, "sglang"), VERSIONS["sglang"]) / "gemm_perf.parquet"
    gemm(pd.read_parquet(data / "gemm" / engine / version / "gemm_perf.parquet"), pd.read_parquet(captured), arrays,
         notes)
    for phase, name in (("prefill", "context"), ("decode", "generation")):
        attention(data / "attention" / engine / version / f"{name}_attention_perf.parquet", phase, arrays)
    latent(data / "mla" / engine / version, card, arrays, notes)
    reduces = _newest_first((data / "comm" / engine).glob("*/custom_allreduce_perf.parquet"))[0]
    all_reduce(reduces, arrays)
    files = _newest_first((data / "moe" / engine).glob("*/moe_perf.parquet"))
    experts(sorted(files, key=lambda path: path.parent.name != version), card, arrays, notes)
    collectives(data / "comm" / "nccl", arrays)
    said = f"(all-reduce of {engine} {reduces.parent.name})"
    _write(out, card if engine == "vllm" else f"{card}-{engine}", card, f"{engine} {version}", said, arrays, notes)


def _write(out: Path, name: str, card: str, engine: str, what: str, arrays: Arrays, notes: list[str]) -> None:
    path = out / f"{name}.npz"
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)   # type: ignore[arg-type]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    tables = ", ".join(key for key in arrays if arrays[key].ndim > 1 and not key.endswith(("heads", "shape")))
    said = "".join(f'- "{note}"\n' for note in notes)
    (out / f"{name}.yaml").write_text(
        f"# Kernel times of {card}, measured one kernel at a time; the times are in {name}.npz.\n"
        f"format: hermes-kernels/1\nname: {name}\ndevice: {card}\nengine: {engine}\n"
        f"tables: [{tables}]\nsha256: {digest}\n"
        f"source: {VERSION} (PyPI, NVIDIA, Apache-2.0), {engine} tables of {CARDS[card]} {what}; converted to\n"
        "  1000 * ln(nanoseconds) in int16 (steps of 0.1%), sliding windows left out\n"
        + (f"notes:\n{said}" if notes else "") +
        "license: Apache-2.0, SPDX-FileCopyrightText (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES\n",
        encoding="utf-8",
    )
    print(f"{name}: {path.stat().st_size / 1e3:,.0f} kB, {tables}", *notes, sep="\n  ")


def main() -> None:
    names = {card if engine == "vllm" else f"{card}-{engine}": (card, engine)
             for card in CARDS for engine in ENGINES if (card, engine) not in LEFT_OUT}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])   # type: ignore[union-attr]
    parser.add_argument("systems", type=Path)
    parser.add_argument("names", nargs="*", default=list(names))
    parser.add_argument("-o", "--out", type=Path, default=Path(__file__).parents[1] / "hw_profiles" / "kernels")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names:
        build(args.systems, *names[name], args.out)


if __name__ == "__main__":
    main()
