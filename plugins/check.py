"""What would break a promise, found before the first call: offline, every problem at once."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from plugins import settings
from plugins.settings import Document, Flaw, Place, SettingsError, dotted

Level = Literal["fatal", "warning", "note"]

DEFAULT_CONFIG = Path(__file__).parents[1] / "litellm_config.yaml"
START_HOOK = "plugins.runtime:start"
AUTHENTICATE = "plugins.tenant_grants.authenticate"
DOORS = ["plugins.tenant_grants.tenant_grants", "plugins.router_hooks.router_hooks"]
MAX_RETRIES = 5
MASTER_KEY_LENGTH = 20


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to mend. `got` never shows a secret."""

    level: Level
    file: str
    line: int
    path: str
    rule: str
    got: str
    remedy: str

    def __str__(self) -> str:
        got = f" (got {self.got})" if self.got else ""
        remedy = f"\n    {self.remedy}" if self.remedy else ""
        return f"{self.file}:{self.line}: {self.path}: {self.rule}{got}{remedy}"


@dataclass(frozen=True, slots=True)
class Flag:
    """What one of LiteLLM's settings must be.

    Attributes:
        why: What goes wrong otherwise.

        needed: Whether leaving it out is a problem too.
    """

    section: str
    name: str
    allowed: Callable[[Any], bool]
    rule: str
    why: str
    needed: bool = False


def _is(*values: Any) -> Callable[[Any], bool]:
    return lambda value: any(value is known or value == known for known in values)


def _true(section: str, name: str, why: str) -> Flag:
    return Flag(section, name, lambda v: v is True, "must be true", why, needed=True)


def _false(section: str, name: str, why: str) -> Flag:
    return Flag(section, name, lambda v: v is False, "must be false", why, needed=True)


def _off(section: str, name: str, why: str) -> Flag:
    return Flag(section, name, lambda v: not v, "must not be set", why)


_GENERAL, _LITELLM, _ROUTER = "general_settings", "litellm_settings", "router_settings"
_UNSEEN = "calls made on this way are seen by no policy"
_OTHER_ROAD = "it opens a road to a provider around grants"
_CLIENT_CHOOSES = "callers could choose destination or credentials"

