"""The answer to a call: LiteLLM's, under our headers, or a failure in our words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from plugins.events import Events, is_failure, tells_of_failure
from plugins.inflight import InFlight
from plugins.policy.money import plain
from plugins.policy.refusal import Refusal, gateway_error
from plugins.policy.routes import Dialect, Route
from plugins.telemetry import metrics

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

#: Answer headers of LiteLLM that mean something to a client. Its own speak of other tenants'
#: deployments, internal addresses and prices; a provider's of the operator's account.
_ANSWER_HEADERS = frozenset(
    {b"content-type", b"content-length", b"cache-control", b"vary", b"x-accel-buffering"}
)


class Answer:
    """Passes LiteLLM's answer on, under our headers; a failure is told in our words."""

    def __init__(self, route: Route, entry: InFlight, send: Send) -> None:
        self._route = route
        self._entry = entry
        self._send = send
        self._status: int | None = None
        self._failed = False
        self._events: Events | None = None  # None: not a stream
        self._held: Message | None = None
        self._held_body = b""
        self._done = False

    @property
    def begun(self) -> bool:
        """Whether the client has been sent anything."""
        return self._status is not None and not self._failed and self._held is None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._start(message)
        elif message["type"] == "http.response.body" and not self._failed:
            self._done = not message.get("more_body", False)
            if self._events is not None:
                message = {
                    **message,
                    "body": self._in_our_words(self._events, message.get("body", b"")),
                }
            elif self._held is not None:
                body = self._held_body + message.get("body", b"")
                if not self._done:
                    self._held_body = body
                    return
                message = {**message, "body": body}
                await self._release(self._held, message)
                return
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
        headers.extend(
            (name.encode("ascii"), value.encode("ascii"))
            for name, value in answer_headers(self._entry).items()
        )
        message = {**message, "headers": headers}
        kinds = [v.strip().lower() for n, v in headers if n == b"content-type"]
        if any(kind.startswith(b"text/event-stream") for kind in kinds):
            self._events = Events()
            await self._send(message)
        else:
            self._held = message  # until the body shows whether it is an answer

    async def _release(self, start: Message, message: Message) -> None:
        """Pass on a plain answer, unless it reports a provider's error under status 200."""
        body = message["body"]
        if body.lstrip()[:1] != b"{":  # every governed path answers with one JSON object
            self._failed = True
            return
        if b'"error"' in body or self._route.path == "/v1/responses":
            document = _parsed(body)
            if is_failure(document):
                self._failed = True
                return
            if self._route.path == "/v1/responses" and isinstance(document, dict):
                try:
                    body = orjson.dumps(self._public(document))
                except TypeError:  # nested deeper than can be written again
                    self._failed = True
                    return
        length = (b"content-length", str(len(body)).encode("ascii"))
        kept = [(name, value) for name, value in start["headers"] if name != b"content-length"]
        self._held = None
        await self._send({**start, "headers": [*kept, length]})
        await self._send({**message, "body": body})

    def _public(self, response: dict[str, Any]) -> dict[str, Any]:
        """Take the upstream model's name and the operator's price out of a response object."""
        usage = response.get("usage")
        if isinstance(usage, dict):
            usage.pop("cost", None)
        if "model" in response and self._entry.served_by is not None:
            response["model"] = self._entry.served_by.model
        return response

    def _public_event(self, event: bytes) -> bytes:
        """Do the same for an event of `/v1/responses` that carries the whole response."""
        head, found, data = event.partition(b"data:")
        document = _parsed(data) if found else None
        if not isinstance(document, dict) or not isinstance(document.get("response"), dict):
            return event
        document["response"] = self._public(document["response"])
        return head + b"data: " + orjson.dumps(document) + b"\n\n"

    def _in_our_words(self, stream: Events, piece: bytes) -> bytes:
        """Replace each event that tells of a failure; leave the others as they are."""
        events = stream.feed(piece)
        if self._done:
            events += stream.rest()
        return b"".join(self._event(event) for event in events)

    def _event(self, event: bytes) -> bytes:
        if tells_of_failure(event):
            return self._error_event()
        if self._route.path == "/v1/responses" and b'"response"' in event:
            return self._public_event(event)
        return event

    def _error_event(self) -> bytes:
        if self._entry.refusal is None:
            self._entry.refusal = Refusal("upstream_error", "The provider broke off its answer.")
        document = error_body(self._route.dialect, self._entry.refusal)
        if self._route.path == "/v1/responses":
            document = {**document["error"], "type": "error"}
        name = b"" if "error" in document and "type" not in document else b"event: error\n"
        return name + b"data: " + orjson.dumps(document) + b"\n\n"

    def _refusal(self) -> Refusal:
        if self._entry.refusal is not None:
            return self._entry.refusal
        if self._entry.attempts:
            return Refusal("upstream_error", "The provider did not answer this call.")
        if self._status is not None and 400 <= self._status < 500:
            return Refusal("invalid_request_error", "The request is not valid for this model.")
        return gateway_error()

    async def finish(self, crashed: bool) -> None:
        """Complete the answer and count it; break it off when LiteLLM crashed in its middle."""
        # A plain answer begins with its body: one that never came was never begun.
        begun = self.begun
        if not begun:
            refusal = self._refusal()
            headers = answer_headers(self._entry)
            await send_refusal(self._send, self._route.dialect, refusal, headers)
        elif crashed:
            self._entry.refusal = self._entry.refusal or gateway_error()
        refused = self._entry.refusal is not None or not begun
        self._count(self._refusal().code if refused else "ok")
        if begun and not self._done:
            if crashed and self._events is None:
                raise ConnectionAbortedError("LiteLLM failed in the middle of an answer")
            last = b""
            if crashed:
                last = self._error_event()
            elif self._events is not None:
                last = b"".join(self._event(event) for event in self._events.rest())
            await self._send({"type": "http.response.body", "body": last, "more_body": False})

    def _count(self, code: str) -> None:
        entry = self._entry
        model = entry.call.model if entry.call else None
        provider = entry.served_by.provider if entry.served_by else None
        metrics.answered(entry.key.tenant.name, model, provider, code)


def answer_headers(entry: InFlight) -> dict[str, str]:
    """Return the `x-wg-*` headers of the contract, ASCII only."""
    headers = {"x-wg-request-id": entry.id}
    if entry.call is None:
        return headers
    served = entry.served_by
    headers |= {
        "x-wg-route": "by-name",
        "x-wg-attempts": str(len(entry.attempts)),
        "x-wg-adjusted": entry.account.adjusted,
    }
    for unit, left in entry.account.left.items():
        headers[f"x-wg-budget-remaining-{unit}"] = plain(left)
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
    if refusal.final:
        extra["x-should-retry"] = "false"
    await send_json(send, refusal.status, error_body(dialect, refusal), extra)


async def send_json(
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


def _parsed(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
