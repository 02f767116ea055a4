"""Kernel tables that a user measured: cold caches, single precision, element-wise operators, the sampler."""

from __future__ import annotations

import hashlib
import io
import shutil

import numpy as np
import pytest

from hermes.calibration.fit.kernels import save_kernels
from hermes.config.data_files import resource_dir
from hermes.errors import InputError
from hermes.hardware import StepStats, load_model
from hermes.hardware.composed import Composed
from hermes.hardware.composed.kernel_curves import cold_decode_times
from hermes.hardware.composed.kernel_tables import AttentionTable, KernelsFile, load_kernels, shipped_kernels
from hermes.hardware.descriptions.models import precision
from hermes.testing.hardware import MonotoneHardwareModelContract

LAYERS, HEADS, KV_HEADS, DIM, HIDDEN, INNER, VOCAB = 2, 4, 2, 16, 64, 96, 500
MODEL = (f"name: tiny\nhidden_size: {HIDDEN}\nnum_layers: {LAYERS}\nnum_heads: {HEADS}\nnum_kv_heads: {KV_HEADS}\n"
         f"head_dim: {DIM}\nintermediate_size: {INNER}\nvocab_size: {VOCAB}\ndtype: fp32\n")
DEVICE = ("name: mine\ntype: cpu\nflops: {fp32: 1.0e+11}\nmemory_bandwidth: 20 GB/s\nmemory: 8 GB\n"
          "link_bandwidth: 16 GB/s\nhost_bandwidth: 16 GB/s\nefficiency: cpu\nkernels: mine-kernels.yaml\n"
          "mixed_attention: apart\nsources: [made up]\n")
ROWS = np.array([1.0, 4, 16, 64, 256])
GEMMS = {"qkv": (128, 64), "o_proj": (64, 64), "gate_up": (192, 64), "down": (64, 96), "lm_head": (500, 64)}


def gemm_ns(rows, n, k):
    return 3000 + rows * n * k / 40


def row_ns(rows, width):
    return 700 + rows * width / 3


def decode_ns(batch, length):
    return 9000 + 400 * batch + batch * length * 12


def prefill_ns(batch, length):
    return batch * (5000 + length**2 * 8)


def write(folder):
    """Tables of a machine whose times are known, and a device file that names them."""
    arrays: dict[str, np.ndarray] = {"all_reduce/ranks": np.array([2]), "all_reduce/bytes": np.array([256, 65536])}
    for kind in ("captured", "launched"):
        arrays[f"all_reduce/{kind}"] = np.array([[20_000.0, 90_000.0]])
    ns, ks = (np.array(sorted({shape[i] for shape in GEMMS.values()}), dtype=float) for i in (0, 1))
    gemm = np.full((len(ROWS), len(ns), len(ks)), np.nan)
    for n, k in GEMMS.values():
        gemm[:, list(ns).index(n), list(ks).index(k)] = gemm_ns(ROWS, n, k)
    arrays |= {"gemm/fp32": gemm, "gemm/fp32/m": ROWS, "gemm/fp32/n": ns, "gemm/fp32/k": ks}
    lengths, batches = np.array([16.0, 64, 128, 512]), np.array([1.0, 4, 16])
    for phase, cost in (("prefill", prefill_ns), ("decode", decode_ns)):
        key = f"{phase}/{DIM}/fp32"
        arrays |= {key: cost(batches[None, :], lengths[:, None])[None], f"{key}/heads": np.array([[HEADS, KV_HEADS]]),
                   f"{key}/length": lengths, f"{key}/batch": batches}
    widths = {"norm": HIDDEN, "residual": HIDDEN, "embedding": HIDDEN, "rotary": (HEADS + KV_HEADS) * DIM,
              "activation": INNER, "sampling": VOCAB}
    for name, width in widths.items():
        key = f"rows/{name}/fp32"
        arrays |= {key: row_ns(ROWS, width)[:, None], f"{key}/rows": ROWS, f"{key}/width": np.array([float(width)])}
    header = KernelsFile(format="hermes-kernels/1", name="mine", device="mine", engine="none", tables=["gemm/fp32"],
                         sha256="", cold=True, source="made up", license="none")
    save_kernels(header, arrays, folder / "mine-kernels.yaml")
    (folder / "mine.yaml").write_text(DEVICE)
    (folder / "tiny.yaml").write_text(MODEL)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path)
    return tmp_path


