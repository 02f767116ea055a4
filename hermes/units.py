"""Quantities with units, as users write them: "80 GiB", "32 GB/s", "20 ms".

Only this module and the exporters convert units. All other code uses seconds, bytes, bytes per second, tokens, watts
and joules; the kernel uses integer nanoseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from hermes.errors import InputError

__all__ = [
    "NS_PER_S", "counted", "parse_bandwidth", "parse_bytes", "parse_duration", "parse_number", "parse_rate", "pattern",
    "s_to_ns", "unit_of",
]

NS_PER_S = 1_000_000_000

_DURATIONS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "msec": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0,
    "second": 1.0, "seconds": 1.0, "min": 60.0, "mins": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0,
    "hr": 3600.0, "hrs": 3600.0, "hour": 3600.0, "hours": 3600.0,
}
_PREFIXED = {
    f"{prefix}{infix}B": float(base**power)
    for infix, base in (("", 1000), ("i", 1024))
    for power, prefix in enumerate(("K" if infix else "k", "M", "G", "T", "P"), start=1)
} | {"KB": 1000.0, "kiB": 1024.0}
_BYTES = {"B": 1.0, "byte": 1.0, "bytes": 1.0} | _PREFIXED | {unit.lower(): f for unit, f in _PREFIXED.items()} | {
    unit.upper(): f for unit, f in _PREFIXED.items()
}
# "Gb/s" and "Gbps" are bits and "GB/s" bytes; in small letters a unit is ambiguous, and refused.
_BANDWIDTHS = {f"{unit}{per}": f for unit, f in ({"B": 1.0} | _PREFIXED).items() for per in ("/s", "ps")} | {
    f"{prefix}{bit}": 1000.0**power / 8
    for power, prefix in enumerate(("", "k", "M", "G", "T")) for bit in ("bit/s", "bits/s", "b/s", "bps")
}
_RATES = {
    f"{what}/{per}": rate
    for what in ("", "req", "reqs", "request", "requests", "query", "queries")
    for per, rate in (
        ("s", 1.0), ("sec", 1.0), ("second", 1.0), ("min", 1 / 60), ("minute", 1 / 60), ("h", 1 / 3600),
        ("hr", 1 / 3600), ("hour", 1 / 3600),
    )
} | {"rps": 1.0, "qps": 1.0, "RPS": 1.0, "QPS": 1.0, "rpm": 1 / 60, "RPM": 1 / 60, "Hz": 1.0}
_AMOUNT = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_NUMBER = re.compile(rf"\s*({_AMOUNT})\s*([A-Za-zµμ/]*)\s*\Z")


# Units of columns of tables: by name, or by its end. Every other number is a count, a share, a factor or an index: "1".
_UNITS = {
    "bytes": "bytes", "dollars": "USD", "block_size": "tokens", "max_num_batched_tokens": "tokens",
    "prefill_past": "tokens", "decode_ctx": "tokens", "decode_ctx_max": "tokens", "kv_block_s": "blocks s",
    "price_per_hour": "USD/h", "capacity_bytes_per_s": "bytes/s", "kv_bytes_per_token": "bytes/token",
}
_UNIT_ENDS = {
    "tokens_per_s": "tokens/s", "_per_s": "1/s", "_s": "s", "_ns": "ns", "tokens_per_j": "tokens/J",
    "_tokens": "tokens", "_bytes": "bytes", "_j": "J", "_w": "W", "_dollars": "USD",
}
_STATISTIC = re.compile(r"\.(mean|min|max|p[0-9]+)\Z")   # of a figure of a sweep: latency.ttft_s.p99


def unit_of(column: str) -> str:
    """Return the unit of a column of numbers from its name: s, tokens, bytes, J, W, ..., or 1."""
    name = _STATISTIC.sub("", column).rpartition(".")[2]
    return _UNITS.get(name) or next((unit for end, unit in _UNIT_ENDS.items() if name.endswith(end)), "1")


def counted(number: int, noun: str) -> str:
    """Return "1 device", "1,200 devices"."""
    return f"{number:,} {noun}" + ("s" if number != 1 else "")


def parse_number(value: object) -> float:
    """Convert a number, or its text in ASCII digits. (`float` also takes `1_000` and digits of other scripts.)

    Raises `ValueError` or `TypeError` for anything else, except NaN and infinities.
    """
    if isinstance(value, bool) or (isinstance(value, str) and ("_" in value or not value.isascii())):
        raise ValueError(value)
    return float(value)  # type: ignore[arg-type]


def s_to_ns(seconds: float) -> int:
    """Convert seconds to integer nanoseconds, rounded half to even (the only rounding rule of the kernel)."""
    return round(seconds * NS_PER_S)


def _parse(value: object, units: dict[str, float], expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(expected, value)
    if isinstance(value, str):
        match = _NUMBER.match(value)
        if match is None:
            raise InputError(expected, value)
        if match[2] and match[2] not in units:
            raise InputError(expected, value, suggestion=_capitalised(match[2], units))
        number = float(match[1]) * (units[match[2]] if match[2] else 1.0)
    else:
        try:
            number = float(value)
        except OverflowError:
            raise InputError(expected, value) from None
    if not math.isfinite(number):
        raise InputError(expected, value)
    return number


def _capitalised(unit: str, units: dict[str, float]) -> str | None:
    """Return the unit in correct capitals; both spellings if it is ambiguous ("gb/s")."""
    found = {units[known]: known for known in reversed(units) if known.lower() == unit.lower()}
    return " or ".join(reversed(found.values())) or None


def parse_duration(value: object) -> float:
    """Parse a duration in seconds: `20 ms`, `1.5 sec`, `3 min`, or a bare number of seconds."""
    return _parse(value, _DURATIONS, "a duration such as '20 ms' or '1.5 s' (a bare number is seconds)")


def parse_bytes(value: object) -> int:
    """Parse bytes: `80 GiB`, `2 tb`, or a bare number of bytes. `Gb` is refused, because it usually means bits."""
    return round(_parse(value, _BYTES, "a size such as '80 GiB' or '512 MB' (a bare number is bytes)"))


def parse_bandwidth(value: object) -> float:
    """Parse bytes per second: `32 GB/s`, `400 Gbit/s`, `400 Gbps` (bits), or a bare number."""
    return _parse(value, _BANDWIDTHS, "a bandwidth such as '32 GB/s' or '400 Gbit/s' (a bare number is bytes/s)")


def parse_rate(value: object) -> float:
    """Parse events per second: `40 /s`, `40 rps`, `600 req/min`, or a bare number."""
    return _parse(value, _RATES, "a rate such as '40 /s' (a bare number is per second)")


def pattern(parse: Callable[[object], float]) -> str:
    """Return the JSON Schema regular expression of the texts that one of the functions above parses."""
    units: dict[Callable[[object], float], dict[str, float]] = {
        parse_duration: _DURATIONS, parse_bytes: _BYTES, parse_bandwidth: _BANDWIDTHS, parse_rate: _RATES,
    }
    return rf"^\s*{_AMOUNT}\s*({'|'.join(units[parse])})?\s*$"
