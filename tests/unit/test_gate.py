"""The gate around an application that stands in for LiteLLM and journals what reached it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import httpx
import orjson
import pytest

from plugins import inflight
from plugins.account import Attempt, Priced
from plugins.entrance import Entrance
from plugins.gate import Gate
from plugins.policy.call import Limits
from plugins.policy.grants import Deployment, Grants
from plugins.policy.identity import Key, Snapshot, Tenant, digest
from plugins.policy.money import Price
from plugins.policy.plan import Catalog
from plugins.policy.refusal import Refusal
from plugins.policy.usage import Counted
from plugins.tokens.counter import Counter

NOW = datetime(2026, 1, 15, 12, tzinfo=UTC)
SECRET = "sk-wg-" + "A" * 43
DEPLOYMENT = Deployment("d1", "local-a", "llama.cpp", "onprem", local=True)
BODY = {"model": "local-a", "messages": [{"role": "user", "content": "hello"}]}
MESSAGE = {**BODY, "max_tokens": 5}


class Keeper:
    """Holds a snapshot, or none when the database is away."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        self.snapshot = snapshot

    def current(self) -> Snapshot | None:
        return self.snapshot


class Books:
    """Has room for every call."""

    async def hold(self, *asked: Any) -> Attempt:
        priced = Priced(DEPLOYMENT, Price(Decimal(0), Decimal(0)), Counter())
        return Attempt(uuid4(), priced, Counted(1, exact=True), 100, 1, Decimal(0))

    def void_soon(self, attempt: Attempt) -> None:
        attempt.settled = True

    def settle_soon(self, *settled: Any) -> None: ...

    def end_task_soon(self, *ended: Any) -> None: ...


class LiteLLM:
    """Journals each request and answers what it is told to."""

    def __init__(self, answer: Callable[[inflight.InFlight], list[dict[str, Any]]]) -> None:
        self.seen: list[dict[str, Any]] = []
        self._answer = answer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        self.seen.append({**scope, "body": message["body"]})
        entry = inflight.current()
        assert entry is not None
        for part in self._answer(entry):
            await send(part)


