"""Where an EndpointPickerConfig lies in another file: Helm values, a ConfigMap, an LLMInferenceService, arguments.

It is a mapping, or a text in which it is written. A text in a block has the lines and columns of the file; of any other
text, every error names the place of the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hermes.config.yaml_document import Node, as_node, parse_yaml
from hermes.deploy.nodes import walk
from hermes.errors import InputError, Verbatim

__all__ = ["PICKER", "embedded"]

PICKER = "EndpointPickerConfig"
_WRITTEN = re.compile(rf"(?m)^\s*[\"']?kind[\"']?\s*:\s*[\"']?{PICKER}\b")


def embedded(document: Node, text: str) -> tuple[str, Node] | None:
    """Return the path and the node of the picker in a document; None without one.

    Of several, Helm's `pluginsConfigFile` names one. Raises `InputError` for several without a name.

    Args:
        document: A document that is no picker itself.
        text: The file, for lines and columns.
    """
    lines, found = text.splitlines(), list[tuple[tuple[str, ...], Node]]()
    for path, node in walk(document):
        if isinstance(node.value, dict) and (kind := node.value.get("kind")) is not None and kind.value == PICKER:
            found.append((path, node))
        elif isinstance(node.value, str) and _WRITTEN.search(node.value):
            found.append((path, _parsed(node, lines)))
    if len(found) > 1:
        names = {str(node.value) for path, node in walk(document) if path[-1:] == ("pluginsConfigFile",)}
        found = [one for one in found if one[0][-1] in names] or found
    if len(found) > 1:
        places = ", ".join(".".join(path) for path, _ in found)
        raise document.mark.error(Verbatim(f"several {PICKER}s: at {places}; give one of them"))
    return (".".join(found[0][0]), found[0][1]) if found else None


def _parsed(node: Node, lines: Sequence[str]) -> Node:
    """Return the document in a text, at its place in the file."""
    written, start = str(node.value).splitlines(), node.mark.line or 0
    first = next(place for place, line in enumerate(written) if line.strip())
    begin = next((number for number in range(start, len(lines)) if lines[number].strip()), len(lines)) - first
    there = lines[max(begin, 0):begin + len(written)]
    if begin >= 0 and [line.strip() for line in there] == [line.strip() for line in written]:
        return parse_yaml("\n" * begin + "\n".join(there), node.mark.file)
    try:
        return as_node(parse_yaml(str(node.value)).plain(), node.mark)
    except InputError as error:
        raise node.mark.error(Verbatim(f"in this text: {error}")) from None
