"""Importer of aiconfigurator-core: NVIDIA's kernel times, composed into steps of vLLM, SGLang, TRT-LLM.

The package is an optional extra (114 MB of tables) and may live in another interpreter (`--python`). It prices a grid
of batches (`remote.ask_aiconfigurator`), mixed steps included, which it composes from the same kernels as pure ones.
Its decodes have equal contexts; the cost of unequal ones is an assumption (`skew`). The tables lack the engine's own
CPU time per step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from hermes.calibration.importers.base import IMPORTERS, ImporterConfig, Progress, known_model, no_progress
from hermes.calibration.importers.priced import Batches, ask, rows_of, step_grid
from hermes.calibration.steps import MeasuredSteps, StepsHeader
from hermes.errors import InputError
from hermes.hardware.descriptions.files import read_json
from hermes.hardware.fitted.profile import ProfileMemory

__all__ = ["SYSTEMS", "Aiconfigurator"]

SYSTEMS = {
    "a100_sxm": ("a100", "NVIDIA A100 80GB SXM"), "h100_sxm": ("h100", "NVIDIA H100 80GB SXM"),
    "h200_sxm": ("h200", "NVIDIA H200 141GB SXM"), "b200_sxm": ("b200", "NVIDIA B200 SXM"),
    "b300_sxm": ("b300", "NVIDIA B300 SXM"), "gb200": ("gb200", "NVIDIA GB200"), "gb300": ("gb300", "NVIDIA GB300"),
    "l40s": ("l40s", "NVIDIA L40S"), "rtx_pro_6000_server": ("rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Server"),
    "b60": ("b60", "Intel Arc Pro B60"),
}
"""The package's systems that have tables -> short name, device."""
GEMM = {
    "bf16": "bfloat16", "fp8": "fp8", "fp8-static": "fp8_static", "fp8-block": "fp8_block", "int8": "int8_wo",
    "int4": "int4_wo", "nvfp4": "nvfp4",
}
MOE = {"bf16": "bfloat16", "fp8": "fp8", "fp8-static": "fp8", "fp8-block": "fp8_block", "int4": "int4_wo",
       "nvfp4": "nvfp4"}
KV = {"bf16": "bfloat16", "fp8": "fp8", "int8": "int8"}
UTILIZATION = 0.9
MIXED_ATTENTION = {"l40s": 2.07, "rtx_pro_6000_server": 1.75}
# medians over operator tables of an RTX 4090 (sm_89, as L40S) and an RTX PRO 6000, which attend with FlashAttention 2
SPREAD = (1, 2, 4)  # longest context over the mean one
MIN_KV_TOKENS = 2**18  # the grid goes this far beyond the memory, too: a study may change the memory

Dtype = Literal["bf16", "fp8", "fp8-static", "fp8-block", "int8", "int4", "nvfp4"]


