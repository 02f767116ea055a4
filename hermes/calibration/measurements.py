"""Plan files: the user's description of a measurement in YAML (`measure: llm`, `terms`, `link`, `retrieval`, `ivf`,
`validation`).

A measurement makes the plan of points for its collector (`hermes.calibration.plan`). Paths in the file are relative to
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from hermes.calibration.engines import planner
from hermes.calibration.link import LinkMeasurement
from hermes.calibration.plan import PointPlan, request_for
from hermes.calibration.retrieval_plan import RetrievalMeasurement
from hermes.calibration.terms_plan import TermsMeasurement
from hermes.config import ConfigModel, field_docs
from hermes.config.validation import validate
from hermes.config.yaml_document import Node, as_node, load_yaml
from hermes.config.yaml_writer import to_yaml
from hermes.errors import InputError, Verbatim, suggest
from hermes.scenario.loading import apply_override

__all__ = [
    "MEASUREMENTS", "CardPlan", "IvfMeasurement", "LlmMeasurement", "Measurement", "ValidationMeasurement",
    "card_plans", "load_measurement", "load_validation", "template",
]

Count = Annotated[int, Field(ge=1, le=2**31)]


class LlmMeasurement(ConfigModel):
    """Step times of an LLM engine over a grid of batches."""

    measure: Literal["llm"] = "llm"
    model: str
    """A shipped model, or the path of a config.json."""
    engine: str = "torch"
    """torch (a plain transformer) or vllm (the real engine)."""
    device: Literal["cpu", "cuda"] = "cpu"
    """cpu or cuda."""
    hardware: str | None = None
    """Device description that the estimates use; null: cpu-core, h100-sxm."""
    dtype: str | None = None
    """Precision; null: bf16 on a GPU, fp32 on a CPU."""
    tensor_parallel: Annotated[int, Field(ge=1, le=1024)] = 1
    """One rank's shard is measured."""
    clock: Literal["wall", "cpu"] | None = None
    """On a CPU: wall or cpu; null: wall."""
    repetitions: Annotated[int, Field(ge=1, le=1000)] = 5
    """Measurements of every step."""
    warmup_s: Annotated[float, Field(ge=0, le=3600)] = 20.0
    """Seconds of work before the first measurement."""
    max_num_batched_tokens: Count = 2048
    """Most tokens of a step."""
    max_num_seqs: Count = 256
    """Most sequences of a step."""
    max_context: Count = 8192
    """Longest sequence."""
    threads: Annotated[int, Field(ge=1, le=4096)] = 1
    """CPU threads of the engine."""
    parts: Annotated[list[Literal["grid", "engine"]], Field(min_length=1)] = ["grid", "engine"]
    """grid: batches of all kinds, for a step profile; engine: full chunks beside decodes, and decode batches."""
    points: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Most points of the grid; null: the engine's own choice."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the random batches."""
    output: str = "steps.yaml"
    """Measured steps; plan and journal beside them."""

    def plan(self, base_dir: Path, python: str | None = None) -> PointPlan:
        """Return the plan. Raises `InputError` naming the key."""
        given = self.model_dump(exclude={"measure", "engine", "output"}) | {"parts": tuple(self.parts)}
        made: PointPlan = planner(self.engine).plan(request_for(**given, base_dir=base_dir))
        return made


class IvfMeasurement(ConfigModel):
    """One index for lookahead retrieval: cluster sizes, overlap of rewritten queries, scans."""

    measure: Literal["ivf"] = "ivf"
    vectors: Annotated[int, Field(ge=100, le=2**31)] = 2_000_000
    dim: Annotated[int, Field(ge=2, le=65_536)] = 64
    """Dimensions."""
    nlist: Annotated[int, Field(ge=1, le=2**24)] = 4096
    """Clusters."""
    queries: Annotated[int, Field(ge=1, le=2**20)] = 512
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    seed: Annotated[int, Field(ge=0)] = 0
    rewrites_file: str = ""
    """Vectors, queries and rewrites to use in place of generated ones (.npz)."""
    speed: bool = True
    """Measure times of scans and merges too."""
    device: Literal["cuda", "cpu"] = "cuda"
    """cuda is measured if torch sees a GPU; cpu tests the collector without one."""
    output: str = "overlap.yaml"


