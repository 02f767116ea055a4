"""Model of answer quality: F1 as a function of a query's true profile and of the configuration that answered it.

A simulation writes no text, so quality is a model, replaceable (`QUALITY`) and stated in full:

    F1 = (floor + (1 - floor) * covered) * synthesis * dilution * summaries          (1 is the best attainable)

- covered: share of the needed pieces among the chunks that were read, from the rank of each in the retrieval. The ranks
  are drawn with the query (`datasets`), independently of the numbers of chunks that the pruning rule allows.
- synthesis: joint reasoning loses 1/1.35 with map_rerank, which sees one chunk at a time; high complexity loses 1/1.30
  without map_reduce (METIS measured gains of about 35% and 30%).
- dilution: unneeded chunks cost up to 20% (measured there too; "Lost in the middle", Liu et al. 2023, finds the same
  order for 10 to 30 documents): 1 - 0.2 (1 - exp(-u / 10)) for u of them in one prompt. Calls that see one chunk each
  lose half as much (`seen_apart`, assumed): an irrelevant chunk still competes for the answer.
- summaries: 1 - exp(-tokens / t). Simple queries saturate at 10-20 tokens, t = 5; complex ones need 70-100, t = 28.

The model decides signs and orderings. Sizes follow from the assumptions, so studies also run alternatives.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hermes.errors import InputError, suggest
from hermes.plugins.metis.decision import Configuration, Profile, summary_tokens

__all__ = ["QUALITY", "QualityModel", "quality_model"]


@dataclass(frozen=True)
class QualityModel:
    """Parameters of the module's formula.

    Attributes:
        floor: F1 of an answer without any needed piece.
        whole: Whether joint reasoning needs all pieces, and scores nothing otherwise.
        heavy_tail: Whether pieces rank as in open-domain retrieval (`datasets`).
    """

    floor: float = 0.2
    joint_gain: float = 1.35
    complex_gain: float = 1.30
    dilution: float = 0.2
    dilution_chunks: float = 10.0
    seen_apart: float = 0.5
    simple_tokens: float = 5.0
    complex_tokens: float = 28.0
    whole: bool = False
    heavy_tail: bool = False

    def f1(self, profile: Profile, ranks: Sequence[int], config: Configuration) -> float:
        """Return the F1 of an answer, 0 to 1. profile: the true one; ranks: of the needed pieces, from 1."""
        found = sum(rank <= config.num_chunks for rank in ranks)
        covered = found / len(ranks)
        if self.whole and profile.joint:
            covered = float(found == len(ranks))
        return ((self.floor + (1 - self.floor) * covered) * self.synthesis(profile, config.method)
                * self.diluted(config.num_chunks - found, config.method) * self.summarised(profile, config))

    def f1_of_each(self, profile: Profile, ranks: Sequence[int], configs: Iterable[Configuration]) -> list[float]:
        """Return the `f1` of each configuration; the common part is computed once."""
        ordered, pieces = sorted(ranks), len(ranks)
        synthesis: dict[str, float] = {}
        diluted: dict[tuple[int, str], float] = {}
        summarised: dict[tuple[str, int], float] = {}
        out = []
        for config in configs:
            method = config.method
            found = bisect_right(ordered, config.num_chunks)
            covered = float(found == pieces) if self.whole and profile.joint else found / pieces
            if method not in synthesis:
                synthesis[method] = self.synthesis(profile, method)
            in_vain, summary = (config.num_chunks - found, method), (method, config.summary_words)
            if in_vain not in diluted:
                diluted[in_vain] = self.diluted(*in_vain)
            if summary not in summarised:
                summarised[summary] = self.summarised(profile, config)
            out.append((self.floor + (1 - self.floor) * covered) * synthesis[method] * diluted[in_vain]
                       * summarised[summary])
        return out

    def synthesis(self, profile: Profile, method: str) -> float:
        """Return the loss of the method on a query of this kind."""
        lost = self.joint_gain if profile.joint and method == "map_rerank" else 1.0
        return 1 / (lost * (self.complex_gain if profile.complex and method != "map_reduce" else 1.0))

    def diluted(self, not_needed: int, method: str) -> float:
        """Return the loss from irrelevant chunks."""
        part = 1.0 if method == "stuff" else self.seen_apart
        return 1 - part * self.dilution * (1 - math.exp(-not_needed / self.dilution_chunks))

    def summarised(self, profile: Profile, config: Configuration) -> float:
        """Return the share of a chunk's content that its summary keeps."""
        if config.method != "map_reduce":
            return 1.0
        scale = self.complex_tokens if profile.complex else self.simple_tokens
        return 1 - math.exp(-summary_tokens(config.summary_words) / scale)


QUALITY = {
    "default": QualityModel(),
    "heavy-tail": QualityModel(heavy_tail=True),
    "weak-synthesis": QualityModel(joint_gain=1.1, complex_gain=1.1),
    "all-or-nothing": QualityModel(whole=True, floor=0.1, dilution=0.1),
    "diluted-mappers": QualityModel(seen_apart=1.0),
}
"""The study's model, and the alternatives for its conclusions: pieces that are found late or never; methods that hardly
differ; joint reasoning that needs all pieces and hardly suffers from irrelevant chunks; irrelevant chunks that cost as
much apart as in one prompt."""


def quality_model(name: str) -> QualityModel:
    """Return a model by name. Raises `InputError` for an unknown one."""
    if name not in QUALITY:
        raise InputError(f"a quality model: one of {', '.join(QUALITY)}", name, field="quality",
                         suggestion=suggest(name, QUALITY))
    return QUALITY[name]
