"""The seam to LiteLLM: the only module that knows its names and shapes.

Names that are not part of LiteLLM's documented extension points are marked INTERNAL, each
with a test in `tests/unit/test_seam.py` that fails when it moves.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from fastapi import HTTPException
from litellm.proxy._types import LitellmUserRoles, ProxyException, UserAPIKeyAuth

from plugins import inflight, logs
from plugins.inflight import MARKER
from plugins.policy.identity import Key
from plugins.policy.plan import context_length_exceeded
from plugins.policy.refusal import Refusal, gateway_error, malformed

log = logging.getLogger("wicketgate")

#: Fields of a call to a provider that decide where it goes and on whose account. In each
#: attempt they are what the deployment's own entry says, or absent.
PINNED_FIELDS = frozenset(
    """
    api_base base_url api_key api_version organization region_name
    litellm_credential_name azure_ad_token azure_ad_token_provider tenant_id client_id
    client_secret aws_region_name aws_access_key_id aws_secret_access_key aws_session_token
    aws_session_name aws_profile_name aws_role_name aws_web_identity_token aws_sts_endpoint
    aws_bedrock_runtime_endpoint vertex_project vertex_location vertex_credentials
    vertex_ai_project vertex_ai_location vertex_ai_credentials watsonx_region_name extra_headers
    headers extra_body proxy_url ssl_verify
    """.split()
)


class Stop(HTTPException):
    """Stops a call inside LiteLLM for good: no retry, no fallback, no cooldown.

    Of all exceptions a hook may raise, an HTTPException with status 403 is the one that does
    so. What the caller is told stands in the call's `refusal`; the gate says it.
    """

    def __init__(self) -> None:
        super().__init__(status_code=403, detail="refused")


def refuse(refusal: Refusal) -> ProxyException:
    """Return the exception that ends authentication with *refusal*."""
    headers = {} if refusal.retry_after is None else {"retry-after": str(refusal.retry_after)}
    return ProxyException(
        message=refusal.message,
        type=refusal.type,
        param=refusal.param,
        code=refusal.status,
        headers=headers,
        openai_code=refusal.code,
    )


@contextmanager
def client_safe(step: str) -> Iterator[None]:
    """Let no text of an unexpected error reach a caller: LiteLLM would send it as it is."""
    try:
        yield
    except (HTTPException, ProxyException):
        raise
    except Exception as error:
        logs.fault(log, step, error)
        entry = inflight.current()
        if entry is not None:
            entry.refusal = gateway_error()
        raise Stop() from error


def authenticated(key: Key, models: list[str], paths: list[str]) -> UserAPIKeyAuth:
    """Return LiteLLM's form of an identified key.

    `models` and `allowed_routes` make LiteLLM's own checks a second wall. The key itself is
    named by our id, which is not a secret; LiteLLM would hash a real one and log the rest.
    """
    return UserAPIKeyAuth(
        api_key=key.id,
        key_alias=key.prefix,
        team_id=key.tenant.id,
        models=models,
        allowed_routes=paths,
        user_role=LitellmUserRoles.INTERNAL_USER,
    )


def marker_of(kwargs: Mapping[str, Any]) -> object:
    """Return our id from whichever of LiteLLM's two metadata dicts carries it."""
    for name in ("litellm_metadata", "metadata"):
        bucket = kwargs.get(name)
        if isinstance(bucket, dict) and MARKER in bucket:
            return bucket[MARKER]
    return None


def mark(data: dict[str, Any], marker: str) -> None:
    """Put our id into LiteLLM's metadata, over whatever stood there."""
    for name in ("litellm_metadata", "metadata"):
        if isinstance(data.get(name), dict):
            data[name][MARKER] = marker
    if not isinstance(data.get("metadata"), dict) and not isinstance(
        data.get("litellm_metadata"), dict
    ):
        data["metadata"] = {MARKER: marker}


def set_fallbacks(data: dict[str, Any], models: list[str]) -> None:
    """Let a failed call go on to *models* and to nothing that is configured elsewhere."""
    data["fallbacks"] = models
    data["context_window_fallbacks"] = []
    data["content_policy_fallbacks"] = []


