"""What everything that can stand in a scenario is made of: components, registries, units, documents with positions.

`hermes.config` itself names the component model; its modules hold the rest: `registry` (implementations by name),
`yaml_document` (YAML with positions), `validation` (one-line messages), `data_files` (what ships with the package).
"""

from hermes.config.component import (
    Bandwidth,
    Bytes,
    Component,
    ConfigModel,
    Duration,
    Named,
    Rate,
    Shorthand,
    Tokens,
    field_docs,
    quantity,
)
from hermes.config.files import json_lines
from hermes.config.registry import Registry
from hermes.config.streams import request_stream, stream
from hermes.config.validation import load, validate
from hermes.config.yaml_writer import to_yaml

__all__ = [
    "Bandwidth", "Bytes", "Component", "ConfigModel", "Duration", "Named", "Rate", "Registry", "Shorthand", "Tokens",
    "field_docs", "json_lines", "load", "quantity", "request_stream", "stream", "to_yaml", "validate",
]
