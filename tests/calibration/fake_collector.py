"""A collector without an engine: sleeps, and says what it was told to say. Run as a module by the harness's tests."""

from __future__ import annotations

import sys
import time
from typing import Any

from hermes.calibration.collect.session import CollectorError, PointFailed, main


class FakeEngine:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.options = plan["options"]
        self.visits: dict[str, int] = {}
        if self.options.get("broken"):
            raise CollectorError("the engine does not start")

    def environment(self) -> dict[str, Any]:
        return {"device": "a pretended device", "date": "2026-11-21", "engine_version": "1"}

    def measure(self, point: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        visit = self.visits[point["name"]] = self.visits.get(point["name"], 0) + 1
        time.sleep(point.get("sleep_s", 0.0))
        if point.get("fail"):
            raise PointFailed("out of memory")
        times = point.get("times" if visit == 1 else "times_again", [0.01, 0.01, 0.011])
        return [
            {"prefill_seqs": 0, "prefill_tokens": 0, "prefill_past": 0, "prefill_attn": 0, "decode_seqs": 1,
             "decode_ctx": 10, "decode_ctx_max": 10, "sampled": 1, "time_s": t, "cpu_time_s": t / 2, "repetition": i}
            for i, t in enumerate(times)
        ], {}

    def close(self) -> None:
        pass


if __name__ == "__main__":
    sys.exit(main(FakeEngine))
