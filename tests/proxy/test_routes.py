"""Every route of the installed LiteLLM is either governed or not there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.proxy import launch
from tests.proxy.calls import MARKER, chat
from tests.proxy.harness import Proxy
from tests.proxy.models import NOTHING

#: Decided one by one. LiteLLM itself has no `/messages`; the gate serves that path as well.
GOVERNED = {
    (method, version + path)
    for method, path in (
        ("POST", "/chat/completions"),
        ("POST", "/completions"),
        ("POST", "/embeddings"),
        ("POST", "/responses"),
        ("POST", "/messages"),
        ("GET", "/models"),
    )
    for version in ("/v1", "")
}
#: Answered by the gate itself, without a key and without a word about the inside.
HEALTH = {
    (method, path)
    for method in ("GET", "HEAD")
    for path in ("/health/liveness", "/health/liveliness", "/health/readiness")
}
#: (method, path) pairs of LiteLLM 1.108.7, and its WebSocket paths. When one of these
#: changes, LiteLLM has new routes: look at them, then at the allow-list, then set the number.
ROUTES = 1126
SOCKETS = 13

#: What fills a parameter: names that would reach a model if the path were served.
FILLINGS = {
    "endpoint": "v1/chat/completions",
    "path": "v1/chat/completions",
    "model": "cloud-eu",
    "model_name": "cloud-eu",
    "model_id": "eu-1",
    "provider": "openai",
}


def filled(path: str) -> str:
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda name: FILLINGS.get(name[1], "x"), path)


@pytest.fixture(scope="module")
def table() -> list[tuple[str, str, list[str]]]:
    """Every route: (kind, path, methods)."""
    script = Path(__file__).with_name("route_table.py")
    printed = subprocess.run(
        [sys.executable, script],
        env=launch.clean_environment(),
        check=True,
        capture_output=True,
        timeout=120,
    ).stdout
    return [tuple(route) for route in json.loads(printed)]


def pairs(table: list[tuple[str, str, list[str]]]) -> set[tuple[str, str]]:
    """Return each (method, path) pair; a mount is tried with GET and POST."""
    return {
        (method, path)
        for kind, path, methods in table
        if kind != "websocket"
        for method in (methods or ["GET", "POST"])
    }


def test_litellm_has_the_routes_that_were_looked_at(table):
    """A route that LiteLLM gains, loses or renames stops here until someone has decided."""
    found = pairs(table)
    sockets = {path for kind, path, _ in table if kind == "websocket"}

    assert GOVERNED - found == {("POST", "/messages")}
    assert (len(found), len(sockets)) == (ROUTES, SOCKETS)


@pytest.mark.parametrize("caller", ["nobody", "tenant", "master"])
def test_every_other_route_is_not_served(table, p, providers, new_tenant, caller):
    """No path but the governed ones leads anywhere, whoever asks."""
    key = {"nobody": None, "master": p.master_key}.get(caller, "")
    if caller == "tenant":
        key = new_tenant("walker", models=["cloud-eu"]).key
    served = []

    for method, path, status, body in walk(p, key, pairs(table) - GOVERNED - HEALTH):
        if status != 404 or (method != "HEAD" and not is_refusal(body)):
            served.append((method, path, status, body[:200]))

    assert served == []
    assert providers.seen() == NOTHING


def walk(
    proxy: Proxy, key: str | None, routes: set[tuple[str, str]]
) -> Iterator[tuple[str, str, int, bytes]]:
    """Send one request to each route over one connection."""
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    body = json.dumps(chat("cloud-eu")).encode()
    wire = proxy.wire()
    try:
        for method, path in sorted(routes):
            wire.request(method, filled(path), body=body, headers=headers)
            answer = wire.getresponse()
            yield method, path, answer.status, answer.read()
    finally:
        wire.close()


def is_refusal(body: bytes) -> bool:
    document: Any = json.loads(body)
    return document == {
        "error": {
            "message": "This gateway does not serve this path.",
            "type": "not_found_error",
            "param": None,
            "code": "route_not_served",
        }
    }


@pytest.mark.parametrize("caller", ["nobody", "tenant", "master"])
def test_every_websocket_is_refused(table, p, providers, new_tenant, caller):
    """No WebSocket is accepted, not even on the path of a governed route."""
    key = {"nobody": None, "master": p.master_key}.get(caller, "")
    if caller == "tenant":
        key = new_tenant("socketeer", models=["cloud-eu"]).key
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    sockets = {path for kind, path, _ in table if kind == "websocket"}

    for path in sorted(sockets | {path for _, path in GOVERNED}):
        url = f"ws://127.0.0.1:{p.port}{filled(path)}?model=cloud-eu"
        with pytest.raises(InvalidStatus) as refusal:
            connect(url, additional_headers=headers, open_timeout=10, proxy=None)
        assert refusal.value.response.status_code == 404, path

    assert providers.seen() == NOTHING


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/v1/chat/completions/", id="trailing-slash"),
        pytest.param("//v1/chat/completions", id="double-slash"),
        pytest.param("/v1//chat/completions", id="empty-segment"),
        pytest.param("/v1/./chat/completions", id="dot"),
        pytest.param("/health/../v1/chat/completions", id="dot-dot"),
        pytest.param("/V1/chat/completions", id="upper-case"),
        pytest.param("/v1/chat/completions%00", id="null-byte"),
        pytest.param("/v1/chat/completions;model=cloud-us", id="path-parameter"),
        pytest.param("/v1/chat%2Fcompletions/x", id="encoded-slash"),
        pytest.param("/v1/chat/completions/%2e%2e/embeddings", id="encoded-dot-dot"),
        pytest.param("http://127.0.0.1/v1/chat/completions/x", id="absolute-form"),
        pytest.param("/engines/cloud-us/chat/completions", id="engines"),
        pytest.param("/openai/deployments/cloud-us/chat/completions", id="azure-deployments"),
        pytest.param("/v1/messages/count_tokens", id="count-tokens"),
        pytest.param("/utils/token_counter?call_endpoint=true", id="token-counter"),
        pytest.param("/lazy/warm/mcp_app", id="lazy-warm"),
        pytest.param("/v1/me/../models", id="below-another"),
    ],
)
def test_a_path_is_governed_as_written_or_not_at_all(p, providers, new_tenant, path):
    """Another spelling of a governed path is not served."""
    key = new_tenant("speller", models=["cloud-eu", "cloud-us"]).key
    wire = p.wire()

    wire.request(
        "POST",
        path,
        body=json.dumps(chat("cloud-eu")),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    answer = wire.getresponse()
    body = answer.read()
    wire.close()

    assert (answer.status, is_refusal(body)) == (404, True)
    assert MARKER.encode() not in body
    assert providers.seen() == NOTHING


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "HEAD", "TRACE", "BREW"])
def test_a_governed_path_is_governed_for_its_own_method_only(p, providers, new_tenant, method):
    """A method without a rule is not served, whatever it would do in LiteLLM."""
    key = new_tenant("methodist", models=["cloud-eu"]).key
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    answer = p.client.request(
        method, "/v1/chat/completions", headers=headers, json=chat("cloud-eu")
    )

    assert answer.status_code == 404
    assert providers.seen() == NOTHING


def test_health_says_nothing_about_the_inside(p):
    """Liveness and readiness answer anyone, with one word."""
    for path in ("/health/liveness", "/health/liveliness"):
        assert p.get(path, None).json() == {"status": "alive"}
    assert p.get("/health/readiness", None).json() == {"status": "ready"}
