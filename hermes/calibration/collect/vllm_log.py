"""The log of a vLLM server while it starts, taken apart into phases. Standard library only.

vLLM states some phases in seconds (weights, tracing, compiling, the capture in whole seconds); of the others the log
has the line with which they begin or end, whose instant is that of its arrival. Its wordings have changed from version
to version: 0.6 to 0.33 are known here. With several ranks the slowest counts; several models in one server (a drafter)
add up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

__all__ = ["PHASES", "StartLog"]

PHASES = ("process_s", "weights_s", "compile_s", "profiling_s", "capture_s")
"""Phases that add up to the whole start."""

_RANK = re.compile(r"\(([^()]*(?:pid|rank)=\d+)\)")
_NUMBER = r"(\d+(?:\.\d+)?)"
_SAID = {
    "weights": rf"Loading weights took {_NUMBER} s",
    "trace": rf"Dynamo bytecode transform time: {_NUMBER} s",
    "graphs": rf"(?:Compiling a graph for .* takes|Directly load the compiled graph\(s\) for .*took) {_NUMBER} s",
    "compile": rf"torch\.compile (?:took|takes) {_NUMBER} s in total",
    "capture": rf"Graph capturing finished in {_NUMBER} sec",
}
"""Figures in seconds."""
_FIRST = {
    "launched": r"vLLM API server version |  version \d|Initializing an? .*LLM engine|Initializing an? .*engine \(v",
    "loading": r"Starting to load model ",
    "warming": r"Warming up model for the compilation",
    "kv": r"KV cache size: |# (?:GPU|CUDA|CPU) blocks: ",
    "capturing": r"Capturing (?:the model for )?(?:CUDA graph|cudagraph)",
    "compiling": r"Compiling a graph for |saved AOT compiled function",
    "engine": r"init engine \(profile",
}
"""Lines whose first arrival counts."""
_LAST = {
    "loaded": r"Model loading took |Loading weights took |Loading model weights took ",
    "read": r"Loading model weights took ",
    "aot": r"saved AOT compiled function|Directly load AOT compilation",
    "warm": r"Warming up done",
    "captured": r"Graph capturing finished",
}
"""Lines whose last arrival counts."""
_VERSION = re.compile(r"(?:vLLM API server version|  version|LLM engine \(v) ?v?(\d+\.\d+[^\s,)]*)")
_SIZES = re.compile(r"""["']cudagraph_capture_sizes["']: ?\[([\d, ]*)\]""")
_LONGEST = 1 << 16   # characters of a line that are looked at: configurations are long, but not longer


def _patterns(table: dict[str, str]) -> dict[str, re.Pattern[str]]:
    return {name: re.compile(pattern) for name, pattern in table.items()}


class StartLog:
    """The lines of one start.

    Attributes:
        version: Of the engine; "" while the log has not said it.
        sizes: Tokens of the CUDA graphs that it captures; None if the log does not say it.
        last: The last line with an error, or else the last line, for a message.
    """

    _said, _first, _last = _patterns(_SAID), _patterns(_FIRST), _patterns(_LAST)

    def __init__(self, lines: Iterable[tuple[float, str]] = ()) -> None:
        """Read lines with their instants, seconds since the process was started."""
        self.version = ""
        self.sizes: list[int] | None = None
        self.last = ""
        self._failed = False
        self._seconds: dict[str, dict[str, float]] = {}
        self._at: dict[str, float] = {}
        for at_s, line in lines:
            self.add(at_s, line)

    def add(self, at_s: float, line: str) -> None:
        """Read a line that has come `at_s` seconds after the start of the process."""
        line = line[:_LONGEST].rstrip()
        self._remember(line)
        rank = found.group(1) if (found := _RANK.search(line)) else ""
        for name, pattern in self._said.items():
            if found := pattern.search(line):
                of = self._seconds.setdefault(name, {})
                of[rank] = of.get(rank, 0.0) + float(found.group(1))
        for name, pattern in self._first.items():
            if name not in self._at and pattern.search(line):
                self._at[name] = at_s
        for name, pattern in self._last.items():
            if pattern.search(line):
                self._at[name] = at_s
        if not self.version and (found := _VERSION.search(line)):
            self.version = found.group(1)
        if self.sizes is None and (found := _SIZES.search(line)):
            self.sizes = sorted(int(size) for size in found.group(1).split(",") if size.strip())

    def _remember(self, line: str) -> None:
        text = " ".join(line.split())
        error = re.search(r"\b\w*(?:Error|Exception)\b: |\berror: ", text) is not None
        if text and (error or not self._failed):
            self.last, self._failed = text[-300:], self._failed or error

    @property
    def of_vllm(self) -> bool:
        """Whether the log has the lines that phases are read from."""
        return "loading" in self._at or "loaded" in self._at

    @property
    def compiled(self) -> bool:
        """Whether the engine compiled something, rather than read all of it from its cache."""
        return "compiling" in self._at

    def phases(self, ready_s: float) -> dict[str, float]:
        """Return the seconds of each phase of a server that was ready after `ready_s`; phases that the log does not
        show are left out.

        `PHASES` add up to `ready_s`, of which `process_s` is all that no other phase holds. `imports_s`, `launch_s` and
        `server_s` are parts of `process_s`; `trace_s` and `graphs_s` of `compile_s`.
        """
        at, out = self._at, {}
        trace, graphs = self._most("trace"), self._most("graphs")
        compile_s = max(self._most("compile"), trace + graphs) or self._ahead_of_time()
        ends = {"warm": "warming", "kv": "loaded"} if "warm" in at else {"kv": "loaded"}
        window = next((at[end] - at[begin] for end, begin in ends.items() if end in at and begin in at), None)
        if "weights" in self._seconds:
            out["weights_s"] = self._most("weights")
        elif "read" in at and "loading" in at:   # up to 0.7
            out["weights_s"] = max(0.0, at["read"] - at["loading"])
        out["compile_s"] = compile_s
        out["profiling_s"] = max(0.0, window - compile_s) if window is not None else 0.0
        out["capture_s"] = self._capture()
        out["process_s"] = max(0.0, ready_s - math.fsum(out.values()))
        out |= {name: seconds for name, seconds in (("trace_s", trace), ("graphs_s", graphs)) if seconds}
        parts = {"imports_s": (0.0, at.get("launched")), "launch_s": (at.get("launched"), at.get("loading")),
                 "server_s": (at.get("engine"), ready_s)}
        for name, (begin, end) in parts.items():
            if begin is not None and end is not None and end >= begin:
                out[name] = end - begin
        return out

    def _most(self, name: str) -> float:
        """Return the seconds of the slowest rank."""
        return max(self._seconds.get(name, {}).values(), default=0.0)

    def _ahead_of_time(self) -> float:
        """Return the seconds until the model was compiled or read as a whole, where the engine does not state them: a
        CPU's."""
        begin = self._at.get("warming", self._at.get("loaded"))
        return max(0.0, self._at["aot"] - begin) if begin is not None and "aot" in self._at else 0.0

    def _capture(self) -> float:
        """Return the seconds of the capture: between its lines, or as stated in whole seconds."""
        at = self._at
        if "captured" not in at:
            return 0.0
        return max(0.0, at["captured"] - at["capturing"]) if "capturing" in at else self._most("capture")