def start(status: int, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(content: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}


def fine(entry: inflight.InFlight) -> list[dict[str, Any]]:
    entry.attempts[0, 0, "d1"] = DEPLOYMENT
    entry.served_by = DEPLOYMENT
    return [
        start(
            200,
            (b"content-type", b"application/json"),
            (b"x-litellm-model-api-base", b"http://10.0.0.1"),
            (b"llm_provider-openai-organization", b"acme-corp"),
        ),
        body(b'{"ok":true}'),
    ]


def snapshot(**changes: Any) -> Snapshot:
    tenant = Tenant(
        "t1",
        "acme",
        "UTC",
        changes.get("disabled", False),
        Grants(frozenset({"local-a"}), frozenset({"*"}), frozenset({"onprem"})),
    )
    key = Key(
        id="k1",
        digest=digest(SECRET),
        prefix=SECRET[:12],
        alias=None,
        tenant=tenant,
        blocked=changes.get("blocked", False),
        expires_at=changes.get("expires_at"),
    )
    return Snapshot(1, {key.digest: key}, {tenant.id: tenant})


class World:
    def __init__(
        self,
        answer: Callable[[inflight.InFlight], list[dict[str, Any]]] = fine,
        keeper: Keeper | None = None,
        sound: bool = True,
    ) -> None:
        self.litellm = LiteLLM(answer)
        entrance = Entrance(
            keeper or Keeper(snapshot()),  # type: ignore[arg-type]
            Catalog(groups={"local-a": (DEPLOYMENT,)}),
            Limits(max_body_bytes=10_000),
            now=lambda: NOW,
            sound=lambda: sound,
            books=Books(),  # type: ignore[arg-type]
        )
        self._gate = Gate(self.litellm, entrance)

    def ask(
        self, method: str = "POST", path: str = "/v1/chat/completions", **options: Any
    ) -> httpx.Response:
        options.setdefault("headers", {"authorization": f"Bearer {SECRET}"})
        if method == "POST" and "content" not in options:
            options.setdefault("json", BODY)

        async def once() -> httpx.Response:
            transport = httpx.ASGITransport(self._gate)
            async with httpx.AsyncClient(transport=transport, base_url="http://gate") as client:
                return await client.request(method, path, **options)

        return asyncio.run(once())


def error(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_an_admitted_call_reaches_litellm_without_its_key() -> None:
    """LiteLLM cannot log or forward a secret that it never sees."""
    world = World()

    response = world.ask(
        headers={
            "authorization": f"Bearer {SECRET}",
            "x-litellm-api-base": "http://x",
            "x-litellm-num-retries": "9",
            "cookie": "a=b",
            "user-agent": "test",
        },
        json={**BODY, "metadata": {"task_id": "t"}},
    )

    (seen,) = world.litellm.seen
    assert response.status_code == 200
    assert {name for name, _ in seen["headers"]} == {
        b"host",
        b"accept",
        b"content-type",
        b"content-length",
        b"user-agent",
    }
    assert orjson.loads(seen["body"]) == BODY


def test_an_answer_carries_our_headers_and_no_one_elses() -> None:
    """Internal addresses and the operator's account stay inside."""
    response = World().ask()

    assert {name: response.headers[name] for name in response.headers} == {
        "content-type": "application/json",
        "content-length": "11",
        "x-wg-request-id": response.headers["x-wg-request-id"],
        "x-wg-route": "by-name",
        "x-wg-attempts": "1",
        "x-wg-adjusted": "none",
        "x-wg-model": "local-a",
        "x-wg-provider": "llama.cpp",
        "x-wg-region": "onprem",
    }


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/chat/completions"])
def test_each_path_is_served_with_and_without_v1(path: str) -> None:
    """LiteLLM sees one form of each path."""
    world = World()

    assert world.ask(path=path).status_code == 200
    assert world.litellm.seen[0]["path"] == "/v1/chat/completions"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/images/generations"),
        ("POST", "/v1/chat/completions/"),
        ("POST", "/engines/local-a/chat/completions"),
        ("GET", "/v1/chat/completions"),
        ("DELETE", "/v1/responses/resp_1"),
        ("GET", "/metrics"),
        ("GET", "/"),
        ("OPTIONS", "/v1/files"),
        ("PURGE", "/v1/models"),
    ],
)
def test_every_other_path_is_not_served(method: str, path: str) -> None:
    """What is not named does not exist, with or without a key."""
    world = World()

    assert error(world.ask(method, path, json=None)) == (404, "route_not_served")
    assert error(world.ask(method, path, headers={}, json=None)) == (404, "route_not_served")
    assert world.litellm.seen == []


KEYLESS = [
    pytest.param({}, id="no-key"),
    pytest.param({"authorization": "Bearer "}, id="empty-key"),
    pytest.param({"authorization": f"Basic {SECRET}"}, id="other-scheme"),
    pytest.param({"authorization": "Bearer sk-wg-" + "B" * 43}, id="unknown-key"),
    pytest.param({"authorization": "Bearer " + "x" * 100_000}, id="a-very-long-key"),
    pytest.param(
        {"authorization": f"Bearer {SECRET}", "x-api-key": "sk-wg-" + "B" * 43}, id="two-keys"
    ),
    pytest.param({"api-key": SECRET}, id="key-in-another-header"),
    pytest.param({"x-litellm-api-key": SECRET}, id="key-in-litellms-header"),
]


@pytest.mark.parametrize("headers", KEYLESS)
def test_a_key_that_opens_nothing_gets_one_answer(headers: dict[str, str]) -> None:
    """Nobody learns why a key is not valid."""
    world = World()

    response = world.ask(headers=headers)

    assert error(response) == (401, "invalid_api_key")
    assert response.json() == World().ask(headers={}).json()
    assert world.litellm.seen == []