def build(folder, **options):
    return Composed(model="./tiny.yaml", device="./mine.yaml", step={}, **options).build(folder)


def test_a_step_is_the_sum_of_what_was_measured(folder):
    """A prompt of 60 tokens beside 4 decodes over 128 tokens each: 64 rows, 5 of them sampled."""
    model = build(folder)
    stats = StepStats(prefill_seqs=1, prefill_tokens=60, prefill_attn=60 * 61 // 2, prefill_max=60, decode_seqs=4,
                      decode_ctx=4 * 127, decode_ctx_max=127, sampled=5)
    terms = model.terms_ns(stats)
    for name, (n, k) in GEMMS.items():
        rows, layers = (5, 1) if name == "lm_head" else (64, LAYERS)
        assert terms[name] == pytest.approx(layers * gemm_ns(rows, n, k), rel=0.05), name
    widths = [HIDDEN] * 4 + [(HEADS + KV_HEADS) * DIM, INNER]
    by_hand = LAYERS * sum(row_ns(64, width) for width in widths) + 2 * row_ns(64, HIDDEN)
    assert terms["elementwise"] == pytest.approx(by_hand, rel=0.02)
    assert terms["sampling"] == pytest.approx(row_ns(5, VOCAB), rel=0.05)   # between 4 and 16 rows
    assert terms["decodes_beside_prompt"] == pytest.approx(LAYERS * decode_ns(4, 128), rel=0.02)
    assert terms["attention_of_prompts"] == pytest.approx(LAYERS * prefill_ns(1, 60), rel=0.1)
    assert all("mine" in source for name, source in model.sources_of().items()
               if name in terms and name not in ("engine", "decodes_beside_prompt"))


def test_two_ranks_add_the_measured_all_reduces(folder):
    terms = build(folder, tp=2).terms_ns(StepStats(decode_seqs=1, decode_ctx=9, decode_ctx_max=9, sampled=1))
    assert terms["all_reduce"] == pytest.approx(2 * LAYERS * 20_000, rel=0.01)   # 64 values of 4 bytes


def test_no_sort_no_sampler(folder):
    stats = StepStats(decode_seqs=1, decode_ctx=9, decode_ctx_max=9, sampled=1)
    assert build(folder, top_p=False).terms_ns(stats)["sampling"] == 0.0


def test_cold_decodes_are_a_launch_and_the_bytes_they_read():
    lengths, batches = np.array([16.0, 1024, 8192]), np.array([1.0, 8, 64])
    ns = 5000 + 30 * batches[None, :] + batches[None, :] * lengths[:, None] * 2 * 8 * 128 * 2 / 3000
    ns[2, 2] = np.nan   # more than the memory held
    table = AttentionTable([(32, 8)], lengths, batches, ns[None])
    found = cold_decode_times(table, 32, 8, 128, 128, precision("bf16").other_bytes, np.array([1.0, 8, 64, 128]))
    assert found.per_token == pytest.approx(2 * 8 * 128 * 2 / 3000)
    assert found.launch[:3] == pytest.approx(5000 + 30 * batches)
    assert found.launch[3] == pytest.approx(2 * found.launch[2])
    assert found.added


def test_single_precision_on_a_card_with_tables_of_16_bits_is_the_rooflines():
    """A product of 32-bit values is not that of 16-bit ones, nor is attention over them."""
    found = Composed(model="llama-3.1-8b", device="h100-sxm", dtype="fp32").build().sources_of()
    assert all("roofline" in found[name] for name in ("qkv", "lm_head", "attention_of_prompts"))
    assert load_model("llama-3.1-8b").dtype == ""


class TestOwnTables(MonotoneHardwareModelContract):
    @pytest.fixture(autouse=True)
    def _tables(self, tmp_path):
        write(tmp_path)
        self.folder = tmp_path

    def make(self):
        return build(self.folder)


@pytest.mark.parametrize("name", shipped_kernels())
def test_shipped_tables_have_the_digest_that_they_state(name):
    assert load_kernels(name).file.name


