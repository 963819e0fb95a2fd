"""The calls being served right now, shared by the gate and the doors of one worker.

Gate and doors run in the same process but are called by LiteLLM at different places; what
one of them learns about a call is kept here, under an id that only we hand out.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field

from plugins.account import Account
from plugins.policy.call import Call
from plugins.policy.grants import Deployment
from plugins.policy.identity import Key
from plugins.policy.plan import Plan
from plugins.policy.refusal import Refusal

#: The name our id has in LiteLLM's metadata.
MARKER = "wicketgate_request"


@dataclass(slots=True)
class InFlight:
    """One admitted call.

    Attributes:
        attempts: One entry per call to a provider, in order: what LiteLLM says of the
            attempt, so that a bridge which announces one attempt twice counts once.

        served_by: The deployment of the latest attempt.

        refusal: Why a door stopped the call, or whose fault its failure is; the gate
            answers with it.

        account: What the call holds and has used.

        failure: Whose fault the latest failed attempt is; told when LiteLLM itself only
            says that no deployment is left.
    """

    key: Key
    call: Call | None  # None: a listing, which calls no model
    plan: Plan | None
    id: str  # ours alone; unique over all replicas
    attempts: dict[tuple[object, ...], Deployment] = field(default_factory=dict)
    served_by: Deployment | None = None
    refusal: Refusal | None = None
    failure: Refusal | None = None
    account: Account = field(default_factory=lambda: Account({}, 0))


_current: ContextVar[InFlight | None] = ContextVar("wicketgate_in_flight", default=None)
_by_id: dict[str, InFlight] = {}


def enter(entry: InFlight) -> None:
    """Register *entry* for this request; `leave` must follow."""
    _by_id[entry.id] = entry
    _current.set(entry)


def leave(entry: InFlight) -> None:
    _by_id.pop(entry.id, None)
    _current.set(None)


def current() -> InFlight | None:
    """Return the call whose request the running task serves; None outside of one."""
    return _current.get()


def by_marker(marker: object) -> InFlight | None:
    """Return the call that *marker* was handed out for; None for anything else."""
    return _by_id.get(marker) if isinstance(marker, str) else None
