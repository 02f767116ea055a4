"""Configuration: components, registries, units, and YAML documents with positions.

`hermes.config` itself exports the component model. Its modules: `registry` (implementations by name), `yaml_document`
(YAML with positions), `validation` (one-line messages), `data_files` (files that ship with the package).
"""

from hermes.config.component import (
    Bandwidth,
    Bytes,
    Component,
    ConfigModel,
    Duration,
    FileName,
    Name,
    Named,
    NameOrFile,
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
    "Bandwidth", "Bytes", "Component", "ConfigModel", "Duration", "FileName", "Name", "NameOrFile", "Named", "Rate",
    "Registry", "Shorthand", "Tokens", "field_docs", "json_lines", "load", "quantity", "request_stream", "stream",
    "to_yaml", "validate",
]
