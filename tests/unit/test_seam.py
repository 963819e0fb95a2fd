"""The seam to LiteLLM: what we rely on, and what fails when it moves."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import litellm
import pytest
from fastapi import HTTPException
from litellm.proxy import proxy_server
from litellm.proxy._types import ProxyException

from plugins import inflight, seam
from plugins.inflight import MARKER, InFlight
from plugins.policy.grants import Grants
from plugins.policy.identity import Key, Tenant
from plugins.policy.refusal import Refusal

TENANT = Tenant("t1", "acme", "UTC", False, Grants())
KEY = Key("k1", b"", "sk-wg-abc", None, TENANT, False, None)


def test_the_names_we_take_from_inside_litellm_are_there() -> None:
    """These are not LiteLLM's documented interface; a new version may move them."""
    assert isinstance(vars(proxy_server)["llm_router"], litellm.Router | None)
    assert vars(proxy_server)["user_custom_auth"] is None
    assert "middleware_stack" in vars(proxy_server.app)
    assert "LITELLM_WORKER_STARTUP_HOOKS" in inspect.getsource(proxy_server)
    assert "WORKER_CONFIG" in inspect.getsource(proxy_server.save_worker_config)
    assert litellm.Router(model_list=[]).model_list == []


def test_the_application_calls_the_layer_we_put_around_it() -> None:
    """Starlette runs whatever stands in `middleware_stack`."""
    source = inspect.getsource(type(proxy_server.app).__mro__[1].__call__)

    assert "await self.middleware_stack(scope, receive, send)" in source


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"CONFIG_FILE_PATH": "/a.yaml"}, Path("/a.yaml")),
        ({"WORKER_CONFIG": json.dumps({"config": "/b.yaml", "port": 1})}, Path("/b.yaml")),
        ({"WORKER_CONFIG": "/c.yaml"}, Path("/c.yaml")),
        ({"WORKER_CONFIG": json.dumps({"config": None})}, None),
        ({}, None),
    ],
)
def test_the_configuration_is_found_however_litellm_was_started(
    environ: dict[str, str], path: Path | None
) -> None:
    """The command line and the container image tell their workers in different ways."""
    assert seam.config_path(environ) == path


def test_a_refusal_in_authentication_keeps_its_code() -> None:
    """LiteLLM sends a ProxyException on as it is, headers included."""
    raised = seam.refuse(Refusal("ledger_unavailable", "not now", retry_after=5))

    assert isinstance(raised, ProxyException)
    assert (raised.code, raised.openai_code, raised.headers) == (
        "503",
        "ledger_unavailable",
        {"retry-after": "5"},
    )


def test_an_unexpected_error_is_not_told() -> None:
    """LiteLLM would send the text of any other exception to the caller."""
    entry = InFlight(KEY, None, None, "r1")
    inflight.enter(entry)
    try:
        with pytest.raises(seam.Stop) as stopped, seam.client_safe("routing"):
            raise RuntimeError("password hunter2")
    finally:
        inflight.leave(entry)

    assert stopped.value.detail == "refused"
    assert entry.refusal is not None
    assert entry.refusal.code == "gateway_error"


def test_a_refusal_of_ours_passes_the_guard() -> None:
    """The guard hides accidents, not decisions."""
    with pytest.raises(HTTPException), seam.client_safe("routing"):
        raise seam.Stop()


@pytest.mark.parametrize("bucket", ["metadata", "litellm_metadata"])
def test_the_marker_goes_over_whatever_a_caller_put_there(bucket: str) -> None:
    """Only an id that we handed out names a call."""
    data: dict[str, Any] = {bucket: {MARKER: "forged", "x": 1}}

    seam.mark(data, "ours")

    assert seam.marker_of(data) == "ours"


def test_the_marker_finds_a_place_of_its_own() -> None:
    """A request that LiteLLM gave no metadata gets some."""
    data: dict[str, Any] = {}

    seam.mark(data, "ours")

    assert seam.marker_of(data) == "ours"
    assert seam.marker_of({"metadata": None}) is None


