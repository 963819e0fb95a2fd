"""Whether a request may enter: who asks, for what, and who may serve it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl
from uuid import uuid4

import orjson

from plugins.account import Account
from plugins.books import Books
from plugins.inflight import InFlight
from plugins.keeper import Keeper
from plugins.ledger.database import LedgerUnavailable
from plugins.policy.call import MAX_DEPTH, Call, Limits, read_call, too_many_values, unreadable_text
from plugins.policy.grants import Deployment
from plugins.policy.identity import Key
from plugins.policy.plan import Catalog, Plan, make_plan
from plugins.policy.refusal import (
    Refusal,
    gateway_error,
    invalid_api_key,
    ledger_unavailable,
    malformed,
)
from plugins.policy.routes import Route
from plugins.policy.usage import MOST_TOKENS
from plugins.tokens import context

#: A known tenant that is refused may finish sending up to so many times the largest body.
_DRAIN_FACTOR = 4
#: Seconds a client may take to send its body, and to finish sending one that is refused.
_READ_LIMIT = 60.0
_DRAIN_LIMIT = 5.0
#: Bytes from which a body is read in a thread, so that one caller does not hold up the rest.
_LARGE = 200_000


Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_CLIENT_LEFT = Refusal("invalid_request_error", "The client left while sending.")


class Incoming:
    """The body of one request: read once, never past its end."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._complete = False

    async def read(self, limit: int) -> bytes | Refusal | None:
        """Return the body; None when it is longer than *limit* bytes."""
        chunks: list[bytes] = []
        size = 0
        while not self._complete:
            chunk = await self._next()
            if chunk is None:
                return _CLIENT_LEFT
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                return None
        return b"".join(chunks)

    async def drain(self, limit: int) -> None:
        """Read and forget the rest, up to *limit* bytes.

        A client that is refused while it still sends would otherwise see a broken
        connection in place of the answer.
        """
        size = 0
        while not self._complete and size <= limit:
            chunk = await self._next()
            if chunk is None:
                return
            size += len(chunk)

    async def _next(self) -> bytes | None:
        """Return the next piece; None when the client has left."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._complete = True
            return None
        self._complete = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body


@dataclass(slots=True)
class Note:
    """What is known of a request so far, for the metrics and the answer's headers."""

    id: str
    tenant: str | None = None
    model: str | None = None


def noted(scope: MutableMapping[str, Any]) -> Note:
    """Return the note of a request; it begins with a fresh id."""
    note: Note = scope.setdefault("wicketgate", Note(str(uuid4())))
    return note


@dataclass(frozen=True, slots=True)
class Admitted:
    entry: InFlight
    body: bytes