@IMPORTERS.register("aiconfigurator")
class Aiconfigurator(ImporterConfig):
    """Step times composed from the kernel tables of aiconfigurator-core (Apache-2.0)."""

    kind: Literal["aiconfigurator"] = "aiconfigurator"
    model: str
    """A model the package knows (meta-llama/Meta-Llama-3.1-70B, Qwen/Qwen3-32B, ...) or a config.json."""
    system: str
    """h100_sxm, h200_sxm, a100_sxm, l40s, b200_sxm, b300_sxm, gb200, gb300, rtx_pro_6000_server, ..."""
    backend: Literal["vllm", "sglang", "trtllm"] = "vllm"
    """Engine the kernels were measured for: vllm, sglang, trtllm."""
    backend_version: str | None = None
    """Version of the engine; the package's current one by default."""
    tp: Annotated[int, Field(ge=1, le=64)] = 1
    """Degree of tensor parallelism."""
    dtype: Dtype = "bf16"
    """Weights: bf16, fp8 (dynamic activation scales), fp8-static, fp8-block, int8 and int4 (weights only), nvfp4."""
    kv_dtype: Literal["bf16", "fp8", "int8"] = "bf16"
    """KV cache: bf16, fp8, int8."""
    skew: Annotated[float, Field(ge=0, le=1)] = 0.058
    """Cost of unequal decode contexts: a share of the extra attention time if all were as long as the longest. 0.058
    was measured on an RTX 4090 and an RTX PRO 6000 (vLLM 0.19.0); 0 treats decodes as equal."""
    mixed_attention: Annotated[float, Field(ge=1, le=10)] | None = None
    """Factor on the decodes' attention time beside a prefill, since one kernel then serves both. Default: the figures
    of vLLM 0.19.0's operator tables for architectures that were measured (l40s: 2.07, rtx_pro_6000_server: 1.75),
    otherwise 1."""
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=2**20)] = 8192
    """The engine's step budget, which sizes the activations in the memory estimate."""
    python: str | None = None
    """Interpreter that has aiconfigurator-core (default: this one)."""

    def steps(self, progress: Progress = no_progress) -> MeasuredSteps:
        """Return one step per batch of the grid that the tables can price."""
        batches = step_grid(spread=SPREAD if self.skew > 0 else (1,))
        answer = ask("ask_aiconfigurator.py", self._request(batches), self.python, "aiconfigurator", progress)
        if not answer["mixed"]:
            batches = batches._replace(mixed=[])
        limit = max(int(answer["memory"]["kv_tokens"]), MIN_KV_TOKENS)
        rows, beyond, unknown = rows_of(batches, answer["seconds"], limit)
        if rows.empty:
            raise InputError("a system, model and precision that the tables hold", "no batch could be priced")
        return MeasuredSteps(self._header(answer, limit, beyond, unknown), rows)

    def _beside_prefill(self) -> float:
        if self.mixed_attention is not None:
            return self.mixed_attention
        return MIXED_ATTENTION.get(self.system, 1.0) if self.backend == "vllm" else 1.0

    def _request(self, batches: Batches) -> dict[str, Any]:
        return {
            "model": self._model_path(), "system": self.system, "backend": self.backend,
            "backend_version": self.backend_version, "tp": self.tp, "gemm_quant_mode": GEMM[self.dtype],
            "moe_quant_mode": MOE.get(self.dtype, "bfloat16"), "kvcache_quant_mode": KV[self.kv_dtype],
            "fmha_quant_mode": "bfloat16", "max_num_tokens": self.max_num_batched_tokens, "max_batch": 256,
            "utilization": UTILIZATION, "skew": self.skew,
            "mixed_attention": self._beside_prefill(), "batches": batches._asdict(),
        }

    def _config_file(self) -> Path | None:
        path = Path(self.model)
        path = path / "config.json" if path.is_dir() else path
        if path.suffix != ".json":
            return None
        if not path.is_file():
            raise InputError("an existing config.json", self.model, field="model")
        return path

    def _model_path(self) -> str:
        """Return the package's model: its own name of it, or a folder with a config.json."""
        path = self._config_file()
        if path is None:
            return self.model
        if path.name != "config.json":
            raise InputError("a file called config.json (the package reads a folder)", self.model, field="model")
        read_json(path)
        return str(path.parent.resolve())

    def _header(self, answer: dict[str, Any], limit: int, beyond: int, unknown: int) -> StepsHeader:
        path = self._config_file()
        model = known_model(self.model if path is None else path.resolve().parent.name)
        short, device = SYSTEMS.get(self.system, (self.system, self.system))
        precision = self.dtype + ("" if self.kv_dtype == "bf16" else f"-kv-{self.kv_dtype}")
        package = f"aiconfigurator-core {answer['version']}"
        excluded = [f"{unknown} batches of the grid that the tables cannot price"] if unknown else []
        return StepsHeader(
            name=f"{model.rsplit('/', 1)[-1].lower()}-{short}-tp{self.tp}-{precision}", hardware=device,
            engine=self.backend, engine_version=answer["backend_version"], model=model,
            model_config_json={} if path is None else read_json(path), tensor_parallel=self.tp, dtype=self.dtype,
            kv_dtype=self.kv_dtype, date="not stated in the tables", collected_by=self.command(),
            clock="composed from kernel times measured one by one",
            source=f"{package} (PyPI, NVIDIA, Apache-2.0), {self.backend} {answer['backend_version']} tables of "
                   f"{self.system}",
            options={
                "gemm": GEMM[self.dtype], "attention": "bfloat16", "kv_tokens_limit": limit,
                "max_num_batched_tokens": self.max_num_batched_tokens,
            },
            environment={"aiconfigurator-core": answer["version"]}, memory=self._memory(answer["memory"], package),
            excluded=excluded, notes=self._notes(answer, limit, beyond),
        )

    def _memory(self, found: dict[str, Any], package: str) -> ProfileMemory:
        engine = sum(found[f"{part}_bytes"] for part in ("activations", "runtime_overhead", "comm_overhead"))
        return ProfileMemory(
            capacity_bytes=int(found["gpu_memory_capacity_bytes"]), weights_bytes=int(found["weights_bytes"]),
            activation_bytes=int(engine), kv_bytes_per_token=float(found["kv_size_per_token_bytes"]),
            source=f"computed by {package}: its estimate for {self.max_num_batched_tokens} batched tokens "
                   f"({found['runtime_overhead_bytes'] / 2**30:.2f} GiB of it a flat reserve for the engine); at "
                   f"utilisation {UTILIZATION:g} it leaves {found['kv_tokens']} KV tokens",
        )

    def _notes(self, answer: dict[str, Any], limit: int, beyond: int) -> list[str]:
        shares = answer["shares"]
        sources = "; ".join(
            f"{what}: " + ", ".join(f"{part[name]:.0%} {name}" for name in ("silicon", "mixed", "empirical")
                                    if part.get(name, 0) >= 0.005)
            for what, part in (("a prefill of 2,048 tokens", shares["prefill"]),
                               ("a decode of 32 at 1,024 tokens", shares["decode"]))
        )
        notes = [
            f"share of time by the package's own label (silicon: measured; empirical: its formula) - {sources}",
            "composed from kernels: the engine's CPU time per step, gaps between kernels and sampling are not in it",
            "mixed: composed by the package's three passes (all but attention over all tokens, attention of the "
            "prefill, attention of the decodes)" if answer["mixed"] else
            "mixed: the package does not price this model's attention apart, so mixed steps were not imported",
            "decodes of unequal context: the tables have none; attention is assumed to take "
            f"{self.skew:g} of the way from its time at the mean context to that at the longest, a share measured on "
            "other cards (vLLM 0.19.0, RTX 4090 and RTX PRO 6000)"
            if self.skew > 0 and answer["mixed"] else "decodes of a step have equal contexts",
        ]
        factor = self._beside_prefill()
        if answer["mixed"]:
            notes.append(
                f"mixed: the decodes' attention takes {factor:g} times as long as alone, as in operator tables of vLLM "
                "0.19.0 on cards of this architecture (medians; the factor grows with the batch)" if factor > 1 else
                "mixed: attention of prefill and decodes is added; an engine that serves both with one kernel may take "
                "longer"
            )
        communication = shares["prefill"].get("communication", 0.0), shares["decode"].get("communication", 0.0)
        if communication[0] > 0:
            notes.append(f"all-reduce takes {communication[0]:.0%} of that prefill and {communication[1]:.0%} of "
                         "that decode")
        if answer["memory"]["kv_tokens"] < MIN_KV_TOKENS:
            notes.append(f"memory leaves {answer['memory']['kv_tokens']} KV tokens; the grid reaches {limit} all the "
                         "same")
        if beyond:
            notes.append(f"{beyond} batches of the grid with more than {limit} KV tokens in a step were left out")
        return notes
