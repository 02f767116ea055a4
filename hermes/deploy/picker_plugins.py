"""Plugins of an EndpointPickerConfig: what each is, which parameters it takes, and which are not modelled and why.

Names and parameters are those of https://github.com/llm-d/llm-d-router (pkg/epp/framework/plugins, read, not run),
older names included. Parameters without an effect on placements are in the second column of `KINDS`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from hermes.deploy.objects_flow import FLOW_PLUGINS, FlowControl, Plugin, SaturationDetector, parameters
from hermes.deploy.options import options, pairs
from hermes.deploy.typed import Keys, Number, Object, Part
from hermes.errors import InputError, Verbatim

SCORERS, PICKERS, RENAMED = (pairs("llm-d", use) for use in ("scorers", "pickers", "renamed"))
HANDLERS = ("pd-profile-handler", "disagg-profile-handler")
SINGLE = ("single-profile-handler", "data-parallel-profile-handler")
PHASES = {"decode": "decode-filter", "prefill": "prefill-filter"}   # the filter that a profile of a phase needs
APPROXIMATE, PRECISE = "approx-prefix-cache-producer", "precise-prefix-cache-producer"
DECIDER = "prefix-based-pd-decider"
PIN = "session-affinity-filter"
DECIDERS = (DECIDER, "always-disagg-pd-decider")

KINDS = FLOW_PLUGINS | parameters("parameters")
"""Plugin -> parameters that are read, and those without an effect."""

BESIDE = frozenset(options("llm-d", "beside"))
"""Plugins without an effect on placements, whatever their parameters."""

REFUSED = pairs("llm-d", "refused")
"""Plugins that change placements and are not modelled -> how."""


# -- the object ------------------------------------------------------------------------------------------------------

class Entry(Part):
    type: str
    name: str | None = None
    parameters: Keys | None = None


class Row(Part):
    plugin_ref: str
    weight: Number = 1.0   # llm-d's DefaultScorerWeight


class Profile(Part):
    name: str
    plugins: list[Row] = []


class EndpointPickerConfig(Object):
    beside = ("metadata", "status", "dataLayer", "requestHandler", "parser")
    api_version: Literal["inference.networking.x-k8s.io/v1alpha1", "llm-d.ai/v1alpha1", "llm-d.ai/v1"]
    kind: Literal["EndpointPickerConfig"]
    feature_gates: list[str] = []
    plugins: list[Entry] = []
    scheduling_profiles: list[Profile] = []
    saturation_detector: SaturationDetector | None = None
    flow_control: FlowControl | None = None


def plugins_of(config: EndpointPickerConfig) -> dict[str, Plugin]:
    """Return the plugins of a file by name, in its order. Raises `InputError` for one that changes placements and is
    not modelled."""
    found: dict[str, Plugin] = {}
    for place, entry in enumerate(config.plugins):
        path, name = f"plugins.{place}", entry.type if entry.name is None else entry.name
        kind = RENAMED.get(entry.type, entry.type)
        if kind not in KINDS and kind not in BESIDE:
            why = f": {REFUSED[kind]}" if kind in REFUSED else ""
            raise InputError(Verbatim(f"{kind!r} is not modelled{why}; remove the plugin"), field=f"{path}.type")
        if name in found:
            raise InputError(Verbatim(f"a second plugin {name!r}; give it another name"), field=path)
        plugin = Plugin(name, kind, path, f"{path}.parameters", entry.parameters or {})
        found[name] = plugin._replace(given={}) if kind in BESIDE else plugin.among(*KINDS[kind])
    return found


def only(plugins: Mapping[str, Plugin], kinds: Collection[str]) -> list[Plugin]:
    """Return the plugins of some types."""
    return [plugin for plugin in plugins.values() if plugin.kind in kinds]