def dont_wait_for(data: dict[str, Any], models: Iterable[str]) -> None:
    """Send a call on at once when the only deployment of one of *models* asks for patience.

    LiteLLM would sleep through a provider's `Retry-After`, up to a minute, and try it again;
    whether to wait is the caller's to decide. Groups with a choice are not affected.
    """
    patience = {"RateLimitErrorRetries": 0, "ServiceUnavailableErrorRetries": 0}
    data["model_group_retry_policy"] = dict.fromkeys(models, patience)


def listed_id(entry: Mapping[str, Any]) -> str | None:
    """Return the id of an entry of the router's list."""
    return deployment_id({"model_info": entry.get("model_info")})


def attempt_of(kwargs: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what tells one attempt of a call from the next."""
    merged = {**(kwargs.get("metadata") or {}), **(kwargs.get("litellm_metadata") or {})}
    return (
        merged.get("attempted_retries"),
        merged.get("attempted_fallbacks"),
        deployment_id(kwargs),
    )


def deployment_id(kwargs: Mapping[str, Any]) -> str | None:
    """Return the id of the deployment that LiteLLM is about to call."""
    info = kwargs.get("model_info")
    identifier = info.get("id") if isinstance(info, dict) else None
    return identifier if isinstance(identifier, str) else None


def pin(kwargs: dict[str, Any], trusted: Mapping[str, Any]) -> dict[str, Any]:
    """Return *kwargs* with every pinned field as the deployment's own entry has it."""
    pinned = {name: value for name, value in kwargs.items() if name not in PINNED_FIELDS}
    pinned.update({name: trusted[name] for name in PINNED_FIELDS if trusted.get(name) is not None})
    provider, slash, _ = str(trusted.get("model", "")).partition("/")
    # LiteLLM's bridges pass the provider on beside a model name without its prefix.
    if "custom_llm_provider" in pinned and (slash or trusted.get("custom_llm_provider")):
        pinned["custom_llm_provider"] = trusted.get("custom_llm_provider") or provider
    return pinned


_CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def cap(kwargs: dict[str, Any], tokens: int, *, generates: bool) -> dict[str, Any]:
    """Return *kwargs* with one output cap of *tokens*, under the name that was used.

    Args:
        generates: False for a call that has no output to be capped.
    """
    if not generates:
        return kwargs
    named = next((name for name in _CAPS if kwargs.get(name) is not None), None)
    if named is None:
        responses = "input" in kwargs and "messages" not in kwargs
        named = "max_output_tokens" if responses else "max_tokens"
    capped = {name: value for name, value in kwargs.items() if name not in _CAPS}
    return {**capped, named: tokens}


def ask_for_usage(kwargs: dict[str, Any], call_type: Any) -> dict[str, Any]:
    """Have a stream end with its usage, on the paths where that must be asked for.

    LiteLLM asks by itself for chat with some providers only, and never for completions.
    """
    kind = str(getattr(call_type, "value", call_type))
    if not kwargs.get("stream") or kind not in {"acompletion", "atext_completion"}:
        return kwargs
    options = kwargs.get("stream_options") or {}
    return {**kwargs, "stream_options": {**options, "include_usage": True}}


def only_usage(piece: Any) -> bool:
    """Tell whether a piece of a completions stream carries usage and nothing else."""
    if getattr(piece, "object", None) != "text_completion" or not getattr(piece, "usage", None):
        return False
    return not any(choice.text or choice.finish_reason for choice in piece.choices)


#: Where LiteLLM's streams keep the stream that they read from.
_INNER = (
    *("litellm_custom_stream_wrapper", "completion_stream", "inner", "_async_generator"),
    "_billing_source",
)
_MOST_LAYERS = 20


def usage_source(stream: Any) -> Any:
    """Return the part of a stream that knows where its usage comes from; None: there is none.

    To be asked for in the middle of a stream: a generator shows nothing before and after.

    INTERNAL: the names in `_INNER`, the frames of LiteLLM's generators, and what marks the part:
    `chunks` of a chat or completion, `completed_response` of `/v1/responses`.
    """
    waiting = [stream]
    for _ in range(_MOST_LAYERS):
        if not waiting:
            return None
        found = waiting.pop(0)
        if isinstance(getattr(found, "chunks", None), list):
            return found
        bridged = getattr(found, "litellm_custom_stream_wrapper", None) is not None
        if hasattr(found, "completed_response") and hasattr(found, "finished") and not bridged:
            return found
        inner = [getattr(found, name, None) for name in _INNER]
        frame = getattr(found, "ag_frame", None)
        if frame is not None:
            inner.extend(v for v in frame.f_locals.values() if hasattr(v, "__aiter__"))
        waiting.extend(item for item in inner if item is not None)
    return None


def usage_is_a_guess(source: Any) -> bool:
    """Tell whether the usage a stream ended with is LiteLLM's own estimate.

    In `/v1/responses` a provider says how much of it was cached and how much reasoning;
    LiteLLM's estimate does not.
    """
    chunks = getattr(source, "chunks", None)
    if isinstance(chunks, list):
        usages = (getattr(chunk, "usage", None) for chunk in chunks)
        return bool(chunks) and not any(getattr(u, "total_tokens", 0) for u in usages if u)
    response = getattr(getattr(source, "completed_response", None), "response", None)
    usage = getattr(response, "usage", None)
    details = ("input_tokens_details", "output_tokens_details")
    return usage is not None and all(getattr(usage, name, None) is None for name in details)


def never_sent(error: BaseException) -> bool:
    """Tell whether an attempt failed before a byte of it can have reached the provider."""
    names = {type(link).__name__ for link in _chain(error)}
    refused = {"ConnectError", "ConnectTimeout", "ClientConnectorError", "PoolTimeout"}
    return _failed_before_sending(error) or bool(names & refused)


def may_be_billed(error: BaseException) -> bool:
    """Tell whether a provider may charge for an attempt that failed.

    One that answered with an error status has refused or failed; one that went silent, or
    broke off, may have done the work.
    """
    answered = any(
        isinstance(status := getattr(getattr(link, "response", None), "status_code", None), int)
        and status >= 400
        for link in _chain(error)
    )
    silent = any("Timeout" in type(link).__name__ for link in _chain(error))
    return silent or not answered


def nobody_left(error: BaseException) -> bool:
    """Tell whether LiteLLM found no deployment to call: every one is resting, or turned away."""
    return type(error).__name__.startswith("RouterRateLimitError")


def whose_fault(error: BaseException, *, sent: bool) -> Refusal:
    """Return the refusal for a failure that LiteLLM reports.

    The provider's words stay out of it: they may quote the prompt, or the key it was sent.

    Args:
        sent: Whether any attempt was let through to a provider.
    """
    if nobody_left(error):
        # LiteLLM rests a deployment that failed; its 429 is not about the caller's rate.
        cooldown = getattr(error, "cooldown_time", None)
        wait = math.ceil(cooldown) if isinstance(cooldown, int | float) else None
        return Refusal("upstream_error", "No provider is available now.", retry_after=wait)
    if type(error).__name__ == "ContextWindowExceededError":
        return context_length_exceeded()
    status = _status(error)
    if not sent or _failed_before_sending(error):
        if status in {400, 413, 422} or sent:
            return malformed("The request is not valid for this model.")
        return gateway_error()
    wait = _retry_after(error)
    if status in {401, 403}:
        return Refusal("upstream_auth", "The provider did not accept the gateway's credentials.")
    if status == 429:
        return Refusal("upstream_rate_limited", "The provider is rate limiting.", retry_after=wait)
    if status in {400, 413, 422}:
        return malformed("The provider refused the request as not valid.")
    return Refusal("upstream_error", "The provider failed to answer.", retry_after=wait)


def kinds(error: BaseException) -> str:
    """Return what a failure is, by the names of its errors from the outermost in; no words."""
    names: list[str] = []
    link: BaseException | None = error
    while link is not None and len(names) < 8:
        name = type(link).__name__
        if name not in names:
            names.append(name)
        link = link.__cause__ or link.__context__
    status = _status(error)
    return ("" if status is None else f"{status} ") + " < ".join(names)


def _failed_before_sending(error: BaseException) -> bool:
    """Tell whether LiteLLM gave up while it put the request into the provider's form.

    Every failure of a connection or of an answer has a library's error in its chain; this
    one has only LiteLLM's wrapper and a plain Python error.
    """
    if type(error).__name__ == "UnsupportedParamsError":
        return True
    modules = {type(link).__module__ for link in _chain(error)}
    return modules == {"litellm.exceptions", "builtins"}


def _chain(error: BaseException) -> list[BaseException]:
    """Return the error and what caused it, outermost first."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and len(chain) < 16:
        chain.append(cause)
    return chain


def _status(error: BaseException) -> int | None:
    for name in ("status_code", "code"):
        value = getattr(error, name, None)
        if isinstance(value, int | str) and str(value).isdecimal():
            return int(value)
    return None


def _retry_after(error: BaseException) -> int | None:
    """Return the provider's `Retry-After` in whole seconds; None when it sent none we can read."""
    response = getattr(error, "response", None)
    for headers in (
        getattr(error, "litellm_response_headers", None),
        getattr(error, "headers", None),
        getattr(response, "headers", None),
    ):
        for name in ("retry-after", "Retry-After", "llm_provider-retry-after"):
            value = headers.get(name) if headers is not None else None
            if isinstance(value, str) and (wait := _seconds(value.strip())) is not None:
                return wait
    return None


def _seconds(text: str) -> int | None:
    """Read a `Retry-After`: a number of seconds, or the date to come back at."""
    if text.isdecimal() and len(text) <= 9:
        return int(text)
    try:
        moment = parsedate_to_datetime(text)
        return max(0, math.ceil((moment - datetime.now(UTC)).total_seconds()))
    except (ValueError, TypeError):  # no date, or one without its zone
        return None


# --- LiteLLM's running proxy -----------------------------------------------------------------


def wrap_app(wrap: Callable[[Any], Any]) -> None:
    """Put a layer around the whole application of this worker, outside its middlewares.

    INTERNAL: `proxy_server.app` and Starlette's `middleware_stack`, built by the time a
    worker startup hook runs.
    """
    from litellm.proxy import proxy_server

    if proxy_server.app.middleware_stack is None:
        raise RuntimeError("LiteLLM's application is not built yet: run as a worker startup hook")
    proxy_server.app.middleware_stack = wrap(proxy_server.app.middleware_stack)


def config_path(environ: Mapping[str, str]) -> Path | None:
    """Return the file this worker loads its configuration from.

    INTERNAL: `CONFIG_FILE_PATH` and `WORKER_CONFIG`, by which LiteLLM's command line tells
    its workers.
    """
    import json

    if environ.get("CONFIG_FILE_PATH"):
        return Path(environ["CONFIG_FILE_PATH"])
    worker = environ.get("WORKER_CONFIG", "")
    try:
        document = json.loads(worker)
    except ValueError:
        return Path(worker) if worker else None
    path = document.get("config") if isinstance(document, dict) else None
    return Path(path) if path else None


def live_deployments() -> list[dict[str, Any]] | None:
    """Return the router's own list, with secrets resolved; None while it is not loaded.

    INTERNAL: `proxy_server.llm_router`.
    """
    from litellm.proxy import proxy_server

    return None if proxy_server.llm_router is None else list(proxy_server.llm_router.model_list)


def live_doors() -> tuple[Any, list[Any]]:
    """Return the authentication function and the callbacks LiteLLM really uses.

    INTERNAL: `proxy_server.user_custom_auth`.
    """
    import litellm
    from litellm.proxy import proxy_server

    return proxy_server.user_custom_auth, list(litellm.callbacks)


def encoding(name: str) -> Any:
    """Return one of the encodings whose files come with LiteLLM; needs no network.

    INTERNAL: the folder of tokenizer files in the package.
    """
    import litellm

    folder = Path(litellm.__file__).parent / "litellm_core_utils" / "tokenizers"
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(folder))
    import tiktoken

    return tiktoken.get_encoding(name)
