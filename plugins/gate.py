"""The gate: an ASGI layer around LiteLLM's application, outermost on every launch.

It decides what may enter at all (path, key, size, fields, model), hands LiteLLM a request
without the key and without any header or field that could steer it, and gives every answer
our headers and every failure our words. LiteLLM never sees a request that is refused here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from plugins import inflight
from plugins.admission import Admission, Admitted, Incoming
from plugins.inflight import InFlight
from plugins.policy.refusal import Refusal, gateway_error
from plugins.policy.routes import (
    FORWARDED_ANTHROPIC_HEADERS,
    FORWARDED_HEADERS,
    GOVERNED,
    LIVENESS,
    PREFLIGHT_HEADERS,
    READINESS,
    Dialect,
    Route,
)
from plugins.telemetry import metrics

log = logging.getLogger("wicketgate.gate")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Answer headers of LiteLLM that mean something to a client. Its own speak of other tenants'
#: deployments, internal addresses and prices; a provider's of the operator's account.
_ANSWER_HEADERS = frozenset(
    {b"content-type", b"content-length", b"cache-control", b"vary", b"x-accel-buffering"}
)
#: How an event of a stream begins that tells of a failure. At the start of a line only: inside
#: a JSON document line ends are escaped, so no model's words can look like this.
_ERROR_EVENT = re.compile(
    rb"^(?:event: ?(?:error|response\.failed)\b"
    rb'|data: ?\{"(?:error"|type": ?"(?:error|response\.failed)"))',
    re.MULTILINE,
)
_EVENT_END = re.compile(rb"(\r?\n\r?\n)")


class Gate:
    def __init__(self, app: App, admission: Admission) -> None:
        self._app = app
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await _refuse_websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        incoming = Incoming(receive)
        if method in {"GET", "HEAD"} and (path in LIVENESS or path == READINESS):
            await self._health(path, send)
        elif (route := GOVERNED.get((method, path))) is not None:
            await self._governed(route, scope, incoming, receive, send)
        elif method == "OPTIONS" and any(path == governed for _, governed in GOVERNED):
            # Browsers ask before they call; LiteLLM's middleware knows the allowed origins.
            await self._app(_without_secrets(scope, PREFLIGHT_HEADERS), receive, send)
        else:
            await self._refuse(None, scope, _not_served(), incoming, send)

    async def _health(self, path: str, send: Send) -> None:
        if path in LIVENESS:
            await _send_json(send, 200, {"status": "alive"})
        elif self._admission.ready():
            await _send_json(send, 200, {"status": "ready"})
        else:
            await _send_json(send, 503, {"status": "not ready"})

    async def _governed(
        self, route: Route, scope: Scope, incoming: Incoming, receive: Receive, send: Send
    ) -> None:
        with metrics.timed("gate"):
            verdict = await self._decide(route, scope, incoming)
        if isinstance(verdict, Refusal):
            await self._refuse(route, scope, verdict, incoming, send)
        else:
            await self._forward(route, verdict, scope, receive, send)

    async def _decide(self, route: Route, scope: Scope, incoming: Incoming) -> Admitted | Refusal:
        try:
            return await self._admission.admit(route, scope, incoming)
        except Exception:
            log.exception("admission failed")
            return gateway_error()

    async def _forward(
        self, route: Route, admitted: Admitted, scope: Scope, receive: Receive, send: Send
    ) -> None:
        entry = admitted.entry
        answer = _Answer(route, entry, send)
        inflight.enter(entry)
        try:
            await self._app(
                _for_litellm(route, admitted, scope), _replay(admitted.body, receive), answer.send
            )
        except Exception as error:
            # LiteLLM's own text is not for the caller, and may hold the prompt.
            log.error("LiteLLM failed outside its handlers (%s)", type(error).__name__)
        finally:
            inflight.leave(entry)
        await answer.finish()

    async def _refuse(
        self,
        route: Route | None,
        scope: Scope,
        refusal: Refusal,
        incoming: Incoming,
        send: Send,
    ) -> None:
        await self._admission.drain(incoming)
        tenant, model = scope.get("wicketgate", (None, None))
        metrics.answered(tenant, model, None, refusal.code)
        await send_refusal(send, route.dialect if route else Dialect.OPENAI, refusal, {})


class _Answer:
    """Passes LiteLLM's answer on, under our headers; a failure is told in our words."""

    def __init__(self, route: Route, entry: InFlight, send: Send) -> None:
        self._route = route
        self._entry = entry
        self._send = send
        self._status: int | None = None
        self._failed = False
        self._streaming = False
        self._done = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._start(message)
        elif message["type"] == "http.response.body" and not self._failed:
            self._done = not message.get("more_body", False)
            if self._streaming and _ERROR_EVENT.search(message.get("body", b"")):
                message = {**message, "body": self._in_our_words(message["body"])}
            await self._send(message)

    async def _start(self, message: Message) -> None:
        self._status = message["status"]
        if message["status"] >= 400:
            self._failed = True
            return
        headers = [
            (name, value)
            for name, value in message.get("headers", [])
            if name in _ANSWER_HEADERS or name.startswith(b"access-control-")
        ]
        self._streaming = any(
            name == b"content-type" and value.startswith(b"text/event-stream")
            for name, value in headers
        )
        headers.extend(
            (name.encode("ascii"), value.encode("ascii"))
            for name, value in answer_headers(self._entry).items()
        )
        await self._send({**message, "headers": headers})

    def _in_our_words(self, events: bytes) -> bytes:
        """Replace each event of *events* that tells of a failure; leave the others."""
        if self._entry.refusal is None:
            self._entry.refusal = Refusal("upstream_error", "The provider broke off its answer.")
        document = error_body(self._route.dialect, self._entry.refusal)
        data = b"data: " + orjson.dumps(document)
        if self._route.dialect is Dialect.ANTHROPIC:
            data = b"event: error\n" + data
        elif self._route.path == "/v1/responses":
            data = b"event: error\ndata: " + orjson.dumps({**document["error"], "type": "error"})
        return b"".join(
            data if _ERROR_EVENT.match(piece) else piece for piece in _EVENT_END.split(events)
        )

    def _refusal(self) -> Refusal:
        if self._entry.refusal is not None:
            return self._entry.refusal
        if self._entry.attempts:
            return Refusal("upstream_error", "The provider did not answer this call.")
        if self._status is not None and 400 <= self._status < 500:
            return Refusal("invalid_request_error", "The request is not valid for this model.")
        return gateway_error()

    async def finish(self) -> None:
        entry = self._entry
        failed = self._failed or self._status is None
        if failed:
            refusal = self._refusal()
            await send_refusal(self._send, self._route.dialect, refusal, answer_headers(entry))
        elif not self._done:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        code = self._refusal().code if failed or entry.refusal is not None else "ok"
        metrics.answered(
            entry.key.tenant.name,
            entry.call.model if entry.call else None,
            entry.served_by.provider if entry.served_by else None,
            code,
        )