@pytest.mark.parametrize(
    ("keeper", "expected"),
    [
        pytest.param(Keeper(snapshot(blocked=True)), (401, "invalid_api_key"), id="blocked"),
        pytest.param(Keeper(snapshot(expires_at=NOW)), (401, "invalid_api_key"), id="expired"),
        pytest.param(
            Keeper(snapshot(expires_at=NOW + timedelta(seconds=1))), None, id="not-yet-expired"
        ),
        pytest.param(Keeper(snapshot(disabled=True)), (403, "tenant_disabled"), id="frozen"),
        pytest.param(Keeper(None), (503, "ledger_unavailable"), id="no-database"),
    ],
)
def test_the_snapshot_decides(keeper: Keeper, expected: tuple[int, str] | None) -> None:
    """A key is judged as the database last confirmed it, and not at all without a database."""
    world = World(keeper=keeper)

    response = world.ask()

    assert (response.status_code == 200) is (expected is None)
    if expected is not None:
        assert error(response) == expected
        assert world.litellm.seen == []


def test_a_missing_database_says_when_to_come_back() -> None:
    """`Retry-After` is five seconds."""
    assert World(keeper=Keeper(None)).ask().headers["retry-after"] == "5"


def test_an_unsound_gateway_serves_nothing() -> None:
    """Until the boot check has passed there is no call and no readiness."""
    world = World(sound=False)

    assert error(world.ask()) == (503, "gateway_error")
    assert world.ask("GET", "/health/readiness").status_code == 503
    assert world.ask("GET", "/health/liveness").json() == {"status": "alive"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({"content": b"{"}, (400, "invalid_request_error"), id="not-json"),
        pytest.param({"content": b""}, (400, "invalid_request_error"), id="empty"),
        pytest.param(
            {"content": b'{"model":"\\ud800"}'}, (400, "invalid_request_error"), id="surrogate"
        ),
        pytest.param({"content": b"[" * 9000}, (400, "invalid_request_error"), id="deep"),
        pytest.param({"content": b"x" * 10_001}, (400, "invalid_request_error"), id="large"),
        pytest.param({"data": {"model": "local-a"}}, (400, "invalid_request_error"), id="form"),
        pytest.param(
            {"json": {**BODY, "api_base": "http://x"}}, (400, "param_not_allowed"), id="control"
        ),
        pytest.param({"params": {"model": "x"}}, (400, "param_not_allowed"), id="query-model"),
        pytest.param({"json": {**BODY, "model": "x"}}, (403, "model_not_allowed"), id="model"),
    ],
)
def test_a_bad_call_never_reaches_litellm(
    options: dict[str, Any], expected: tuple[int, str]
) -> None:
    """What the gate refuses costs LiteLLM nothing."""
    world = World()

    assert error(world.ask(**options)) == expected
    assert world.litellm.seen == []


def test_a_body_without_an_announced_length_is_bounded_too() -> None:
    """A chunked body is cut off where an announced one would be."""
    world = World()

    async def chunks() -> Any:
        for _ in range(20):
            yield b" " * 1000

    assert error(world.ask(content=chunks())) == (400, "invalid_request_error")
    assert world.litellm.seen == []


def failing(status: int, attempts: int, refusal: Refusal | None = None) -> Any:
    def answer(entry: inflight.InFlight) -> list[dict[str, Any]]:
        for number in range(attempts):
            entry.attempts[number, 0, "d1"] = DEPLOYMENT
        entry.refusal = refusal
        return [start(status), body(b'{"error":"secret pk-1 of '), body(b'the provider"}')]

    return answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(failing(500, 1), (502, "upstream_error"), id="after-an-attempt"),
        pytest.param(failing(500, 0), (503, "gateway_error"), id="before-any-attempt"),
        pytest.param(failing(422, 0), (400, "invalid_request_error"), id="litellm-refused-it"),
        pytest.param(
            failing(429, 1, Refusal("upstream_rate_limited", "…", retry_after=7)),
            (429, "upstream_rate_limited"),
            id="a-door-knows-why",
        ),
    ],
)
def test_a_failure_is_told_in_our_words(answer: Any, expected: tuple[int, str]) -> None:
    """Whatever LiteLLM or a provider says of a failure stays inside."""
    response = World(answer).ask()

    assert error(response) == expected
    assert "pk-1" not in response.text
    if expected[0] == 429:
        assert response.headers["retry-after"] == "7"


