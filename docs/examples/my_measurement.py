import hashlib
import sys
import time
from typing import Literal

from hermes.calibration.collect.session import Collector, main
from hermes.calibration.measurements import MEASUREMENTS, Measurement, PointPlan, Shown, read_records
from hermes.config import to_yaml


@MEASUREMENTS.register("block_hashes")
class BlockHashes(Measurement):
    """Seconds to hash a block of tokens, as a prefix cache does."""

    measure: Literal["block_hashes"] = "block_hashes"
    block_sizes: list[int] = [16, 128]
    output: str = "block-hashes.yaml"

    def plan(self, base_dir, python=None):
        points = [{"name": f"{size} tokens", "size": size, "estimate_s": 0.01} for size in self.block_sizes]
        return PointPlan(engine="block_hashes", collector=__name__, clock="wall", warmup_s=0, points=points)

    @classmethod
    def pack(cls, journal, output, *, command="", clock=None, measured=None):
        _, found = read_records(journal, PointPlan)
        seconds = {point["point"]: min(row["time_s"] for row in point["rows"]) for point in found.points}
        output.write_text(to_yaml({"collected_by": command, "seconds": seconds}))
        return Shown(seconds, [f"{name}: {time_s * 1e6:.2f} us" for name, time_s in seconds.items()])


class Hashes(Collector):
    def measure(self, point):
        began = time.perf_counter()
        hashlib.sha256(bytes(8 * point["size"])).digest()
        return [{"repetition": 0, "time_s": time.perf_counter() - began}], {}


if __name__ == "__main__":   # run by the interpreter that has what is measured
    sys.exit(main(Hashes))