class Entrance:
    """Decides on the snapshot in memory; no call costs a query."""

    def __init__(
        self,
        keeper: Keeper,
        catalog: Catalog,
        limits: Limits,
        *,
        now: Callable[[], datetime],
        sound: Callable[[], bool],
        books: Books,
    ) -> None:
        """Take what decides; *sound* says whether the boot check has passed."""
        self._books = books
        self._keeper = keeper
        self._catalog = catalog
        self._limits = limits
        self._now = now
        self._sound = sound

    def ready(self) -> bool:
        return self._sound() and self._keeper.current() is not None

    async def admit(
        self, route: Route, scope: MutableMapping[str, Any], incoming: Incoming
    ) -> Admitted | Refusal:
        """Return the call to forward, or why it is refused; note in *scope* whose it is."""
        note = noted(scope)
        headers = _headers(scope["headers"])
        if isinstance(headers, Refusal):
            return headers
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy in front that trusts the other of the two would see another request.
            return malformed("Send either Content-Length or Transfer-Encoding.", "content-length")
        key = self._identify(headers)
        if isinstance(key, Refusal):
            return key
        note.tenant = key.tenant.name
        problem = _query_problem(scope["query_string"])
        if problem is not None:
            return problem
        if route.fields is None:
            return Admitted(InFlight(key, None, None, note.id), b"")
        body = await self._body(headers, incoming)
        if isinstance(body, Refusal):
            return body
        if len(body) > _LARGE:
            read = await asyncio.to_thread(self._read, route, headers, body)
        else:
            read = self._read(route, headers, body)
        if isinstance(read, Refusal):
            return read
        call, cleaned = read
        if call.model in self._catalog.groups:
            note.model = call.model
        account = Account(cleaned, len(body))
        plan = await self._plan(call, key, account)
        if isinstance(plan, Refusal):
            return plan
        entry = InFlight(key, call, plan, note.id, account=account)
        problem = await self._set_aside(entry, call, plan)
        if problem is not None:
            return problem
        return Admitted(entry, orjson.dumps(cleaned))

    async def _set_aside(self, entry: InFlight, call: Call, plan: Plan) -> Refusal | None:
        """Hold what the first attempt may use, at the first deployment where it fits.

        Before LiteLLM is asked: a call that is over its budget costs no more than the question.
        """
        first: Refusal | None = None
        for position, model in enumerate(plan.models):
            for deployment in self._members(model, plan):
                held = await self._books.hold(entry.id, entry.key, call, entry.account, deployment)
                if not isinstance(held, Refusal):
                    entry.account.prepared = held
                    entry.account.downgraded = position > 0
                    entry.plan = replace(plan, models=plan.models[position:])
                    return None
                first = first or held
            if first is not None and not first.go_on:
                break
        return first

    def _members(self, model: str, plan: Plan) -> list[Deployment]:
        """Return the planned deployments of a model in random order, to spread the load."""
        members = [d for d in self._catalog.groups[model] if d.id in plan.deployments]
        return random.sample(members, len(members))

    def _identify(self, headers: Mapping[str, str]) -> Key | Refusal:
        if not self._sound():
            return gateway_error()
        snapshot = self._keeper.current()
        if snapshot is None:
            return ledger_unavailable()
        secret = _secret(headers)
        return invalid_api_key() if secret is None else snapshot.identify(secret, self._now())

    def still_valid(self, key: Key) -> Key | Refusal:
        """Return *key* as it stands now, for a door that runs a moment later."""
        snapshot = self._keeper.current()
        if snapshot is None:
            return ledger_unavailable()
        return snapshot.look_again(key, self._now())

    async def _body(self, headers: Mapping[str, str], incoming: Incoming) -> bytes | Refusal:
        kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind != "application/json":
            return Refusal(
                "invalid_request_error",
                "Send the body as JSON, with the header 'Content-Type: application/json'.",
                param="content-type",
            )
        if headers.get("content-encoding", "identity") != "identity":
            return Refusal(
                "invalid_request_error", "Send the body uncompressed.", param="content-encoding"
            )
        announced = headers.get("content-length", "")
        if announced.isdecimal() and (
            len(announced) > 18 or int(announced) > self._limits.max_body_bytes
        ):
            return self._too_large()
        try:
            async with asyncio.timeout(_READ_LIMIT):
                body = await incoming.read(self._limits.max_body_bytes)
        except TimeoutError:
            return malformed(f"The body did not arrive within {_READ_LIMIT:.0f} seconds.")
        return self._too_large() if body is None else body

    def _too_large(self) -> Refusal:
        return Refusal(
            "invalid_request_error",
            f"The body is larger than {self._limits.max_body_bytes} bytes.",
        )

    def _read(
        self, route: Route, headers: Mapping[str, str], body: bytes
    ) -> tuple[Call, dict[str, Any]] | Refusal:
        problem = too_many_values(body)
        if problem is not None:
            return problem
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            return Refusal("invalid_request_error", "The body is not valid JSON.")
        suspect = b"\\u0000" in body or body.count(b"[") + body.count(b"{") > MAX_DEPTH
        problem = unreadable_text(document) if suspect else None
        return problem or read_call(route, headers, document, self._limits)

    async def _plan(self, call: Call, key: Key, account: Account) -> Plan | Refusal:
        plan = make_plan(call, key.tenant.grants, self._catalog)
        if isinstance(plan, Refusal):
            return plan
        # A token has at least one byte: a short body fits without being counted.
        contexts = self._catalog.context
        tight = [id_ for id_ in plan.deployments if account.size > contexts.get(id_, MOST_TOKENS)]
        if not tight:
            return plan
        at_least = await asyncio.to_thread(context.at_least, account.body)
        counted = {id_: await self._books.count(account, id_) for id_ in tight}
        tokens = {id_: c.tokens if c.exact else at_least for id_, c in counted.items()}
        return make_plan(call, key.tenant.grants, self._catalog, tokens)

    async def standing(self, key: Key) -> dict[str, Any] | Refusal:
        """Return what a key may see of itself: its grants, budgets, and today's spend."""
        try:
            standing = await self._books.standing(key)
        except LedgerUnavailable:
            return ledger_unavailable()
        grants = key.tenant.grants
        return {
            "tenant": key.tenant.name,
            "zone": key.tenant.zone,
            "key": {"prefix": key.prefix, "alias": key.alias, "expires_at": key.expires_at},
            "grants": {
                "models": sorted(grants.models),
                "providers": sorted(grants.providers),
                "regions": sorted(grants.regions),
            },
            **standing,
        }

    def close(self, entry: InFlight, *, client_left: bool) -> None:
        """Settle what no hook has settled by the time the answer is over."""
        account = entry.account
        if entry.call is not None:
            self._books.end_task_soon(entry.key, entry.call)
        if account.prepared is not None:
            self._books.void_soon(account.prepared)
        for attempt in account.attempts.values():
            status = "cancelled" if client_left else "failed"
            if attempt.meter.pieces:
                status = "partial"
            code = "client_left" if client_left else "upstream_error"
            self._books.settle_soon(account, attempt, status, code)

    async def drain(self, incoming: Incoming, note: Note) -> None:
        """Let a refused client finish sending, within bounds; a stranger gets less of them."""
        factor = 1 if note.tenant is None else _DRAIN_FACTOR
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_LIMIT):
                await incoming.drain(factor * self._limits.max_body_bytes)


def _headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str] | Refusal:
    """Return the headers as text; two of one name that we read are refused."""
    headers: dict[str, str] = {}
    for name_bytes, value_bytes in raw:
        name = name_bytes.decode("latin-1").lower()
        if name in headers and name in _SINGLE:
            return Refusal("invalid_request_error", f"The header '{name}' came twice.", param=name)
        try:
            headers[name] = value_bytes.decode("utf-8")
        except UnicodeDecodeError:
            headers[name] = value_bytes.decode("latin-1")
    return headers


_SINGLE = frozenset(
    {"authorization", "x-api-key", "content-type", "content-length", "content-encoding",
     "x-data-class", "x-task-type", "x-task-id", "x-task-outcome", "x-max-cost-usd"}
)  # fmt: skip


def _secret(headers: Mapping[str, str]) -> str | None:
    """Return the key that was sent; None when there is none, or two that differ."""
    sent = set()
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        sent.add(bearer.strip())
    if "x-api-key" in headers:
        sent.add(headers["x-api-key"].strip())
    return sent.pop() if len(sent) == 1 else None


def _query_problem(query: bytes) -> Refusal | None:
    names = {name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True)}
    if "model" in names:
        return Refusal(
            "param_not_allowed", "Name the model in the body, not in the query.", param="model"
        )
    return None