def test_messages_speaks_the_other_dialect() -> None:
    """`/v1/messages` refuses in Anthropic's shape."""
    response = World().ask(path="/v1/messages", json={**MESSAGE, "model": "x"})

    assert response.json() == {
        "type": "error",
        "error": {
            "message": "This key may not use the requested model.",
            "type": "permission_error",
            "param": "model",
            "code": "model_not_allowed",
        },
    }


@pytest.mark.parametrize(
    ("path", "request_body", "frame", "expected"),
    [
        (
            "/v1/chat/completions",
            {**BODY, "stream": True},
            b'data: {"error": {"message": "pk-1"}}\n\n',
            b'data: {"error":',
        ),
        (
            "/v1/messages",
            {**MESSAGE, "stream": True},
            b'event: error\ndata: {"message": "pk-1"}\n\n',
            b'event: error\ndata: {"type":"error"',
        ),
        (
            "/v1/responses",
            {"model": "local-a", "input": "x", "stream": True},
            b'event: response.failed\ndata: {"message": "pk-1"}\n\n',
            b'event: error\ndata: {"message":"The provider broke off its answer."',
        ),
    ],
)
def test_a_broken_stream_is_told_in_our_words(
    path: str, request_body: dict[str, Any], frame: bytes, expected: bytes
) -> None:
    """The error frame of a stream is replaced, what came before it is not."""

    def answer(entry: inflight.InFlight) -> list[dict[str, Any]]:
        return [
            start(200, (b"content-type", b"text/event-stream")),
            body(b"data: {}\n\n" + frame, more=True),
            body(b"data: [DONE]\n\n"),
        ]

    response = World(answer).ask(path=path, json=request_body)

    assert response.content.startswith(b"data: {}\n\n" + expected)
    assert response.content.endswith(b"\n\ndata: [DONE]\n\n")
    assert b"pk-1" not in response.content
    assert b"upstream_error" in response.content


def streamed(entry: inflight.InFlight) -> list[dict[str, Any]]:
    return [
        start(200, (b"content-type", b"text/event-stream")),
        body(b"data: {}\n\nevent: er", more=True),
        body(b'ror\ndata: {"message": "pk-1"}\n\n', more=True),
    ]


def test_an_error_event_in_two_pieces_is_told_in_our_words() -> None:
    """A provider's stream comes as the network cuts it."""
    response = World(streamed).ask(path="/v1/messages", json={**MESSAGE, "stream": True})

    assert response.content.startswith(b"data: {}\n\nevent: error\ndata: ")
    assert b"pk-1" not in response.content


def test_an_error_under_status_200_is_told_in_our_words() -> None:
    """Some providers report a failure in a document that looks like an answer."""

    def answer(entry: inflight.InFlight) -> list[dict[str, Any]]:
        entry.attempts[0, 0, "d1"] = DEPLOYMENT
        return [
            start(200, (b"content-type", b"application/json")),
            body(b'{"type":"error","error":', more=True),
            body(b'{"message":"pk-1"}}'),
        ]

    response = World(answer).ask(path="/v1/messages", json=MESSAGE)

    assert error(response) == (502, "upstream_error")
    assert "pk-1" not in response.text


def test_an_answer_that_is_no_document_is_not_passed_on() -> None:
    """A page of a proxy in between is nobody's answer."""

    def answer(entry: inflight.InFlight) -> list[dict[str, Any]]:
        entry.attempts[0, 0, "d1"] = DEPLOYMENT
        return [start(200, (b"content-type", b"text/html")), body(b"<html>pk-1</html>")]

    response = World(answer).ask()

    assert error(response) == (502, "upstream_error")
    assert "pk-1" not in response.text