FLAGS: tuple[Flag, ...] = (
    Flag(
        _GENERAL, "custom_auth", _is(AUTHENTICATE), f"must be {AUTHENTICATE}",
        "without it LiteLLM's own keys open everything", needed=True,
    ),
    _true(_GENERAL, "custom_auth_run_common_checks", "LiteLLM's own admin routes stay open"),
    _true(_GENERAL, "disable_model_info_refresh", "LiteLLM calls every provider on its own"),
    Flag(
        _LITELLM, "callbacks", lambda v: isinstance(v, list) and v[:2] == DOORS,
        f"must begin with {', '.join(DOORS)}", "grants would not hold at each attempt",
        needed=True,
    ),
    _true(_LITELLM, "enable_post_custom_auth_checks", "LiteLLM's second wall stays down"),
    _true(_LITELLM, "global_disable_no_log_param", "a caller could switch the bookkeeping off"),
    _false(_LITELLM, "expose_router_debug_in_errors", "errors would name internal models"),
    _false(_LITELLM, "allow_dynamic_callback_disabling", "a caller could switch our hooks off"),
    _true(_LITELLM, "turn_off_message_logging", "prompts would reach logs and callbacks"),
    Flag(
        _LITELLM, "num_retries", lambda v: type(v) is int and 0 <= v <= MAX_RETRIES,
        f"must be a whole number from 0 to {MAX_RETRIES}", "every retry is a paid attempt",
        needed=True,
    ),
    Flag(
        _ROUTER, "num_retries", lambda v: type(v) is int and 0 <= v <= MAX_RETRIES,
        f"must be a whole number from 0 to {MAX_RETRIES}", "every retry is a paid attempt",
    ),
    _off(_GENERAL, "custom_auth_settings", "its modes fall back to LiteLLM's own keys"),
    _off(_GENERAL, "allow_client_side_credentials", _CLIENT_CHOOSES),
    _off(_GENERAL, "configurable_clientside_auth_params", _CLIENT_CHOOSES),
    _off(_GENERAL, "forward_client_headers_to_llm_api", _CLIENT_CHOOSES),
    _off(_GENERAL, "forward_llm_provider_auth_headers", _CLIENT_CHOOSES),
    _off(_GENERAL, "forward_openai_org_id", _CLIENT_CHOOSES),
    _off(_GENERAL, "pass_through_endpoints", _OTHER_ROAD),
    _off(_GENERAL, "completion_model", "it replaces the model that was granted"),
    _off(_GENERAL, "allow_requests_on_db_unavailable", "calls would pass unchecked"),
    _off(_GENERAL, "background_health_checks", _UNSEEN),
    _off(_GENERAL, "store_model_in_db", "models could be added past this file"),
    _off(_GENERAL, "database_url", "LiteLLM would run its own migrations there"),
    _off(_GENERAL, "cancel_on_disconnect", "attempts would end without being recorded"),
    _off(_GENERAL, "dangerously_permit_weak_or_unset_master_key", "anyone could be the master"),
    _off(_GENERAL, "enable_jwt_auth", "tokens would open what no key was granted"),
    _off(_GENERAL, "enable_oauth2_auth", "tokens would open what no key was granted"),
    _off(_GENERAL, "enable_oauth2_proxy_auth", "headers would open what no key was granted"),
    _off(_GENERAL, "public_routes", "paths would be open without a key"),
    _off(_GENERAL, "litellm_key_header_name", "keys are read from Authorization and x-api-key"),
    Flag(
        _GENERAL, "enforce_fallback_model_access", lambda v: v is True, "must not be false",
        "LiteLLM's own check of fallbacks would be off",
    ),
    Flag(
        _GENERAL, "always_include_stream_usage", lambda v: v is None, "must be left out",
        "unset is the only way in which every stream reports its usage",
    ),
    Flag(
        _LITELLM, "cache", lambda v: v is False, "must be false or left out",
        "an answer kept for one tenant would be given to another",
    ),
    _off(_LITELLM, "cache_params", "an answer kept for one tenant would be given to another"),
    _off(_LITELLM, "disable_streaming_logging", "streams would end without being recorded"),
    _off(_LITELLM, "forward_traceparent_to_llm_provider", "a caller's header would leave"),
    _off(_LITELLM, "add_user_information_to_llm_headers", "tenants would be named to providers"),
    _off(_LITELLM, "default_fallbacks", "they send a call to models it was not granted"),
    _off(_LITELLM, "fallbacks", "state them under router_settings"),
    _off(_LITELLM, "context_window_fallbacks", "state them under router_settings.fallbacks"),
    _off(_LITELLM, "content_policy_fallbacks", "state them under router_settings.fallbacks"),
    _off(_LITELLM, "model_alias_map", "one name would stand for another past the grants"),
    _off(_LITELLM, "success_callback", _UNSEEN),
    _off(_LITELLM, "failure_callback", _UNSEEN),
    _off(_LITELLM, "guardrails", _UNSEEN),
    _off(_LITELLM, "vector_store_registry", _UNSEEN),
    _off(_LITELLM, "set_verbose", "prompts and keys would be printed"),
    _off(_ROUTER, "default_fallbacks", "they send a call to models it was not granted"),
    _off(_ROUTER, "default_deployment", "an unknown model would be served by it"),
    _off(_ROUTER, "model_group_alias", "one name would stand for another past the grants"),
    _off(_ROUTER, "context_window_fallbacks", "state them under fallbacks"),
    _off(_ROUTER, "content_policy_fallbacks", "state them under fallbacks"),
    _off(_ROUTER, "plugins", _OTHER_ROAD),
    _off(_ROUTER, "enable_tag_filtering", "tags would choose the deployment"),
    _off(
        _ROUTER, "dangerously_allow_mock_testing_request_params", "callers could fake failures"
    ),
    _off("router_general_settings", "pass_through_all_models", _OTHER_ROAD),
)  # fmt: skip

#: Whole sections of LiteLLM's that make calls of their own.
SECTIONS = ("guardrails", "prompts", "mcp_servers", "vector_store_registry", "search_tools")
#: Fields of an entry's `litellm_params` with which a call leaves its deployment.
LEAKS = {
    "silent_model": "it sends every call to a second model",
    "use_in_pass_through": _OTHER_ROAD,
    "configurable_clientside_auth_params": _CLIENT_CHOOSES,
    "auto_router_config": "it makes calls of its own to choose a model",
    "auto_router_default_model": "it makes calls of its own to choose a model",
    "complexity_router_config": "it makes calls of its own to choose a model",
    "fallbacks": "state them under router_settings.fallbacks",
    "mock_response": "it answers without a model",
}