class ValidationMeasurement(ConfigModel):
    """A real engine on an online workload, compared with its simulation, for hermes validate-engine."""

    measure: Literal["validation"] = "validation"
    engine: str = "vllm"
    """vllm or torch."""
    device: Annotated[str, Field(min_length=1)] = "cpu"
    """cpu or cuda."""
    model: str = ""
    """A config.json; empty: a small Llama."""
    dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    tensor_parallel: Annotated[int, Field(ge=1, le=1024)] = 1
    threads: Annotated[int, Field(ge=1, le=4096)] = 1
    """CPU threads of the engine."""
    max_num_batched_tokens: Count = 512
    max_num_seqs: Count = 32
    block_size: Count = 128
    """Tokens per KV block."""
    num_blocks: Count = 1360
    """KV blocks that requests can have."""
    max_model_len: Count = 4096
    """Longest sequence."""
    rate: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.5
    """Requests per second, Poisson."""
    requests: Annotated[int, Field(ge=1, le=100_000)] = 80
    """Requests of a repetition."""
    workload: str = ""
    """CSV file of requests in place of drawn ones (arrival_s, prompt_tokens, output_tokens)."""
    seed: Annotated[int, Field(ge=0)] = 1
    """Of the workload."""
    clock: Literal["wall", "cpu", "both"] | None = None
    """Clock of the run: wall, cpu or both; null: both on a CPU, wall on a GPU."""
    repetitions: Annotated[int, Field(ge=1, le=100)] = 3
    """Accepted runs wanted per clock."""
    max_attempts: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Most runs per clock; null: twice the repetitions."""
    warmup_s: Annotated[float, Field(ge=0, le=3600)] = 20.0
    """Seconds of work before measuring."""
    steps: str = ""
    """Measured steps to use; empty: calibrate the engine first."""
    calibration_tokens: Annotated[int, Field(ge=64)] | None = None
    """Largest step calibrated; null: max_num_batched_tokens."""
    calibration_seqs: Annotated[int, Field(ge=1)] | None = None
    """Largest batch calibrated; null: max_num_seqs."""
    calibration_repetitions: Annotated[int, Field(ge=1, le=100)] = 1
    """Measurements of every calibrated step."""


Measurement = (
    LlmMeasurement | TermsMeasurement | LinkMeasurement | RetrievalMeasurement | IvfMeasurement | ValidationMeasurement
)
MEASUREMENTS: dict[str, type[Measurement]] = {
    "llm": LlmMeasurement, "terms": TermsMeasurement, "link": LinkMeasurement, "retrieval": RetrievalMeasurement,
    "ivf": IvfMeasurement, "validation": ValidationMeasurement,
}


def load_measurement(path: Path, overrides: Iterable[str] = ()) -> Measurement:
    """Load a measurement from its file, with `key=value` overrides. Raises `InputError` naming file, line and key."""
    return _validated(load_yaml(path), overrides, path.parent)


def load_validation(path: Path | None, overrides: Iterable[str] = ()) -> ValidationMeasurement:
    """Load a validation from its file, or with every default. Raises `InputError` also for another measurement."""
    node = as_node({"measure": "validation"}) if path is None else load_yaml(path)
    found = _validated(node, overrides, Path() if path is None else path.parent)
    if not isinstance(found, ValidationMeasurement):
        raise InputError("measure: validation", found.measure, field="measure", file=str(path))
    return found


def _validated(node: Node, overrides: Iterable[str], base_dir: Path) -> Measurement:
    if not isinstance(node.value, dict):
        raise node.mark.error("a mapping", Verbatim("something else"))
    for override in overrides:
        node = apply_override(node, override, base_dir)
    chosen = node.child("measure")
    kind = None if chosen is None else chosen.plain()
    if not isinstance(kind, str) or kind not in MEASUREMENTS:
        place = (chosen or node).mark
        raise place.error(f"one of {', '.join(MEASUREMENTS)}", kind, field="measure",
                          suggestion=suggest(kind, MEASUREMENTS))
    return validate(MEASUREMENTS[kind], node)


def template(kind: str, overrides: Iterable[str] = (), base_dir: Path | None = None) -> str:
    """Return a template: every key with its default and meaning, and the settings of `overrides`.

    base_dir: folder of the file, which paths in `overrides` become relative to. Raises `InputError` for an unknown
    kind, and for a missing required key.
    """
    if kind not in MEASUREMENTS:
        raise InputError(f"one of {', '.join(MEASUREMENTS)}", kind, field="what to measure",
                         suggestion=suggest(kind, MEASUREMENTS))
    made = _validated(as_node({"measure": kind}), overrides, base_dir or Path())
    docs = field_docs(type(made))
    summary = " ".join((type(made).__doc__ or "").split())
    command = "hermes validate-engine THIS_FILE --python PATH -o DIR" if kind == "validation" else (
        "hermes calibrate run THIS_FILE")
    lines = [f"# {summary}", f"# Next: {command} (again to continue after an interruption)"]
    content: dict[str, Any] = made.model_dump()
    for key, value in content.items():
        text = " ".join(docs.get(key, "").split())
        lines += ["", f"# {text}"] if text else [""]
        lines.append(to_yaml({key: value}).rstrip("\n"))
    return "\n".join(lines) + "\n"


# -- everything that the composed model needs of a card ----------------------------------------------------------------


class CardPlan(NamedTuple):
    """One of the plan files of a card."""

    file: str
    text: str
    points: int
    estimate_s: float


_OF_CARD: dict[str, tuple[str, dict[str, str]]] = {
    "plan-terms.yaml": ("terms", {}),
    "plan-engine.yaml": ("llm", {"engine": "vllm", "parts": "[engine]", "max_num_batched_tokens": "8192"}),
    "plan-link.yaml": ("link", {}),
}


def card_plans(overrides: Iterable[str] = (), base_dir: Path | None = None) -> list[CardPlan]:
    """Return the plan files of a card: single operators, whole steps of its engine, host links.

    An override goes to every plan that has its key. Raises `InputError` for one that none has.
    """
    given = dict.fromkeys(override.partition("=")[0] for override in overrides)
    fields = {file: set(MEASUREMENTS[kind].model_fields) for file, (kind, _) in _OF_CARD.items()}
    for key in given:
        if key in ("measure", "output") or not any(key in known for known in fields.values()):
            known = sorted(set.union(*fields.values()) - {"measure", "output"})
            raise InputError(f"a key of a card's plans: {', '.join(known)}", key, field="--set",
                             suggestion=suggest(key, known))
    out = []
    for file, (kind, more) in _OF_CARD.items():
        own = [f"{key}={value}" for key, value in more.items() if key not in given]
        settings = [*own, *(text for text in overrides if text.partition("=")[0] in fields[file])]
        made = _validated(as_node({"measure": kind}), settings, base_dir or Path())
        if isinstance(made, IvfMeasurement | ValidationMeasurement):
            raise TypeError(f"{kind} has no points")
        plan = made.plan(base_dir or Path())
        out.append(CardPlan(file, template(kind, settings, base_dir), len(plan.points), plan.estimate_s))
    return out