def test_a_response_names_the_public_model_and_no_price() -> None:
    """What the operator calls a model, and pays for it, stays inside."""

    def answer(entry: inflight.InFlight) -> list[dict[str, Any]]:
        entry.served_by = DEPLOYMENT
        document = {"model": "raw-1", "error": None, "usage": {"total_tokens": 3, "cost": 0.1}}
        if entry.call is not None and entry.call.stream:
            event = {"type": "response.completed", "response": document}
            return [
                start(200, (b"content-type", b"text/event-stream")),
                body(b"data: " + orjson.dumps(event) + b"\n\n"),
            ]
        return [start(200, (b"content-type", b"application/json")), body(orjson.dumps(document))]

    asked = {"model": "local-a", "input": "x"}
    plain = World(answer).ask(path="/v1/responses", json=asked).json()
    stream = World(answer).ask(path="/v1/responses", json={**asked, "stream": True})

    expected = {"model": "local-a", "error": None, "usage": {"total_tokens": 3}}
    assert plain == expected
    assert orjson.loads(stream.content.removeprefix(b"data: "))["response"] == expected


def test_a_crash_in_the_middle_is_not_passed_off_as_an_end() -> None:
    """A stream says that it broke; a plain answer that never came is an error."""

    class Crashing(LiteLLM):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await super().__call__(scope, receive, send)
            raise RuntimeError("at 10.0.0.1")

    def half(entry: inflight.InFlight) -> list[dict[str, Any]]:
        kind = b"text/event-stream" if entry.call and entry.call.stream else b"application/json"
        return [start(200, (b"content-type", kind)), body(b"data: {}\n\n", more=True)]

    world = World()
    world._gate._app = Crashing(half)
    stream = world.ask(json={**BODY, "stream": True})
    plain = world.ask()

    assert stream.content.startswith(b'data: {}\n\ndata: {"error":')
    assert error(plain) == (503, "gateway_error")
    assert b"10.0.0.1" not in stream.content + plain.content


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/v1/chat/completions", {}),
        ("GET", "/nowhere", {}),
        ("OPTIONS", "/v1/models", {}),
        (
            "POST",
            "/v1/chat/completions",
            {"authorization": f"Bearer {SECRET}", "x-data-class": "?"},
        ),
    ],
)
def test_a_refusal_has_an_id_too(method: str, path: str, headers: dict[str, str]) -> None:
    """A caller can name the request that was refused."""
    response = World().ask(method, path, headers=headers)

    assert response.status_code >= 400
    assert len(response.headers["x-wg-request-id"]) == 36
    assert response.headers["x-wg-attempts"] == "0"


def test_two_lengths_are_refused() -> None:
    """A proxy in front could see another request than we do."""
    response = World().ask(
        headers={"authorization": f"Bearer {SECRET}", "transfer-encoding": "chunked"}
    )

    assert error(response) == (400, "invalid_request_error")


def test_too_many_values_are_refused_before_they_are_parsed() -> None:
    """Half a million empty lists would hold up everybody."""
    world = World()
    world._gate._entrance._limits = Limits()
    text = {**BODY, "messages": [{"role": "user", "content": "[{,]" * 60_000}]}

    many = world.ask(content=b'{"model":"local-a","messages":[' + b"[]," * 100_000 + b"[]]}")

    assert error(many) == (400, "invalid_request_error")
    assert "100000 values" in many.text
    assert world.ask(json=text).status_code == 200


def test_a_crash_inside_litellm_is_answered() -> None:
    """An error that LiteLLM does not handle becomes one fixed sentence."""

    def answer(entry: inflight.InFlight) -> list[dict[str, Any]]:
        raise RuntimeError("database at 10.0.0.1")

    response = World(answer).ask()

    assert error(response) == (503, "gateway_error")
    assert "10.0.0.1" not in response.text


def test_a_call_is_forgotten_when_it_is_answered() -> None:
    """The registry holds running calls only."""
    world = World()
    world.ask()

    assert inflight.current() is None
    assert inflight._by_id == {}


def socket(extensions: dict[str, Any]) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    gate = World()._gate
    scope = {"type": "websocket", "path": "/v1/realtime", "extensions": extensions}
    asyncio.run(gate(scope, receive, send))
    return sent


def test_sockets_are_turned_away() -> None:
    """A web socket is refused before it opens, with our code where the server can say it."""
    first, second = socket({"websocket.http.response": {}})

    assert first["status"] == 404
    assert orjson.loads(second["body"])["error"]["code"] == "route_not_served"
    assert socket({}) == [{"type": "websocket.close", "code": 1008}]