def test_an_attempt_is_pinned_to_its_own_destination() -> None:
    """Fields that choose where a call goes come from the deployment or not at all."""
    trusted = {"model": "bedrock/x", "aws_region_name": "eu-central-1", "api_key": "ours"}
    kwargs = {
        "model": "bedrock/x",
        "custom_llm_provider": "openai",
        "aws_region_name": "us-east-1",
        "api_key": "theirs",
        "api_base": "http://attacker",
        "extra_headers": {"a": "b"},
        "temperature": 0,
    }

    assert seam.pin(kwargs, trusted) == {
        "model": "bedrock/x",
        "custom_llm_provider": "bedrock",
        "aws_region_name": "eu-central-1",
        "api_key": "ours",
        "temperature": 0,
    }


def failure(kind: type[Exception], **fields: Any) -> Exception:
    error = kind("the prompt was MARKER and the key pk-1")
    vars(error).update(fields)
    return error


class RouterRateLimitError(ValueError):
    """Named as LiteLLM names its own."""


class ContextWindowExceededError(Exception):
    """Named as LiteLLM names its own."""


@pytest.mark.parametrize(
    ("error", "code", "wait"),
    [
        pytest.param(failure(Exception, status_code=500), "upstream_error", None, id="500"),
        pytest.param(
            failure(Exception, status_code=503, litellm_response_headers={"retry-after": "9"}),
            "upstream_error",
            9,
            id="503-says-when",
        ),
        pytest.param(
            failure(Exception, status_code=429, litellm_response_headers={"retry-after": "7"}),
            "upstream_rate_limited",
            7,
            id="429",
        ),
        pytest.param(failure(Exception, status_code=401), "upstream_auth", None, id="401"),
        pytest.param(failure(Exception, code="403"), "upstream_auth", None, id="403-as-text"),
        pytest.param(failure(Exception, status_code=400), "invalid_request_error", None, id="400"),
        pytest.param(failure(Exception, status_code=404), "upstream_error", None, id="404"),
        pytest.param(
            failure(ContextWindowExceededError, status_code=400),
            "context_length_exceeded",
            None,
            id="context",
        ),
        pytest.param(
            failure(RouterRateLimitError, cooldown_time=4.2), "upstream_error", 5, id="resting"
        ),
        pytest.param(failure(TimeoutError), "upstream_error", None, id="no-status"),
    ],
)
def test_a_failure_is_put_down_to_whose_it_is(
    error: Exception, code: str, wait: int | None
) -> None:
    """The provider's fault is told apart from the caller's, in our words only."""
    refusal = seam.whose_fault(error, sent=True)

    assert (refusal.code, refusal.retry_after) == (code, wait)
    assert "MARKER" not in refusal.message
    assert "pk-1" not in refusal.message


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "gateway_error"), (429, "gateway_error"), (400, "invalid_request_error")],
)
def test_what_never_left_is_not_the_providers_fault(status: int, code: str) -> None:
    """LiteLLM has refusals of its own."""
    refusal = seam.whose_fault(failure(Exception, status_code=status), sent=False)

    assert refusal.code == code


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("7", 7),
        ("9" * 4400, None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("soon", None),
        ("-1", None),
    ],
)
def test_a_wait_is_read_in_both_of_its_forms(value: str, wait: int | None) -> None:
    """`Retry-After` is a number of seconds or a date."""
    error = failure(Exception, status_code=503, litellm_response_headers={"retry-after": value})

    assert seam.whose_fault(error, sent=True).retry_after == wait


def test_a_failure_is_named_without_its_words() -> None:
    """An operator reads which errors led to it, and nothing that a provider said."""
    error = failure(Exception, status_code=500)
    error.__cause__ = ConnectionRefusedError("at 10.0.0.1")

    assert seam.kinds(error) == "500 Exception < ConnectionRefusedError"


def test_litellms_errors_have_the_names_we_tell_them_by() -> None:
    """Both are recognised by class name, so that no import ties us to their place."""
    from litellm.types.router import RouterRateLimitError as Real

    assert Real.__name__ == RouterRateLimitError.__name__
    assert litellm.ContextWindowExceededError.__name__ == ContextWindowExceededError.__name__


def test_the_encodings_need_no_network() -> None:
    """Its file comes with LiteLLM."""
    assert len(seam.encoding("o200k_base").encode_ordinary("word " * 1000)) in range(900, 1100)
