"""The gate: an ASGI layer around LiteLLM's application, outermost on every launch.

It decides what may enter at all (path, key, size, fields, model), hands LiteLLM a request
without the key and without any header or field that could steer it, and gives every answer
our headers and every failure our words. LiteLLM never sees a request that is refused here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from plugins import inflight, logs
from plugins.answer import (
    Answer,
    Message,
    Send,
    answer_headers,
    error_body,
    send_json,
    send_refusal,
)
from plugins.entrance import Admitted, Entrance, Incoming, noted
from plugins.policy.refusal import Refusal, gateway_error
from plugins.policy.routes import (
    FORWARDED_ANTHROPIC_HEADERS,
    FORWARDED_HEADERS,
    GOVERNED,
    LIVENESS,
    ME,
    PREFLIGHT_HEADERS,
    READINESS,
    Dialect,
    Route,
)
from plugins.telemetry import metrics

log = logging.getLogger("wicketgate.gate")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Gate:
    def __init__(self, app: App, entrance: Entrance) -> None:
        self._app = app
        self._entrance = entrance

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
        elif method == "OPTIONS" and _is_preflight(path, scope):
            # Browsers ask before they call; LiteLLM's middleware knows the allowed origins.
            await self._app(_without_secrets(scope, PREFLIGHT_HEADERS), receive, send)
        else:
            await self._refuse(None, scope, _not_served(), incoming, send)

    async def _health(self, path: str, send: Send) -> None:
        if path in LIVENESS:
            await send_json(send, 200, {"status": "alive"})
        elif self._entrance.ready():
            await send_json(send, 200, {"status": "ready"})
        else:
            await send_json(send, 503, {"status": "not ready"})

    async def _governed(
        self, route: Route, scope: Scope, incoming: Incoming, receive: Receive, send: Send
    ) -> None:
        with metrics.timed("gate"):
            verdict = await self._decide(route, scope, incoming)
        if isinstance(verdict, Refusal):
            await self._refuse(route, scope, verdict, incoming, send)
        elif route is ME:
            await self._me(verdict, scope, incoming, send)
        else:
            await self._forward(route, verdict, scope, receive, send)

    async def _me(self, admitted: Admitted, scope: Scope, incoming: Incoming, send: Send) -> None:
        try:
            standing = await self._entrance.standing(admitted.entry.key)
        except Exception as error:
            logs.fault(log, "/v1/me", error)
            standing = gateway_error()
        if isinstance(standing, Refusal):
            await self._refuse(ME, scope, standing, incoming, send)
            return
        metrics.answered(admitted.entry.key.tenant.name, None, None, "ok")
        await send_json(send, 200, standing, answer_headers(admitted.entry))

    async def _decide(self, route: Route, scope: Scope, incoming: Incoming) -> Admitted | Refusal:
        try:
            return await self._entrance.admit(route, scope, incoming)
        except Exception as error:
            logs.fault(log, "the gate", error)
            return gateway_error()

    async def _forward(
        self, route: Route, admitted: Admitted, scope: Scope, receive: Receive, send: Send
    ) -> None:
        entry = admitted.entry
        answer = Answer(route, entry, send)
        inflight.enter(entry)
        crashed = False
        client = Client(receive, admitted.body)
        try:
            inner = self._app(_for_litellm(route, admitted, scope), client.receive, answer.send)
            if entry.call is not None and entry.call.stream:
                await client.serve_while_there(inner, answer)
            else:
                await inner
        except Exception as error:
            # LiteLLM's own text is not for the caller, and may hold the prompt.
            logs.fault(log, "LiteLLM", error)
            crashed = True
        finally:
            inflight.leave(entry)
            self._entrance.close(entry, client_left=client.left)
        await answer.finish(crashed)

    async def _refuse(
        self,
        route: Route | None,
        scope: Scope,
        refusal: Refusal,
        incoming: Incoming,
        send: Send,
    ) -> None:
        note = noted(scope)
        await self._entrance.drain(incoming, note)
        metrics.answered(note.tenant, note.model, None, refusal.code)
        headers = {"x-wg-request-id": note.id, "x-wg-attempts": "0", "x-wg-adjusted": "none"}
        await send_refusal(send, route.dialect if route else Dialect.OPENAI, refusal, headers)


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


def _is_preflight(path: str, scope: Scope) -> bool:
    """Return whether a browser asks if it may call a governed path."""
    asks = any(name == b"access-control-request-method" for name, _ in scope["headers"])
    return asks and any(path == governed for _, governed in GOVERNED)


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
        # LiteLLM chooses how to read a body by words in its type; ours is always JSON.
        inner["headers"] = [(n, v) for n, v in inner["headers"] if n != b"content-type"]
        inner["headers"].append((b"content-type", b"application/json"))
        inner["headers"].append((b"content-length", str(len(admitted.body)).encode("ascii")))
    return inner


def _without_secrets(scope: Scope, allowed: frozenset[str]) -> Scope:
    kept = {name.encode("ascii") for name in allowed}
    return {
        **scope,
        "query_string": b"",
        "headers": [(name, value) for name, value in scope["headers"] if name in kept],
    }


class Client:
    """Gives LiteLLM the body that was read and checked, then the client's own messages.

    Attributes:
        left: Whether the client has gone away.
    """

    def __init__(self, receive: Receive, body: bytes) -> None:
        self._waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        self._receive = receive
        self._next: asyncio.Task[Message] | None = None
        self.left = False

    async def receive(self) -> Message:
        if self._waiting:
            return self._waiting.pop()
        if self._next is None:
            self._next = asyncio.ensure_future(self._listen())
        return await asyncio.shield(self._next)

    async def _listen(self) -> Message:
        message = await self._receive()
        self.left = message["type"] == "http.disconnect"
        return message

    async def serve_while_there(self, inner: Awaitable[None], answer: Answer) -> None:
        """Run LiteLLM's side of a stream, and end it when the client goes before it begins.

        LiteLLM listens for that only once it streams; until then a provider that is slow
        with its first byte would be waited for, and paid, for nobody.
        """
        if self._next is None:
            self._next = asyncio.ensure_future(self._listen())
        serving = asyncio.ensure_future(inner)
        try:
            await asyncio.wait({serving, self._next}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done() and not answer.begun:
                serving.cancel()
                await asyncio.wait({serving})
                return
            await serving
        finally:
            for task in (serving, self._next):
                task.cancel()
