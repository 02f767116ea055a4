"""Parts of a gateway: what holds, sends, limits or counts the calls that it makes attempts at.

A part is one class in one file. The gateway calls the hooks of `GatewayPart` that a part has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hermes.dispatch.parts import Part

if TYPE_CHECKING:
    from hermes.core.client import Client
    from hermes.gateway.calls import Attempt, Call

__all__ = ["GatewayPart"]


class GatewayPart(Part):
    """Hooks of a part, in the order of their calls; each does nothing here.

    Attributes:
        counts_refusals: Whether it counts an attempt that no engine takes as a failure (`failed`).
        queues: Whether it keeps calls for which no client is ready.
    """

    counts_refusals = False
    queues = False

    def asked(self, call: Call) -> None:
        """Called when a call is asked for."""

    def picks(self, call: Call) -> None:
        """Called once for each call, before it enters; may set the gateway that it goes through
        (`call.stage.gateway`)."""

    def enters(self, call: Call) -> bool:
        """Return whether a call is not dispatched now: the part will dispatch it, or has refused it. Called once for
        each call, before anything else holds it."""
        return False

    def holds(self, call: Call, members: list[Client]) -> bool:
        """Return whether a call is not dispatched now: the part will dispatch it, or has refused it, or another attempt
        at it. Called before the router. members: The clients that may serve it now, a list that changes."""
        return False

    def released(self, call: Call) -> None:
        """Called when a call that waited (`call.waits`) is dispatched or over."""

    def allows(self, call: Call, client: Client) -> bool:
        """Whether a client may get an attempt that another one has refused."""
        return True

    def began(self, call: Call, client: Client) -> None:
        """Called when an attempt is at a client from now on."""

    def moved(self, call: Call, source: Client, target: Client) -> None:
        """Called when an attempt goes on at another client."""

    def failed(self, call: Call, client: Client, status: int) -> None:
        """Called when an attempt has failed at a client, or because of it, with an HTTP status."""

    def closes(self, attempt: Attempt) -> None:
        """Called when an attempt that is not complete is over for its user, while its client has it as it was."""

    def gone(self, attempt: Attempt, output_tokens: int) -> None:
        """Called when an attempt has left its client. output_tokens: Of one that is complete, otherwise -1."""

    def may_go_on(self, call: Call, ended: Attempt | None, reason: str) -> bool:
        """Whether another attempt at a call may go on with the tokens that its user has. ended: The one before, None if
        no client began it."""
        return False

    def repeats(self, call: Call, ended: Attempt | None, *, goes_on: bool) -> None:
        """Called when another attempt at a call is decided on, that goes on where the one before ended, or starts
        anew."""

    def forgets(self, call: Call) -> None:
        """Called when a call is over, answered or not."""

    def answered(self, call: Call, client: Client) -> None:
        """Called when an attempt has been answered in full, and somebody waits for it."""

    def seen(self, client: Client) -> None:
        """Called when a client went down, or can be reached again."""

    def members_changed(self) -> None:
        """Called when other clients are ready than before."""

    def num_waiting(self, lists: list[list[Client]]) -> int:
        """Return the calls that wait for one of these lists of clients to have a ready one."""
        return 0

    def record(self) -> Mapping[str, Any]:   # Any: fields of the record
        """Return the fields of the record that the part fills."""
        return {}

    def idle(self) -> bool:
        """Whether nothing is left; asked by tests, after the last request."""
        return True
