"""What one tenant provokes, another does not feel."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import orjson
import pytest

from tests.fakes.script import answers, fails
from tests.proxy.calls import chat, embedding, refused
from tests.proxy.conftest import NewTenant
from tests.proxy.harness import Proxy
from tests.proxy.models import Providers


@pytest.mark.parametrize("status", [400, 401, 404, 408, 429, 500, 503])
@pytest.mark.parametrize("model", ["local-a", "cloud-eu"])
def test_a_failed_call_rests_no_model_for_others(
    p: Proxy, providers: Providers, new_tenant: NewTenant, model: str, status: int
) -> None:
    """However a provider answers one tenant, the next one is served by the same deployment."""
    mallory = new_tenant("mallory", models=[model], regions=["eu", "onprem"])
    acme = new_tenant("acme", models=[model, "cloud-us"])
    wait = "30" if status in {429, 503} else None
    for provider in (providers.a, providers.l):
        provider.always(fails(status, retry_after=wait))
    p.post("/v1/chat/completions", mallory.key, chat(model))
    for provider in (providers.a, providers.l):
        provider.always(answers())

    served = p.post("/v1/chat/completions", acme.key, chat(model))

    assert served.status_code == 200
    assert served.headers["x-wg-model"] == model
    assert len(providers.b.journal) == 0


def nested(text: str, count: int) -> str:
    return "[" + ",".join([text] * count) + "]"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(
            "/v1/chat/completions", {"chat_template_kwargs": {"a": "@"}}, id="template-arguments"
        ),
        pytest.param("/v1/chat/completions", {"response_format": {"a": "@"}}, id="format"),
        pytest.param("/v1/chat/completions", {"metadata": {"a": "@"}}, id="metadata"),
    ],
)
def test_a_body_of_millions_of_values_holds_nobody_up(
    p: Proxy, new_tenant: NewTenant, path: str, body: dict[str, Any]
) -> None:
    """Another tenant's request, sent meanwhile, is answered within a second."""
    mallory = new_tenant("mallory", models=["cloud-eu"], regions=["eu"])
    acme = new_tenant("acme", models=["cloud-eu"], regions=["eu"])
    text = orjson.dumps(chat("cloud-eu", **body)).replace(b'"@"', nested("[]", 2_500_000).encode())
    waits: list[float] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            started = time.monotonic()
            assert p.get("/v1/models", acme.key).status_code == 200
            waits.append(time.monotonic() - started)

    watcher = threading.Thread(target=watch)
    watcher.start()
    answer = p.post(path, mallory.key, content=text)
    stop.set()
    watcher.join()

    refused(answer, 400, "invalid_request_error")
    assert max(waits) < 1.0


def test_a_failed_attempt_is_told_to_the_operator(
    p: Proxy, providers: Providers, new_tenant: NewTenant
) -> None:
    """The log says where it failed, how, and for which request; nothing of what was said."""
    tenant = new_tenant("acme", models=["embed"], regions=["eu"])
    providers.a.always(fails(500))

    answer = p.post("/v1/embeddings", tenant.key, embedding("embed"))

    told = re.compile(
        rf"upstream_error: embed-eu \(alpha, eu\): 500 .*; attempt 2 of request "
        rf"{answer.headers['x-wg-request-id']}"
    )
    assert told.search(p.output())
    assert len(providers.a.journal) == 2