_PROVIDER_KEY = re.compile(r"^(?!WG_|WICKETGATE_|LITELLM_)[A-Z0-9_]+_API_(KEY|BASE|TOKEN)$")
_PROVIDER_NAMES = frozenset(
    """
    OPENAI_BASE_URL OPENAI_ORGANIZATION ANTHROPIC_BASE_URL ANTHROPIC_AUTH_TOKEN AWS_ACCESS_KEY_ID
    AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_PROFILE AWS_BEARER_TOKEN_BEDROCK
    GOOGLE_APPLICATION_CREDENTIALS AZURE_AD_TOKEN AZURE_CLIENT_SECRET HF_TOKEN HUGGINGFACE_TOKEN
    WATSONX_TOKEN DATABRICKS_TOKEN GITHUB_COPILOT_TOKEN
    """.split()
)
#: LiteLLM provider prefix -> the variable it falls back to when an entry has no `api_key`.
_FALLBACK_KEYS = {
    "openai": "OPENAI_API_KEY",
    "text-completion-openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "ollama": "OLLAMA_API_KEY",
    "ollama_chat": "OLLAMA_API_KEY",
    "hosted_vllm": "HOSTED_VLLM_API_KEY",
}
_SECRET_FIELDS = re.compile(
    r"(api_key|_token|secret|password|credentials|access_key)", re.IGNORECASE
)
_DUMMIES = frozenset({"", "none", "local", "dummy", "not-needed", "no-key", "sk-no-key-required"})
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,63}")


def check_file(path: Path, environ: Mapping[str, str]) -> list[Problem]:
    """Return everything that can be found about the file and the environment, worst first."""
    try:
        document = settings.read(path)
    except SettingsError as error:
        return [_problem("fatal", path, None, flaw) for flaw in error.flaws]
    _, flaws = settings.interpret(document)
    found: list[tuple[Level, Flaw]] = [("fatal", flaw) for flaw in flaws]
    for rule in (_flags, _sections, _entries, _names, _fallbacks, _master_key, _variables):
        found.extend(rule(document, environ))
    problems = [_problem(level, path, document, flaw) for level, flaw in found]
    problems.extend(check_environment(path, document, environ))
    return sorted(problems, key=lambda p: (("fatal", "warning", "note").index(p.level), p.line))


def _problem(level: Level, path: Path, document: Document | None, flaw: Flaw) -> Problem:
    line = document.line(flaw.place) if document else 1
    return Problem(
        level, str(path), line, dotted(flaw.place) or path.name, flaw.rule, flaw.got, flaw.remedy
    )


Found = Iterator[tuple[Level, Flaw]]


def _section(document: Document, name: str) -> Mapping[str, Any]:
    found = document.content.get(name)
    return found if isinstance(found, dict) else {}


def _flags(document: Document, environ: Mapping[str, str]) -> Found:
    for flag in FLAGS:
        section = _section(document, flag.section)
        if flag.name not in section:
            if flag.needed:
                yield "fatal", Flaw((flag.section, flag.name), flag.rule, "nothing", flag.why)
        elif not flag.allowed(section[flag.name]):
            got = shown(flag.name, section[flag.name])
            yield "fatal", Flaw((flag.section, flag.name), flag.rule, got, flag.why)


def _sections(document: Document, environ: Mapping[str, str]) -> Found:
    for name in SECTIONS:
        if document.content.get(name):
            yield "fatal", Flaw((name,), "must not be set", "a section", _UNSEEN)
    for name, value in _section(document, "environment_variables").items():
        if name.startswith("DATABASE_") or name == "DIRECT_URL" or is_provider_variable(name):
            place: Place = ("environment_variables", name)
            remedy = "name the variable in the entry that needs it, as os.environ/NAME"
            yield "fatal", Flaw(place, "must not be set here", shown(name, value, True), remedy)


def _entries(document: Document, environ: Mapping[str, str]) -> Found:
    if not settings.model_list(document.content):
        remedy = "add an entry, or start with --demo"
        yield "fatal", Flaw(("model_list",), "expected at least one entry", "none", remedy)
    for number, entry in enumerate(settings.model_list(document.content)):
        if isinstance(entry, dict):
            place: Place = ("model_list", number)
            yield from _labels(entry, place)
            yield from _model_name(entry, place)
            yield from _params(entry, place, environ)


