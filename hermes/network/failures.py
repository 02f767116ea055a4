"""Failures of links: they get slower for a while, or are gone."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from hermes.config import ConfigModel, Duration
from hermes.config.every import Every
from hermes.errors import InputError, Verbatim

__all__ = ["FailingLinks", "LinkFailure"]


class LinkFailure(ConfigModel):
    """A failure of a link, both directions. Bytes that are under way go on at the link's new rate from that instant on;
    over a link that is gone they wait for it. What the network says before a transfer (`estimate_ns`, for routers) does
    not know of it."""

    between: Annotated[list[Annotated[str, Field(min_length=1, max_length=4096)]],
                       Field(min_length=2, max_length=2)] | None = None
    """Its ends: two clients, or nodes of the network. Left out, all links fail together."""
    at: Duration | None = Field(default=None, ge=0)
    """Simulated time. Left out, `every` is given."""
    every: Every | None = None
    """Random times, in hours of the link. Left out, `at` is given."""
    factor: float | None = Field(default=None, ge=1, le=1e6)
    """Time of a byte as a multiple of its usual time. Left out, the link is gone."""
    lasts: Duration | None = Field(default=None, gt=0)
    """How long it lasts. Left out, a slow link stays slow."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.at is None) == (self.every is None):
            raise InputError(Verbatim("give one of `at` and `every`"), field="at")
        if self.factor is None and self.lasts is None:
            raise InputError(Verbatim("missing: transfers wait for a link that is gone; give the time after which it "
                                      "is back, or a `factor`"), field="lasts")
        if self.every is not None and self.lasts is None:
            raise InputError(Verbatim("missing: at random times a failure has an end"), field="lasts")
        return self


class FailingLinks(ConfigModel):
    """Base of networks whose links may fail."""

    failures: list[LinkFailure] = []
    """Failures of links. Of several that a link has at a time the worst counts."""
