"""Cloud machines and Kubernetes labels by the accelerator in them.

A device in HERMES is one card: a machine's name stands for a card of it, however many it has. Names are those of the
providers' pages on their machine types (AWS, Google Cloud, Azure, Oracle), of GKE's accelerator labels and of
`nvidia.com/gpu.product`.
"""

from __future__ import annotations

import re

__all__ = ["card_of"]

_AZURE = r"(standard-)?"
_MACHINES = tuple((re.compile(pattern), card) for pattern, card in (
    # AWS
    (r"p6e?-gb200\b.*", "gb200"), (r"p6-b(200|300)\b.*", r"b\1"), (r"p5(e|en)(\..*)?", "h200"),
    (r"p5(\..*)?", "h100-sxm"), (r"p4de(\..*)?", "a100-80gb"), (r"p4d(\..*)?", "a100-40gb"),
    (r"p3(dn)?(\..*)?", "v100"), (r"g7e(\..*)?", "rtx-pro-6000"),
    (r"g6e(\..*)?", "l40s"), (r"gr?6f?(\..*)?", "l4"), (r"g5(\..*)?", "a10g"), (r"g4dn(\..*)?", "t4"),
    (r"trn2u?(\..*)?", "trainium2"), (r"inf2(\..*)?", "inferentia2"),
    # Google Cloud
    (r"a4x-(high|max)gpu(-\w+)?", "gb200"), (r"a4-highgpu(-\w+)?", "b200"), (r"a3-ultragpu(-\w+)?", "h200"),
    (r"a3-(high|mega|edge)gpu(-\w+)?", "h100-sxm"), (r"a2-ultragpu(-\w+)?", "a100-80gb"),
    (r"a2-(high|mega)gpu(-\w+)?", "a100-40gb"), (r"g2-standard(-\d+)?", "l4"), (r"g4-standard(-\d+)?", "rtx-pro-6000"),
    (r"ct5lp-hightpu-\w+|tpu-v5-lite-(podslice|device)|v5litepod-\d+", "tpu-v5e"),
    (r"ct6e-standard-\w+|tpu-v6e-slice|v6e-\d+", "tpu-v6e"), (r"ct5p-hightpu-\w+|tpu-v5p-slice", "tpu-v5p"),
    (r"nvidia-h100-mega-80gb", "h100-sxm"), (r"nvidia-tesla-a100", "a100-40gb"),
    # Azure: families as on its pages, and sizes
    (rf"{_AZURE}nd(\d+\w*)?-(ndr-)?gb(200|300)-v6", r"gb\4"), (rf"{_AZURE}nd(\d+\w*)?-h100-v5", "h100-sxm"),
    (rf"{_AZURE}nd(\d+\w*)?-h200-v5", "h200"), (rf"{_AZURE}nd(\d+\w*)?-mi300x-v5", "mi300x"),
    (rf"{_AZURE}(nd96am\w*-a100-v4|ndm-a100-v4)", "a100-80gb"), (rf"{_AZURE}(nd96as\w*-v4|nd-a100-v4)", "a100-40gb"),
    (rf"{_AZURE}nc(\d+|c)?\w*-h100-v5", "h100-nvl"), (rf"{_AZURE}nc(\d+)?\w*-a100-v4", "a100-pcie"),
    (rf"{_AZURE}nc\d*\w*-t4-v3", "t4"), (rf"{_AZURE}nv\w*-a10-v5", "a10"),
    # Oracle
    (r"bm\.gpu\.(h100|h200|b200|gb200|mi300x|l40s|b300)\.\d+", "oracle"), (r"bm\.gpu\.a100-v2\.8", "a100-80gb"),
    (r"bm\.gpu4\.8", "a100-40gb"), (r"(bm|vm)\.gpu\.a10\.\d+", "a10"),
))
_ORACLE = {"h100": "h100-sxm"}


def card_of(text: str) -> str | None:
    """Return the card of a machine; None for a name of none."""
    plain = re.sub(r"[\s_]+", "-", text.strip().lower())
    for pattern, card in _MACHINES:
        found = pattern.fullmatch(plain)
        if found is not None:
            return _ORACLE.get(found[1], found[1]) if card == "oracle" else found.expand(card)
    return None