def _labels(entry: Mapping[str, Any], place: Place) -> Found:
    info = _info(entry)
    for name in ("id", "provider", "region"):
        value = info.get(name)
        if not isinstance(value, str) or not _LABEL.fullmatch(value):
            rule = "expected a short label (letters, digits, . _ / : @ -)"
            remedy = "what is not labelled is granted to nobody"
            yield "fatal", Flaw((*place, "model_info", name), rule, repr(value), remedy)
    for name in ("input_cost_per_token", "output_cost_per_token", "max_input_tokens"):
        if info.get(name) is None:
            remedy = "state it, 0 included: budgets and context limits need it"
            yield "warning", Flaw((*place, "model_info", name), "is not stated", "", remedy)


def _model_name(entry: Mapping[str, Any], place: Place) -> Found:
    name = entry.get("model_name")
    if isinstance(name, str) and (not name or name != name.strip() or re.search(r"[*,\s]", name)):
        rule = "expected a name without spaces, commas and *"
        yield "fatal", Flaw((*place, "model_name"), rule, repr(name), _OTHER_ROAD)
    params = entry.get("litellm_params")
    model = params.get("model") if isinstance(params, dict) else None
    if not isinstance(model, str) or "*" in model or not model:
        rule = "expected one model of a provider"
        yield "fatal", Flaw((*place, "litellm_params", "model"), rule, repr(model), _OTHER_ROAD)


def _params(entry: Mapping[str, Any], place: Place, environ: Mapping[str, str]) -> Found:
    params = entry.get("litellm_params")
    if not isinstance(params, dict):
        return
    at: Place = (*place, "litellm_params")
    for name, why in LEAKS.items():
        if params.get(name):
            got = shown(name, params[name])
            yield "fatal", Flaw((*at, name), "must not be set", got, why)
    for name, value in params.items():
        if _is_literal_secret(name, value):
            remedy = "name a variable instead: os.environ/NAME"
            yield "warning", Flaw((*at, name), "a secret stands in the file", "***", remedy)
    provider = str(params.get("custom_llm_provider") or str(params.get("model")).partition("/")[0])
    variable = _FALLBACK_KEYS.get(provider, f"{provider.upper()}_API_KEY")
    if params.get("api_key") is None and environ.get(variable):
        rule = f"without it LiteLLM sends {variable} there"
        yield "fatal", Flaw((*at, "api_key"), rule, "nothing", 'write the key, or "none"')
    absent = settings.missing(entry, environ)
    if absent:
        yield "note", Flaw(place, f"left out at start: {', '.join(absent)} not set")
    engine = _info(entry).get("engine")
    url = engine.get("url") if isinstance(engine, dict) else None
    base = params.get("api_base")
    if isinstance(base, str) and isinstance(url, str) and not base.startswith(url):
        remedy = "the queue would watch another engine than the one that is called"
        yield "warning", Flaw((*at, "api_base"), "is not below engine.url", base, remedy)


