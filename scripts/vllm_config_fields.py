"""List the fields of SchedulerConfig, CacheConfig and LoRAConfig of a vLLM, as JSON.

    PYTHON scripts/vllm_config_fields.py >> FIELDS.jsonl
    python scripts/vllm_config_fields.py --merge FIELDS.jsonl [MERGED.json] > tests/data/vllm-config-fields.json

PYTHON is an interpreter that has vLLM. The first form prints one line; run it once for every version. The second merges
the lines, and those of versions that MERGED.json has: for each class and field the default and the versions that have
it. A field's default is text as Python writes it; "set by the engine" stands for a field that cannot be given.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

CLASSES = ("SchedulerConfig", "CacheConfig", "LoRAConfig")
SET_BY_ENGINE = "set by the engine"


def default_of(field: dataclasses.Field[Any]) -> str:
    """Return a field's default as text."""
    from pydantic.fields import FieldInfo

    default, factory = field.default, field.default_factory
    if isinstance(default, FieldInfo):
        if default.init is False:
            return SET_BY_ENGINE
        default, factory = default.default, default.default_factory
    if not field.init:
        return SET_BY_ENGINE
    if factory not in (None, dataclasses.MISSING):
        return repr(factory())
    return "required" if default is dataclasses.MISSING or repr(default) == "PydanticUndefined" else repr(default)


def fields_here() -> dict[str, Any]:
    """Return the version and the fields of its classes."""
    import vllm
    import vllm.config

    out: dict[str, Any] = {"version": vllm.__version__}
    for name in CLASSES:
        kind = getattr(vllm.config, name)
        given = [field for field in vars(kind)["__dataclass_fields__"].values() if not field.name.startswith("_")]
        # pseudo-fields: InitVar is taken and not kept, ClassVar is no option
        init = {field.name: "required" for field in given if "InitVar" in str(field.type)}
        out[name] = init | {field.name: default_of(field) for field in dataclasses.fields(kind)
                            if not field.name.startswith("_")}
    return out


def lines_of(merged: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the lines that were merged."""
    lines = []
    for version in merged["versions"]:
        line: dict[str, Any] = {"version": version}
        for name in CLASSES:
            line[name] = {}
            for field, entry in merged[name].items():
                later = [last for last in entry["before"] if in_order(last) >= in_order(version)]
                if version in entry["versions"]:
                    line[name][field] = entry["before"][min(later, key=in_order)] if later else entry["default"]
        lines.append(line)
    return lines


def in_order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split("."))


def merged(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return class -> field -> its default in the newest version that has it, its versions, and earlier defaults by the
    last version that had them (`before`)."""
    lines.sort(key=lambda line: in_order(line["version"]))
    out: dict[str, Any] = {"versions": [line["version"].split("+")[0] for line in lines]}
    for name in CLASSES:
        fields: dict[str, Any] = {}
        for line in lines:
            for field, default in line[name].items():
                entry = fields.setdefault(field, {"default": default, "versions": [], "before": {}})
                if entry["default"] != default:
                    entry["before"][entry["versions"][-1]] = entry["default"]
                    entry["default"] = default
                entry["versions"].append(line["version"].split("+")[0])
        out[name] = dict(sorted(fields.items()))
    return out


def main() -> None:
    if sys.argv[1:2] == ["--merge"]:
        lines = [json.loads(line) for line in Path(sys.argv[2]).read_text(encoding="utf-8").splitlines() if line]
        if sys.argv[3:]:
            lines += lines_of(json.loads(Path(sys.argv[3]).read_text(encoding="utf-8")))
        found = merged(lines)
        parts = [f'"versions": {json.dumps(found["versions"])}']
        for name in CLASSES:
            rows = ",\n".join(f"{json.dumps(field)}: {json.dumps(entry)}" for field, entry in found[name].items())
            parts.append(f'"{name}": {{\n{rows}}}')
        print("{" + ",\n".join(parts) + "}")
        return
    folder = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != folder]
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    print(json.dumps(fields_here()))


if __name__ == "__main__":
    main()
