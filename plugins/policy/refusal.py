"""A refusal is a value: what the caller is told, and with which status.

The table is the outside contract; README's table of refusals is tested against it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime

#: How every key of ours begins.
KEY_START = "sk-wg-"
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_.\[\]-]")

#: code -> (HTTP status, OpenAI error type). The codes and statuses are the contract.
CODES: dict[str, tuple[int, str]] = {
    "invalid_api_key": (401, "authentication_error"),
    "tenant_disabled": (403, "permission_error"),
    "model_not_allowed": (403, "permission_error"),
    "region_not_allowed": (403, "permission_error"),
    "budget_exceeded": (429, "insufficient_quota"),
    "request_too_large": (400, "invalid_request_error"),
    "price_missing": (503, "service_unavailable_error"),
    "context_length_exceeded": (400, "invalid_request_error"),
    "ledger_unavailable": (503, "service_unavailable_error"),
    "param_not_allowed": (400, "invalid_request_error"),
    "invalid_request_error": (400, "invalid_request_error"),
    "route_not_served": (404, "not_found_error"),
    "upstream_error": (502, "upstream_error"),
    "upstream_auth": (502, "upstream_error"),
    "upstream_rate_limited": (429, "rate_limit_error"),
    "gateway_error": (503, "service_unavailable_error"),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call is not served.

    Attributes:
        code: A key of `CODES`.

        message: For the caller; never holds a key, a prompt, an address or a provider's words.

        param: The field or header at fault, where there is one.

        retry_after: Whole seconds until trying again can help; None when it cannot be known.

        final: True when trying again is of no use before then: client libraries are told so.

        go_on: True when a cheaper model may be asked in its place.
    """

    code: str
    message: str
    param: str | None = None
    retry_after: int | None = None
    final: bool = False
    go_on: bool = False

    @property
    def status(self) -> int:
        return CODES[self.code][0]

    @property
    def type(self) -> str:
        return CODES[self.code][1]


def malformed(message: str, param: str | None = None) -> Refusal:
    """Return the refusal of a request that is the caller's to mend."""
    return Refusal("invalid_request_error", message, param=param)


def not_allowed(name: str, why: str = "it is not accepted by this gateway") -> Refusal:
    """Return the refusal of a field that is not on the allow-list; *name* is the caller's word."""
    # A key that was sent as a name is not repeated.
    shown = "?" if KEY_START in name else _NOT_PLAIN.sub("?", name)[:80]
    return Refusal("param_not_allowed", f"The field '{shown}' is refused: {why}.", param=shown)


def invalid_api_key() -> Refusal:
    """Return the one refusal for every key that does not open anything, whatever the reason."""
    return Refusal("invalid_api_key", "The API key is not valid.")


def model_not_allowed() -> Refusal:
    """Return the one refusal for a model that is not granted, whether or not it exists."""
    return Refusal("model_not_allowed", "This key may not use the requested model.", param="model")


def ledger_unavailable() -> Refusal:
    return Refusal(
        "ledger_unavailable",
        "The gateway cannot check this call right now. Nothing was sent to a provider.",
        retry_after=5,
    )


def budget_refusal(
    verdict: str,
    scope: str | None,
    unit: str | None,
    window: str | None,
    resets_at: datetime | None,
    now: datetime,
    *,
    go_on: bool = False,
) -> Refusal:
    """Return the refusal for what a hold was turned away with.

    Args:
        verdict: `budget_exceeded`, `request_too_large` or `price_missing`.

        resets_at: When the budget's window ends; None: never.
    """
    what = f"the {window} budget of this {scope} ({unit})"
    if verdict == "price_missing":
        return Refusal(
            verdict,
            "A money budget covers this call, and a model it needs has no price.",
            param="model",
        )
    if verdict == "request_too_large":
        message = f"This call could never fit {what}, even when nothing is used."
        return Refusal(verdict, message, go_on=go_on)
    wait = None if resets_at is None else max(0, math.ceil((resets_at - now).total_seconds()))
    message = f"What is left of {what} does not pay for this call."
    return Refusal(verdict, message, retry_after=wait, final=True, go_on=go_on)


def gateway_error() -> Refusal:
    """Return the fixed text for a fault of our own; the cause goes to the log only."""
    return Refusal("gateway_error", "The gateway could not handle this call.")
