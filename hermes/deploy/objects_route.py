"""HTTPRoute as time-outs and retries of the gateway, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, model_validator

from hermes.deploy.typed import Duration, Keys, Object, Part, Whole, as_whole, refuse_set, seconds_of, that
from hermes.errors import InputError, Verbatim
from hermes.gateway.config import GatewayConfig
from hermes.units import s_to_ns

__all__ = ["ROUTED", "HTTPRoute"]

ROUTED = ("timeout", "per_try", "retries", "backoff", "max_backoff")   # keys that an HTTPRoute says
STATUSES = (429, 502, 503, 504, 529)


Status = Annotated[int, BeforeValidator(that(
    as_whole, STATUSES.__contains__, f"statuses among {', '.join(map(str, STATUSES))}"))]
Weight = Annotated[int, BeforeValidator(that(as_whole, bool, "a weight from 1 on (0 sends it no request)"))]


class Retry(Part):
    attempts: Whole   # gateways differ in it
    backoff: Duration | None = None
    codes: list[Status] = []


class Backend(Part):
    beside = ("group", "kind", "name", "namespace", "port")
    weight: Weight = 1


class Rule(Part):
    beside = ("name",)
    timeouts: dict[Literal["request", "backendRequest"], Duration] = {}
    retry: Retry | None = None
    matches: list[dict[Literal["path", "method"], Keys | str]] = []   # others narrow it to requests that have them
    backend_refs: list[Backend] = []

    @model_validator(mode="after")
    def _takes_all_requests(self) -> Self:
        place = next((place for place, match in enumerate(self.matches) if match != self.matches[0]), None)
        if place is not None:
            raise InputError(Verbatim("differs from the first match; one is modelled, so keep the one of the "
                                      "workload's requests"), field=f"matches.{place}")
        if len(self.backend_refs) > 1:
            raise InputError(Verbatim("a second backend gets a share of the requests, which is not modelled; keep one"),
                             field="backendRefs.1")
        return self


class Spec(Part):
    beside = ("parentRefs", "hostnames")
    rules: list[Rule] = []

    @model_validator(mode="after")
    def _is_one_rule(self) -> Self:
        if not self.rules:
            raise InputError("a rule", Verbatim("none"), field="rules")
        place = next((place for place, rule in enumerate(self.rules) if rule != self.rules[0]), None)
        if place is not None:
            raise InputError(Verbatim("differs from the first rule; one rule is modelled, so keep the one of the "
                                      "workload's requests"), field=f"rules.{place}")
        return self


class HTTPRoute(Object):
    api_version: Literal["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"]
    kind: Literal["HTTPRoute"]
    spec: Spec

    @property
    def keys(self) -> Keys:
        """The keys of a gateway. A duration of 0 is none."""
        times, retry = self.spec.rules[0].timeouts, self.spec.rules[0].retry
        found: Keys = {key: seconds for key, text in (
            ("timeout", times.get("request")), ("per_try", times.get("backendRequest")))
            if text and (seconds := seconds_of(text))}
        if retry is None:
            return found
        again: Keys = {"retries": retry.attempts}
        if retry.backoff is not None:
            base = seconds_of(retry.backoff)
            again |= {"backoff": base, "max_backoff": 10 * base}   # Envoy: ten times the base
        if not retry.codes or set(retry.codes) == {502, 503, 504}:
            return found | again
        inner = {"per_try": found.pop("per_try")} if "per_try" in found else {}
        return found | {"retry": {"kind": "envoy", **inner, **again, "retry_on": retry.codes}}

    @classmethod
    def of(cls, gateway: GatewayConfig, elsewhere: Sequence[str] = ()) -> HTTPRoute:
        """Return the time-outs and retries of a gateway; the references to gateway and pool are the operator's.

        elsewhere: Keys that another object says.
        """
        others = [key for key in type(gateway).model_fields if key not in (*ROUTED, *elsewhere)]
        refuse_set(gateway, others, "gateway", "an HTTPRoute")
        rule: Keys = {}
        times = {name: _duration(value, key) for name, key, value in (
            ("request", "timeout", gateway.timeout), ("backendRequest", "per_try", gateway.per_try))
            if value is not None}
        if times:
            rule["timeouts"] = times
        if gateway.retries:
            if s_to_ns(gateway.max_backoff) != 10 * s_to_ns(gateway.backoff):
                raise InputError(Verbatim("is 10 times `backoff` behind an HTTPRoute; write that"),
                                 field="gateway.max_backoff")
            rule["retry"] = {"attempts": gateway.retries, "backoff": _duration(gateway.backoff, "backoff"),
                             "codes": [502, 503, 504]}
        return cls.model_validate({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
                                   "metadata": {"name": "hermes"}, "spec": {"rules": [rule]}})


def _duration(seconds: float, key: str) -> str:
    ms, rest = divmod(s_to_ns(seconds), 1_000_000)
    if rest or ms >= 99_999_000:
        raise InputError(Verbatim("is written in whole milliseconds below a day in an HTTPRoute; round it"),
                         field=f"gateway.{key}")
    return f"{ms // 1000}s{ms % 1000}ms" if ms % 1000 and ms > 1000 else f"{ms}ms" if ms % 1000 else f"{ms // 1000}s"
