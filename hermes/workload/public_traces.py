"""Public traces that `hermes trace get` downloads: where they are, how they are read, and what they must hold."""

from __future__ import annotations

import hashlib
import http.client
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hermes.errors import InputError, Verbatim, suggest
from hermes.workload.importers import TRACE_IMPORTERS, TraceImporter
from hermes.workload.traces import write_trace

__all__ = ["Downloaded", "PublicTrace", "get_trace", "public_traces"]

MOST_BYTES = 2 * 2**30
TIMEOUT_S = 60.0       # without a byte
_PIECE = 2**20


@dataclass(frozen=True)
class PublicTrace:
    """A trace on a public server.

    Attributes:
        kind: Importer that reads it, with `options`.
        requests: How many it must have; 0 where that is not known.
    """

    url: str
    kind: str
    what: str
    licence: str
    requests: int = 0
    options: Mapping[str, str] = field(default_factory=dict)


_AZURE = "https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data/AzureLLMInferenceTrace_"
_MOONCAKE = "https://raw.githubusercontent.com/kvcache-ai/Mooncake/main/FAST25-release/traces/"
_TRACES = {
    "azure-conv-2023": PublicTrace(
        f"{_AZURE}conv.csv", "azure", "Azure, conversations, 58 minutes of 2023", "CC-BY 4.0", 19_366),
    "azure-code-2023": PublicTrace(
        f"{_AZURE}code.csv", "azure", "Azure, code completion, 57 minutes of 2023", "CC-BY 4.0", 8_819),
    "mooncake-conversation": PublicTrace(
        f"{_MOONCAKE}conversation_trace.jsonl", "mooncake", "Mooncake (Kimi), conversations, with block hashes",
        "Apache-2.0", 12_031),
    "mooncake-toolagent": PublicTrace(
        f"{_MOONCAKE}toolagent_trace.jsonl", "mooncake", "Mooncake (Kimi), tools and agents, with block hashes",
        "Apache-2.0"),
    "burstgpt": PublicTrace(
        "https://github.com/HPMLL/BurstGPT/releases/download/v1.1/BurstGPT_1.csv", "burstgpt",
        "BurstGPT: ChatGPT and GPT-4 of a campus, two months", "CC-BY 4.0"),
}


@dataclass(frozen=True)
class Downloaded:
    """What came: the trace, its requests, and the SHA-256 of the file on the server."""

    trace: PublicTrace
    requests: int
    sha256: str


def public_traces() -> dict[str, PublicTrace]:
    """Return the known traces by name."""
    return dict(_TRACES)


def get_trace(name: str, output: Path, url: str = "") -> Downloaded:
    """Download a trace, convert it, and write it to `output`; nothing is written if anything is wrong.

    url: Address to take it from, such as a mirror; left out, its own. Raises `InputError` for an unknown name, a server
    that does not give the file, and a file with other requests than the trace has.
    """
    known = _TRACES.get(name)
    if known is None:
        raise InputError(f"one of {', '.join(_TRACES)}", name, field="NAME", suggestion=suggest(name, _TRACES))
    source = url or known.url
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / (Path(source.split("?", maxsplit=1)[0]).name or "trace")
        digest = _download(source, path)
        importer: TraceImporter = TRACE_IMPORTERS.get(known.kind)(**known.options)
        try:
            frame = importer.read(path)
        except InputError as error:
            raise error.located(file=source) from None
        if known.requests and len(frame) != known.requests:
            raise InputError(f"{known.requests:,} requests, as {name} has", Verbatim(f"{len(frame):,}: another file"),
                             file=source)
        output.parent.mkdir(parents=True, exist_ok=True)
        write_trace(frame, output, source=f"{source} (SHA-256 {digest}, {known.licence})",
                    hash_block_tokens=importer.hash_block_tokens)
    return Downloaded(known, len(frame), digest)


def _download(url: str, path: Path) -> str:
    """Write what `url` gives to `path`; return its SHA-256."""
    digest, size = hashlib.sha256(), 0
    if not url.startswith(("http://", "https://")):
        raise InputError("an address that begins with http:// or https://", url, field="--url")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply, path.open("wb") as file:
            if reply.status != 200:   # such as 206, a part of the file
                raise urllib.error.HTTPError(url, reply.status, "", reply.headers, None)
            while piece := reply.read(_PIECE):
                size += len(piece)
                if size > MOST_BYTES:
                    raise InputError(f"at most {MOST_BYTES:,} bytes", Verbatim("more"), file=url)
                digest.update(piece)
                file.write(piece)
            promised = reply.headers.get("Content-Length")
    except urllib.error.HTTPError as error:
        said = Verbatim(f"the server answers {error.code}; give another address with --url")
        raise InputError(said, file=url) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise InputError(Verbatim(f"cannot be read ({error}); give another address with --url"), file=url) from None
    if promised is not None and promised.strip().isdecimal() and int(promised) != size:
        raise InputError(f"{int(promised):,} bytes, as the server promised", Verbatim(f"{size:,}"), file=url)
    with path.open("rb") as file:
        if file.read(256).lstrip()[:1] == b"<":
            raise InputError("a trace", Verbatim("a web page; give another address with --url"), file=url)
    return digest.hexdigest()
