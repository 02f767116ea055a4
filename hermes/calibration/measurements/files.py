"""Plan files: the user's description of a measurement in YAML (`measure: llm`, `terms`, `link`, ...).

Paths in the file are relative to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from hermes.calibration.measurements.base import MEASUREMENTS, Measurement
from hermes.config import field_docs
from hermes.config.validation import validate
from hermes.config.yaml_document import Node, as_node, load_yaml
from hermes.config.yaml_writer import to_yaml
from hermes.errors import InputError, Verbatim, suggest
from hermes.scenario.loading import apply_override

__all__ = ["CardPlan", "card_plans", "load_measurement", "template"]


def load_measurement(path: Path, overrides: Iterable[str] = ()) -> Measurement:
    """Load a measurement from its file, with `key=value` overrides. Raises `InputError` naming file, line and key."""
    return _validated(load_yaml(path), overrides, path.parent)


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
    chosen_class: type[Measurement] = MEASUREMENTS.get(kind)
    return validate(chosen_class, node)


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
    lines = [f"# {summary}", "# Next: hermes calibrate run THIS_FILE (again to continue after an interruption)"]
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
    "plan-engine.yaml": ("llm", {"parts": "[engine]", "max_num_batched_tokens": "8192"}),
    "plan-link.yaml": ("link", {}),
}


def card_plans(overrides: Iterable[str] = (), base_dir: Path | None = None) -> list[CardPlan]:
    """Return the plan files of a card: single operators, whole steps of its engine, host links.

    An override goes to every plan that has its key. Raises `InputError` for one that none has.
    """
    given = dict.fromkeys(override.partition("=")[0] for override in overrides)
    fields = {file: set(MEASUREMENTS.get(kind).model_fields) for file, (kind, _) in _OF_CARD.items()}
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
        plan = made.plan(base_dir or Path())
        out.append(CardPlan(file, template(kind, settings, base_dir), len(plan.points), plan.estimate_s))
    return out
