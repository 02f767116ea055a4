"""Kinds of clients that `hermes size` tries: how the devices of one client share a model.

A client has `tp * pp * dp` devices: tensor parallelism, pipeline stages and data-parallel ranks. Each of them has whole
experts of a mixture, or a part of each (docs/background/ranks.md). What a user does not name is tried as far as it
makes sense for the model (`candidates`). What the hardware model refuses, or memory cannot hold, the answer lists with
the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from hermes.errors import InputError
from hermes.explore.size.spare import Loss
from hermes.hardware.descriptions.models import load_model

__all__ = ["NO_ROLES", "Kind", "Left", "Split", "candidates", "changes", "is_mixture", "llm_of", "own_of"]

OF_LAYOUT = ("tp", "pp", "dp", "ep")                                  # keys of composed hardware that a layout sets
OF_DEVICE = ("device", "kernels", "link", "hop", "terms", "beside")  # and those that are of one device
STAGES, RANKS = (1, 2), (1, 2, 4, 8)   # tried where the user names none; ranks of mixtures only
NO_ROLES = "clients that prefill or decode alone have no data-parallel ranks or pipeline stages here; tried mixed"


@dataclass(frozen=True)
class Split:
    """How the devices of one client share a model.

    Args:
        tp: Devices that share every layer. pp: Stages of so many. dp: Ranks of so many.
        ep: Whether each device has whole experts.
    """

    tp: int
    pp: int = 1
    dp: int = 1
    ep: bool = False

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def name(self) -> str:
        words = [f"TP{self.tp}", *(f"{key.upper()}{number}" for key in ("pp", "dp")
                                   if (number := getattr(self, key)) > 1)]
        return " ".join([*words, "EP"] if self.ep else words)


@dataclass(frozen=True)
class Kind:
    """A kind of client."""

    device: str
    tp: int
    price: float | None = None   # dollars per hour of one device, if known
    given: bool = False          # whether the user gave the price
    pp: int = 1
    dp: int = 1
    ep: bool = False             # whether each device has whole experts
    loss: Loss | None = None     # for which each side of a layout has spares

    def spares(self, clients: float) -> int:
        """Return how many clients a side has beside those that serve."""
        return 0 if self.loss is None else self.loss.spares(clients, self.devices)

    def most(self, devices: int, sides: int = 1) -> int:
        """Return the most clients that serve, of so many devices with the spares of all sides."""
        most = devices // self.devices
        while most > 0 and most + sides * self.spares(most / sides) > devices // self.devices:
            most -= 1
        return most

    @property
    def split(self) -> Split:
        return Split(self.tp, self.pp, self.dp, self.ep)

    @property
    def name(self) -> str:
        return f"{self.device} {self.split.name}"

    @property
    def devices(self) -> int:
        """Devices of one client."""
        return self.split.devices

    @property
    def has_roles(self) -> bool:
        """Whether such a client may prefill or decode alone."""
        return self.pp * self.dp == 1

    @property
    def parallel(self) -> dict[str, int]:
        """Return the scenario's `parallel`."""
        more = {"pp": self.pp, "dp": self.dp, "ep": self.tp * self.dp if self.ep else 1}
        return {"tp": self.tp, **{key: number for key, number in more.items() if number > 1}}


@dataclass(frozen=True)
class Left:
    """A kind of client that was not tried, and why.

    Args:
        layout: The layout that it cannot have; empty: it cannot serve the model at all.
    """

    kind: Kind
    reason: str
    layout: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind.name} {self.layout}".rstrip()


class Splits(NamedTuple):
    """Pipeline stages, data-parallel ranks, and whether each device has whole experts, to try beside the tensor
    parallelism; those that make sense for the model where left out."""

    pps: Sequence[int] | None = None
    dps: Sequence[int] | None = None
    eps: Sequence[bool] | None = None


ANY = Splits()


def candidates(tps: Sequence[int], named: Splits, mixture: bool) -> list[Split]:
    """Return the splits to try, those of tensor parallelism alone first.

    Everything that is named is combined. What is not named is tried within the devices of the largest `tp`: two stages;
    of a mixture also whole experts on each device of one stage, and two to eight ranks with whole experts. Ranks of
    several stages, of a dense model, or with parts of experts are tried only if they are named.
    """
    pps, dps, eps = named
    stages, ranks = pps or STAGES, dps or (RANKS if mixture else (1,))
    experts = eps or ((False, True) if mixture else (False,))

    def tried(split: Split) -> bool:
        own_stages, own_ranks = split.pp > 1 and pps is None, split.dp > 1 and dps is None
        if (own_stages or own_ranks) and (split.devices > max(tps) or min(split.pp, split.dp) > 1):
            return False
        if eps is None and split.ep and split.pp > 1:
            return False
        return bool(eps is not None or split.dp == 1 or split.ep or not mixture)

    every = dict.fromkeys(Split(tp, pp, dp, ep and tp * dp > 1)   # one device has whole experts anyway
                          for dp, pp, ep, tp in product(ranks, stages, experts, tps))
    return [split for split in every if tried(split)]


def is_mixture(llm: Mapping[str, Any], base_dir: Path) -> bool:
    """Return whether the model of a client's document is a mixture of experts; False where it is not described."""
    hardware = llm.get("hardware")
    own = hardware.get("model") if isinstance(hardware, Mapping) else None
    try:
        return load_model(str(own or llm.get("model", "")), base_dir).num_experts > 0
    except InputError:   # said by the check of the scenario
        return False


def llm_of(clients: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the document of the first LLM clients."""
    return next(client for client in clients if client.get("kind", "llm") == "llm")


def own_of(llm: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Return what the clients of a layout keep of the scenario's.

    Price, links and tables are of the device that the scenario names. Hardware is composed by now.
    """
    own = {key: value for key, value in llm.items() if key not in ("name", "count", "role", "devices", "hardware")}
    hardware = llm.get("hardware")
    mine = llm.get("device", device) == device
    if not mine:
        own.pop("price_per_hour", None)
    if isinstance(hardware, Mapping) and hardware.get("kind", "composed") == "composed":
        left = OF_LAYOUT if mine and hardware.get("device", device) == device else (*OF_LAYOUT, *OF_DEVICE)
        own["hardware"] = {key: value for key, value in hardware.items() if key not in left}
    return own


def changes(clients: Sequence[Mapping[str, Any]], kind: Kind, numbers: tuple[int, ...]) -> dict[str, Any]:
    """Return the keys of the scenario that make a layout.

    The hardware of each client is composed for its device (see `own_of`).
    """
    llm = llm_of(clients)   # the first; others, of other models, stay as they are
    others = [client for client in clients if client is not llm]
    several = any(client.get("kind", "llm") == "llm" for client in others)
    name, ahead = (str(llm.get("name", "llm")), f"{llm.get('name', 'llm')}-") if several else ("llm", "")
    own = {**own_of(llm, kind.device), "device": kind.device, "parallel": kind.parallel,
           **({"price_per_hour": kind.price or 0.0} if kind.given else {})}
    if len(numbers) == 1:
        return {"clients": [{"name": name, "count": numbers[0], **own}, *others]}
    sides = [{"name": f"{ahead}{role}", "role": role, "count": count, **own}
             for role, count in zip(("prefill", "decode"), numbers, strict=True)]
    return {"clients": [*sides, *others]}
