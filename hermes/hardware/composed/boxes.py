"""Placement of an engine's devices in boxes, and collectives that cross boxes.

A *box* holds the devices that need no network between them: a scale-up domain (NVLink, Infinity Fabric), or a machine
whose devices PCIe joins (`DeviceDescription.box`). Engines number their devices with tensor parallelism innermost,
then stages, then data-parallel ranks; boxes are filled in this order, with whole tensor-parallel groups where one fits.

An all-reduce of b bytes over n = g * m devices, g in each of m boxes, is a reduce-scatter in each box, an all-reduce of
b / g between the boxes by every device over a port of its own, and an all-gather in each box:

    all_reduce(g, b) in the box + all_reduce(m, b / g) between boxes

(H. Mikami et al., arXiv 1811.05233, section 2.2: 2D-torus all-reduce; M. Cho et al., BlueConnect, MLSys 2019.) An
all-gather, or a reduce-scatter, of b bytes in all has half of either part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hermes.arrays import FloatArray
from hermes.hardware.composed.term_sources import Times
from hermes.hardware.descriptions.links import FAR_BYTES

__all__ = ["FAR_LINK", "AssumedLink", "Spread", "across", "crossings", "half", "spread"]

FAR_LINK = "infiniband-ndr"      # between boxes: one port of 400 Gb/s for each device, if no link is named


class AssumedLink(NamedTuple):
    """A link that neither the scenario nor the device names.

    link: Name of the shipped description that is taken instead.
    key: Key that names another.
    terms: Terms of a step that it decides.
    text: In one line, with the remedy.
    """

    link: str
    key: str
    terms: tuple[str, ...]
    text: str


class Spread(NamedTuple):
    """Members of one group of devices: so many in each of so many boxes."""

    near: int
    boxes: int


def spread(members: int, width: int, box: int) -> Spread:
    """Return how a group lies in boxes of `box` devices, as many of it in each; as few boxes as that allows.

    width: Neighbouring devices that each member of the group stands for (the devices of a data-parallel rank).
    """
    boxes = -(-members // max(1, box // width))
    while members % boxes:
        boxes += 1
    return Spread(members // boxes, boxes)


def crossings(stages: int, tp: int, box: int) -> list[bool]:
    """Return for each boundary between pipeline stages of `tp` devices whether it lies between two boxes."""
    fit = max(1, box // tp)
    return [stage % fit == 0 for stage in range(1, stages)]


def across(near: Times | None, far: Times, near_members: int) -> Times:
    """Return the times of a collective: in each box, if it has several members there, and between boxes by shares."""
    if near is None:
        return far
    sizes = np.unique(np.concatenate([near[0], far[0] * near_members, [0.0, FAR_BYTES]]))
    return sizes, _at(near, sizes) + _at(far, sizes / near_members)


def half(times: Times) -> Times:
    """Return the times of a reduce-scatter or an all-gather: half an all-reduce (ring; R. Thakur et al., IJHPCA
    2005)."""
    return times[0], times[1] / 2.0


def _at(times: Times, sizes: FloatArray) -> FloatArray:
    known, ns = times
    return np.asarray(np.where(sizes <= known[-1], np.interp(sizes, known, ns), ns[-1] * sizes / known[-1]))