def answer_headers(entry: InFlight) -> dict[str, str]:
    """Return the `x-wg-*` headers of the contract, ASCII only."""
    headers = {"x-wg-request-id": entry.id}
    if entry.call is None:
        return headers
    served = entry.served_by
    headers |= {
        "x-wg-route": "by-name",
        "x-wg-attempts": str(len(entry.attempts)),
        "x-wg-adjusted": "none",
    }
    if served is not None:
        headers |= {
            "x-wg-model": ascii_only(served.model),
            "x-wg-provider": ascii_only(served.provider),
            "x-wg-region": ascii_only(served.region),
        }
    return headers


def ascii_only(text: str) -> str:
    """Return *text* for a header: what is not printable ASCII is escaped as in Python."""
    return "".join(c if " " <= c <= "~" else c.encode("unicode_escape").decode() for c in text)


def error_body(dialect: Dialect, refusal: Refusal) -> dict[str, Any]:
    error = {
        "message": refusal.message,
        "type": refusal.type,
        "param": refusal.param,
        "code": refusal.code,
    }
    return {"type": "error", "error": error} if dialect is Dialect.ANTHROPIC else {"error": error}


async def send_refusal(
    send: Send, dialect: Dialect, refusal: Refusal, headers: dict[str, str]
) -> None:
    extra = dict(headers)
    if refusal.retry_after is not None:
        extra["retry-after"] = str(refusal.retry_after)
    await _send_json(send, refusal.status, error_body(dialect, refusal), extra)


async def _send_json(
    send: Send, status: int, document: Any, extra: dict[str, str] | None = None
) -> None:
    body = orjson.dumps(document)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode("ascii")),
        *((name.encode("ascii"), value.encode("ascii")) for name, value in (extra or {}).items()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _refuse_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    """Turn a socket away before it is accepted; no governed path speaks WebSocket."""
    await receive()
    refusal = _not_served()
    metrics.answered(None, None, None, refusal.code)
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    body = orjson.dumps(error_body(Dialect.OPENAI, refusal))
    await send(
        {
            "type": "websocket.http.response.start",
            "status": refusal.status,
            "headers": [(b"content-type", b"application/json")],
        }
    )
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


def _not_served() -> Refusal:
    return Refusal("route_not_served", "This gateway does not serve this path.")


def _for_litellm(route: Route, admitted: Admitted, scope: Scope) -> Scope:
    """Return the request as LiteLLM may see it: no key, no query, no steering header."""
    allowed = (
        FORWARDED_ANTHROPIC_HEADERS if route.dialect is Dialect.ANTHROPIC else FORWARDED_HEADERS
    )
    inner = _without_secrets(scope, allowed)
    inner["path"] = route.path
    inner["raw_path"] = route.path.encode("ascii")
    if admitted.body:
        inner["headers"].append((b"content-length", str(len(admitted.body)).encode("ascii")))
    return inner


def _without_secrets(scope: Scope, allowed: frozenset[str]) -> Scope:
    kept = {name.encode("ascii") for name in allowed}
    return {
        **scope,
        "query_string": b"",
        "headers": [(name, value) for name, value in scope["headers"] if name in kept],
    }


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give LiteLLM the body that was read and checked, then the client's own messages."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return waiting.pop() if waiting else await receive()

    return next_message