def _info(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    info = entry.get("model_info")
    return info if isinstance(info, dict) else {}


def _is_literal_secret(name: str, value: Any) -> bool:
    return (
        bool(_SECRET_FIELDS.search(name))
        and isinstance(value, str)
        and not value.startswith(settings.ENV_REFERENCE)
        and value.lower() not in _DUMMIES
        and not name.endswith("_per_token")
    )


def _names(document: Document, environ: Mapping[str, str]) -> Found:
    entries = [e for e in settings.model_list(document.content) if isinstance(e, dict)]
    ids = Counter(_info(entry).get("id") for entry in entries)
    names = {e.get("model_name") for e in entries}
    for number, entry in enumerate(entries):
        identifier = _info(entry).get("id")
        place: Place = ("model_list", number, "model_info", "id")
        if identifier is not None and ids[identifier] > 1:
            yield "fatal", Flaw(place, "stands at several entries", repr(identifier))
        if identifier in names:
            remedy = "LiteLLM takes an id for a model name"
            yield "fatal", Flaw(place, "is also a model_name", repr(identifier), remedy)


def _fallbacks(document: Document, environ: Mapping[str, str]) -> Found:
    entries = settings.model_list(document.content)
    names = {entry.get("model_name") for entry in entries if isinstance(entry, dict)}
    place: Place = ("router_settings", "fallbacks")
    for model, targets in settings.fallbacks_of(document.content).items():
        for name in (model, *targets):
            if name not in names:
                yield "fatal", Flaw(place, "names a model that is not in model_list", repr(name))
        if model in targets:
            yield "fatal", Flaw(place, "sends a model to itself", repr(model))


def _master_key(document: Document, environ: Mapping[str, str]) -> Found:
    key = _section(document, _GENERAL).get("master_key")
    place: Place = (_GENERAL, "master_key")
    remedy = "write os.environ/LITELLM_MASTER_KEY; deploy/up keeps a random one"
    if not isinstance(key, str) or not key:
        yield "fatal", Flaw(place, "must name a variable", repr(key), remedy)
        return
    if not key.startswith(settings.ENV_REFERENCE):
        yield "warning", Flaw(place, "a secret stands in the file", "***", remedy)
        value: str | None = key
    else:
        value = environ.get(key.removeprefix(settings.ENV_REFERENCE))
    if value is not None and (len(value) < MASTER_KEY_LENGTH or not value.startswith("sk-")):
        rule = f"is weak: expected sk- and at least {MASTER_KEY_LENGTH} characters"
        yield "fatal", Flaw(place, rule, "***", 'use: echo "sk-$(openssl rand -hex 32)"')


def _variables(document: Document, environ: Mapping[str, str]) -> Found:
    named = set(settings.references(settings.model_list(document.content)))
    for number, entry in enumerate(settings.model_list(document.content)):
        for name in sorted({n for n in settings.references(entry) if is_provider_variable(n)}):
            if environ.get(name):
                rule = f"{name} is a name LiteLLM reads on its own"
                remedy = f"rename it, for example to WG_{name}"
                yield "warning", Flaw(("model_list", number), rule, "", remedy)
    for name in sorted(environ):
        if environ[name] and is_provider_variable(name) and name not in named:
            rule = f"{name} is set and no entry names it: LiteLLM could use it on its own"
            remedy = f"start with: env -u {name} …, or rename it"
            yield "fatal", Flaw(("model_list",), rule, "***", remedy)


def is_provider_variable(name: str) -> bool:
    """Return whether LiteLLM or a provider's client would read this variable on its own."""
    return name in _PROVIDER_NAMES or _PROVIDER_KEY.fullmatch(name) is not None


def check_environment(
    path: Path, document: Document, environ: Mapping[str, str]
) -> Iterator[Problem]:
    for name in ("DATABASE_URL", "DIRECT_URL"):
        if environ.get(name):
            yield Problem(
                "fatal", "environment", 0, name, "must not be set: LiteLLM would migrate it",
                "***", "name the ledger's database in LEDGER_URL",
            )  # fmt: skip


def check_launch(environ: Mapping[str, str]) -> list[Problem]:
    """Return what a launch of LiteLLM lacks, whoever launches it."""

    def problem(level: Level, name: str, rule: str, remedy: str) -> Problem:
        return Problem(level, "environment", 0, name, rule, "", remedy)

    problems = []
    if START_HOOK not in environ.get("LITELLM_WORKER_STARTUP_HOOKS", "").split(","):
        problems.append(
            problem("fatal", "LITELLM_WORKER_STARTUP_HOOKS", f"must hold {START_HOOK}", "")
        )
    if not environ.get("LEDGER_URL", "").startswith(("postgresql://", "postgres://")):
        problems.append(
            problem(
                "fatal", "LEDGER_URL", "must be a postgresql:// URL",
                "keys and grants are kept there",
            )
        )  # fmt: skip
    for name, value in (("LITELLM_RUST", "0"), ("DISABLE_ADMIN_UI", "True")):
        if environ.get(name, value).lower() != value.lower():
            problems.append(problem("warning", name, f"should be {value}", ""))
    return problems


def shown(name: str, value: Any, secret: bool = False) -> str:
    """Return a value for people to read, without what could be a secret."""
    if secret or _SECRET_FIELDS.search(name) or "url" in name:
        return "***"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def command(config: Path | None, as_json: bool) -> int:
    """Run `admin check`: print the problems; 1 when one is fatal."""
    import os

    path = config or DEFAULT_CONFIG
    problems = check_file(path, os.environ)
    if as_json:
        print(json.dumps([asdict(problem) for problem in problems], ensure_ascii=False, indent=2))
    else:
        for problem in problems:
            print(f"{problem.level}: {problem}")
        if not problems:
            print(f"{path}: nothing to mend", file=sys.stderr)
    return 1 if any(problem.level == "fatal" for problem in problems) else 0
