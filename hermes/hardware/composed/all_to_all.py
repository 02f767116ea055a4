"""Exchange of tokens between devices that have whole experts: DeepEP's two kinds of kernels, by a roofline.

The engine's default gathers all tokens on every device (`allgather_reducescatter`:
`hermes.hardware.composed.engine_links`). DeepEP sends a token to the devices of its experts only. One exchange takes

    latency + max(bytes over NVLink / its rate, bytes between boxes / the network's rate)

of the port with the most to carry: that of the rank with the most tokens, or that of the device whose experts are
chosen most. Bytes of a token:

- low latency: a copy for each of its experts, straight to its device. At most `CHUNK` tokens of a rank at once; a
  larger batch is exchanged, and its experts are computed, piece by piece. Runs inside CUDA graphs.
- high throughput: one copy for each box that has one of its experts, then one for each such device in the box. The host
  waits for the number of tokens: no CUDA graphs.

Dispatch moves FP8 with a 4-byte scale for each 128 values where the experts are of FP8 blocks, combine 16 bits.

The rate is 80% of NVLink's data sheet (DeepEP's documentation states 160 GB/s for an H800, whose data sheet has 200 in
each direction), and the link's own between boxes. The latency is what the published low-latency times of eight devices
leave (36 us of dispatch, 34 of combine). The other published times test both:
tests/hardware/composed/test_all_to_all.py. (DeepEP's first version, archived page: H800, hidden size 7,168, 8 experts.)
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CHUNK", "LATENCY_NS", "NVLINK_SHARE", "AllToAll", "vector_bytes"]

LATENCY_NS = 35e3      # of one exchange
NVLINK_SHARE = 0.8     # of the data sheet's rate
CHUNK = 256            # tokens of a rank in one low-latency exchange: VLLM_MOE_DP_CHUNK_SIZE, and DeepEP's advice
SCALE_BYTES = 4.0 / 128


def vector_bytes(hidden: int, fp8: bool) -> tuple[float, float]:
    """Return the bytes of one token's vector in dispatch and in combine."""
    return hidden * (1.0 + SCALE_BYTES if fp8 else 2.0), hidden * 2.0


@dataclass(frozen=True)
class AllToAll:
    """Dispatch and combine of one layer between all devices of an engine.

    Attributes:
        low_latency: Kind of the kernels.
        devices, boxes: Devices of the engine, and the boxes that they fill evenly.
        per_token: Experts of a token.
        vectors: Bytes of a token's vector in dispatch and in combine.
        near, far: Bytes that a device moves in a nanosecond inside its box, and between boxes.
        busiest: Tokens of the device whose experts are chosen most, over an even share.
        rank_devices: Devices of a rank, which share its tokens evenly.
        source: Where the figures come from, in words.
    """

    low_latency: bool
    devices: int
    boxes: int
    per_token: int
    vectors: tuple[float, float]
    near: float
    far: float
    busiest: float
    rank_devices: int
    source: str

    def pieces(self, most: float) -> list[float]:
        """Return the parts in which the batch of the rank with `most` tokens is exchanged, as shares of it."""
        if not self.low_latency or most <= CHUNK:
            return [1.0]
        whole, rest = divmod(most, CHUNK)
        return [CHUNK / most] * int(whole) + ([rest / most] if rest else [])

    def times_ns(self, total: float, most: float) -> tuple[float, float]:
        """Return the nanoseconds of dispatch and of combine.

        total: tokens of all ranks
        most: tokens of the rank that has the most
        """
        near, far = self._copies(total, most)
        dispatch, combine = (
            LATENCY_NS + max(near * each / self.near, far * each / self.far) for each in self.vectors)
        return dispatch, combine

    def _copies(self, total: float, most: float) -> tuple[float, float]:
        """Return the vectors that the busiest port carries inside its box and between boxes."""
        devices, boxes, in_box = self.devices, self.boxes, self.devices // self.boxes
        sent, received = most / self.rank_devices, self.busiest * total / devices
        if self.low_latency:
            each = self.per_token * max(sent, received) / devices
            return each * (in_box - 1), each * (devices - in_box)
        chance = 1.0 - (1.0 - 1.0 / devices) ** self.per_token     # that a token has an expert on a device
        visits = 1.0 - (1.0 - 1.0 / boxes) ** self.per_token       # and in a box
        forwarded = min(self.busiest * chance, 1.0) * total * (in_box - 1) / in_box
        own = sent * chance * (in_box - 1) if boxes == 1 else 0.0
        return max(forwarded, own), sent * visits * (boxes - 1)
