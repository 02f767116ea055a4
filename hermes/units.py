"""Quantities with units, as users write them: "80 GiB", "32 GB/s", "20 ms".

Conversion happens here and in exporters, nowhere else. Everything past this module is seconds, bytes, bytes per second,
tokens, watts or joules; inside the kernel time is integer nanoseconds.
"""

from __future__ import annotations

import math
import re

from hermes.errors import InputError

__all__ = ["NS_PER_S", "parse_bandwidth", "parse_bytes", "parse_duration", "parse_rate", "s_to_ns"]

NS_PER_S = 1_000_000_000

_DURATIONS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_BYTES = {"B": 1.0} | {
    f"{prefix}{infix}B": float(base**power)
    for infix, base in (("", 1000), ("i", 1024))
    for power, prefix in enumerate(("K" if infix else "k", "M", "G", "T", "P"), start=1)
} | {"KB": 1000.0}
_RATES = {"/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600}
_NUMBER = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-zµ/]*)\s*\Z")


def s_to_ns(seconds: float) -> int:
    """Seconds to integer nanoseconds, rounded half to even (the one rounding rule of the kernel)."""
    return round(seconds * NS_PER_S)


def _parse(value: object, units: dict[str, float], expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(expected, value)
    if isinstance(value, str):
        match = _NUMBER.match(value)
        if match is None or (match[2] and match[2] not in units):
            raise InputError(expected, value)
        number = float(match[1].replace("_", "")) * (units[match[2]] if match[2] else 1.0)
    else:
        try:
            number = float(value)
        except OverflowError:
            raise InputError(expected, value) from None
    if not math.isfinite(number):
        raise InputError(expected, value)
    return number


def parse_duration(value: object) -> float:
    """A duration in seconds from `20 ms`, `1.5 s`, `3 min`, or a bare number of seconds."""
    return _parse(value, _DURATIONS, "a duration such as '20 ms' or '1.5 s' (a bare number is seconds)")


def parse_bytes(value: object) -> int:
    """Bytes from `80 GiB`, `2 TB`, or a bare number of bytes."""
    return round(_parse(value, _BYTES, "a size such as '80 GiB' or '512 MB' (a bare number is bytes)"))


def parse_bandwidth(value: object) -> float:
    """Bytes per second from `32 GB/s`, `400 Gbit/s`, or a bare number."""
    units = {f"{u}/s": f for u, f in _BYTES.items()} | {f"{p}bit/s": 1000.0**i / 8 for i, p in enumerate(" kMGT")}
    units["bit/s"] = 0.125
    return _parse(value, units, "a bandwidth such as '32 GB/s' or '400 Gbit/s' (a bare number is bytes/s)")


def parse_rate(value: object) -> float:
    """Events per second from `40 /s`, `600 /min`, or a bare number."""
    return _parse(value, _RATES, "a rate such as '40 /s' (a bare number is per second)")