def test_tables_are_checked_against_their_digest(tmp_path):
    for suffix in ("yaml", "npz"):
        shutil.copy(resource_dir("hw_profiles") / "kernels" / f"l40s.{suffix}", tmp_path / f"l40s.{suffix}")
    stated = load_kernels(tmp_path / "l40s.yaml").file.sha256
    times = tmp_path / "l40s.npz"
    with np.load(times) as stored:
        arrays = {key: stored[key] for key in stored.files}
    arrays["gemm/bf16"] = arrays["gemm/bf16"] + 100   # every product takes 10% longer
    np.savez_compressed(times, **arrays)
    found = hashlib.sha256(times.read_bytes()).hexdigest()
    with pytest.raises(InputError, match=rf"l40s\.npz: .*l40s\.yaml states, {stated} .*found {found}"):
        load_kernels(tmp_path / "l40s.yaml")
    text = (tmp_path / "l40s.yaml").read_text()
    (tmp_path / "l40s.yaml").write_text(text.replace(stated, '""'))
    with pytest.raises(InputError, match=rf"states, none .*found {found}"):
        load_kernels(tmp_path / "l40s.yaml")


def _changed(key, change):
    def made(arrays):
        out = io.BytesIO()
        np.savez(out, **{name: change(values) if name == key else values for name, values in arrays.items()})
        return out.getvalue()

    return made


@pytest.mark.parametrize(("made", "message"), [
    (lambda arrays: b"", r"a readable file of kernel times \(EOFError\)"),
    (lambda arrays: b"PK\3\4 cut", r"a readable file of kernel times"),
    (_changed("gemm/bf16", lambda values: values[:1]), r"gemm/bf16: expected int16 of shape \(74, 22, 22\)"),
    (_changed("gemm/bf16/m", lambda values: np.array("text")), r"gemm/bf16/m: expected ascending numbers"),
    (_changed("decode/128/bf16/heads", lambda values: values[0]), r"heads: expected rows of 2 integers"),
    (_changed("all_reduce/ranks", lambda values: values * np.nan), r"all_reduce/ranks: expected ascending numbers"),
])
def test_malformed_tables_are_refused(made, message, tmp_path):
    folder = resource_dir("hw_profiles") / "kernels"
    raw = made(dict(np.load(folder / "l40s.npz")))
    (tmp_path / "mine.npz").write_bytes(raw)
    lines = (folder / "l40s.yaml").read_text().splitlines()
    stated = [f"sha256: {hashlib.sha256(raw).hexdigest()}" if line.startswith("sha256:") else line for line in lines]
    (tmp_path / "mine.yaml").write_text("\n".join(stated))
    with pytest.raises(InputError, match=rf"mine\.npz: .*{message}"):
        load_kernels(tmp_path / "mine.yaml")


@pytest.mark.parametrize(("name", "change", "says"), [
    ("empty", None, "a readable file of kernel times"),
    ("gemm/bf16/m", lambda axis: axis[::-1], "gemm/bf16/m: expected ascending numbers"),
    ("gemm/bf16/m", lambda axis: axis[:-1], "gemm/bf16: expected int16 of shape"),
    ("gemm/bf16", lambda times: times.astype(float), "gemm/bf16: expected int16 of shape"),
    ("gemm/bf16/k", lambda axis: axis.astype(str), "gemm/bf16/k: expected ascending numbers"),
])
def test_damaged_tables_are_refused_in_one_line(tmp_path, name, change, says):
    source = resource_dir("hw_profiles") / "kernels" / "a100-80gb"
    raw = b""
    if change is not None:
        with np.load(source.with_suffix(".npz")) as stored:
            arrays = dict(stored)
        arrays[name] = change(arrays[name])
        out = io.BytesIO()
        np.savez(out, **arrays)
        raw = out.getvalue()
    (tmp_path / "own.npz").write_bytes(raw)
    text = source.with_suffix(".yaml").read_text()
    digest = next(line for line in text.splitlines() if line.startswith("sha256:"))
    (tmp_path / "own.yaml").write_text(text.replace(digest, f"sha256: {hashlib.sha256(raw).hexdigest()}"))
    with pytest.raises(InputError, match=says) as caught:
        load_kernels(tmp_path / "own.yaml")
    assert "\n" not in str(caught.value)
