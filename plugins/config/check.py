"""What would break a promise, found before the first call: offline, every problem at once."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal

from plugins.config import provider_variables, settings
from plugins.config.flags import (
    CALLBACKS,
    DATABASE_PARTS,
    DOORS,
    FLAGS,
    GENERAL,
    HARMLESS_CALLBACKS,
    KNOWN_SECTIONS,
    LEAKS,
    LEDGER_SCHEMES,
    LITELLM,
    MAX_RETRIES,
    MODEL_LIST,
    NOT_IN_FORCE,
    OURS,
    ROUTER,
    SECTIONS,
    START_HOOK,
    VARIABLES,
    VARIABLES_SECTION,
    Flag,
    take_out,
)
from plugins.config.flaws import Flaw, Place, dotted, shown
from plugins.config.settings import Document, SettingsError, shown_in

Level = Literal["fatal", "warning", "note"]

DEFAULT_CONFIG = Path(__file__).parents[2] / "litellm_config.yaml"
MASTER_KEY_LENGTH = 20


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to mend. `got` never shows a secret.

    Attributes:
        line: From 1; 0 for what stands in no file, and for a file as a whole.

        path: Dotted; the variable's name for the environment, "" for a file as a whole.
    """

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
        where = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (where, self.path, self.rule) if part) + got + remedy


_SECRET_FIELDS = re.compile(
    r"(api_key|_token|secret|password|credentials|access_key)", re.IGNORECASE
)
_SECRET_HEADERS = re.compile(r"(authorization|key|token|secret|cookie)", re.IGNORECASE)
_DUMMIES = frozenset({"", "none", "local", "dummy", "not-needed", "no-key", "sk-no-key-required"})
_ROAD = "it opens a road to models that no entry labels"
_FALLBACK_FORM = "expected a list of 'model: [model, ...]'"
_PRICES = ("input_cost_per_token", "output_cost_per_token")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,63}")


def check_file(path: Path, environ: Mapping[str, str]) -> list[Problem]:
    """Return everything that can be found about the file and the environment, worst first."""
    try:
        document = settings.read(path)
    except SettingsError as error:
        return [_problem("fatal", path, None, flaw) for flaw in error.flaws]
    values, flaws = settings.interpret(document)
    found: list[tuple[Level, Flaw]] = [("fatal", flaw) for flaw in flaws]
    folder = Path(environ.get("WICKETGATE_CONFIG") or path)
    found.extend(_tokenizers(folder, values.deployments))
    for rule in (
        *(_flags, _callbacks, _retries, _sections, _entries, _names, _fallbacks),
        *(_master_key, _variables, _not_in_force),
    ):
        found.extend(rule(document, environ))
    problems = [_problem(level, path, document, flaw) for level, flaw in found]
    problems.extend(check_environment(environ))
    problems.extend(_stray_variables(document, environ))
    return sorted(problems, key=lambda p: (("fatal", "warning", "note").index(p.level), p.line))


def _problem(level: Level, path: Path, document: Document | None, flaw: Flaw) -> Problem:
    line = flaw.line or (document.line(flaw.place) if document else 0)
    return Problem(
        level, str(tidy(path)), line, dotted(flaw.place), flaw.rule, flaw.got, flaw.remedy
    )


def tidy(path: Path) -> Path:
    """Return the same file's path without `..`; any other as it is written."""
    return path.resolve() if ".." in path.parts else path


Found = Iterator[tuple[Level, Flaw]]


def _section(document: Document, name: str) -> Mapping[str, Any]:
    found = document.content.get(name)
    return found if isinstance(found, dict) else {}


def _flags(document: Document, environ: Mapping[str, str]) -> Found:
    for flag in FLAGS:
        section = _section(document, flag.section)
        if flag.name not in section:
            if flag.needed:
                yield "fatal", _absent(flag, section, document)
        elif not flag.allowed(section[flag.name]):
            got = masked(flag.name, section[flag.name])
            yield "fatal", Flaw((flag.section, flag.name), flag.rule, got, flag.remedy)


def _absent(flag: Flag, section: Mapping[str, Any], document: Document) -> Flaw:
    place: Place = (flag.section, flag.name)
    known = {known.name for known in FLAGS}
    near = difflib.get_close_matches(flag.name, [n for n in section if n not in known], 1, 0.8)
    if not near:
        return Flaw(place, flag.rule, "nothing", flag.remedy)
    remedy = f"did you mean '{flag.name}' by '{near[0]}'? {flag.remedy}"
    return Flaw(place, flag.rule, "nothing", remedy, document.line((flag.section, near[0])))


def _callbacks(document: Document, environ: Mapping[str, str]) -> Found:
    """Look at the callbacks beside our own."""
    listed = _section(document, LITELLM).get("callbacks")
    place: Place = (LITELLM, "callbacks")
    for number, name in enumerate(listed if isinstance(listed, list) else []):
        if name in DOORS or name in HARMLESS_CALLBACKS:
            continue
        if why := CALLBACKS.get(str(name)):
            yield "fatal", Flaw((*place, number), "must not be set", shown(name), take_out(why))
        else:
            rule = "a callback that is not known to stay within the gateway"
            remedy = "make sure that it calls no model and sends nothing to another region"
            yield "warning", Flaw((*place, number), rule, shown(name), remedy)


def _retries(document: Document, environ: Mapping[str, str]) -> Found:
    """Look for attempts that are counted in other places than `num_retries`."""
    rule = f"must be at most {MAX_RETRIES}"
    remedy = f"write a number from 0 to {MAX_RETRIES} (every retry is a paid attempt)"
    router = _section(document, ROUTER)
    counts = dict(_numbers(router.get("retry_policy"), (ROUTER, "retry_policy")))
    groups = "model_group_retry_policy"
    counts.update(_numbers(router.get(groups), (ROUTER, groups)))
    for number, entry in enumerate(settings.model_list(document.content)):
        params = entry.get("litellm_params") if isinstance(entry, dict) else None
        for name in ("num_retries", "max_retries", "retry_policy"):
            if isinstance(params, dict):
                at: Place = (MODEL_LIST, number, "litellm_params", name)
                counts.update(_numbers(params.get(name), at))
    for place, count in counts.items():
        if count > MAX_RETRIES:
            yield "fatal", Flaw(place, rule, shown(count), remedy)


def _numbers(value: Any, place: Place) -> Iterator[tuple[Place, int]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _numbers(item, (*place, name))
    elif type(value) is int:
        yield place, value


def _sections(document: Document, environ: Mapping[str, str]) -> Found:
    for name, why in SECTIONS.items():
        if document.content.get(name):
            yield "fatal", Flaw((name,), "must not be set", "a section", take_out(why))
    for name in document.content:
        if name not in KNOWN_SECTIONS and name not in SECTIONS and not name.startswith(("x-", ".")):
            near = difflib.get_close_matches(name, KNOWN_SECTIONS, n=1)
            remedy = f"did you mean '{near[0]}'?" if near else "LiteLLM and Wicketgate ignore it"
            yield "warning", Flaw((name,), "unknown section", name, remedy)
    for name, value in _section(document, VARIABLES_SECTION).items():
        if name in VARIABLES or name in DATABASE_PARTS or is_provider_variable(name):
            remedy = "name the variable in the entry that needs it, as os.environ/NAME"
            got = shown(value) if settings.ENV_REFERENCE in str(value) else "***"
            yield (
                "fatal",
                Flaw((VARIABLES_SECTION, name), "must not be set here", got, remedy),
            )


def _entries(document: Document, environ: Mapping[str, str]) -> Found:
    if not settings.model_list(document.content):
        remedy = "add an entry, or start with --demo"
        yield "fatal", Flaw((MODEL_LIST,), "expected at least one entry", "none", remedy)
    for number, entry in enumerate(settings.model_list(document.content)):
        if isinstance(entry, dict):
            place: Place = (MODEL_LIST, number)
            yield from _labels(entry, place)
            yield from _model_name(entry, place)
            yield from _params(entry, place, environ)
            yield from _costs(entry, (*place, "model_info"))


def _costs(entry: Mapping[str, Any], at: Place) -> Found:
    """Look for what budgets need to know of an entry."""
    info = _info(entry)
    stated = {name: info.get(name) is not None for name in _PRICES}
    if "engine" in info and not all(stated.values()):
        absent = next(name for name in _PRICES if not stated[name])
        remedy = "write 0, or what it is to be charged at: a local engine states both prices"
        yield "fatal", Flaw((*at, absent), "is not stated", "", remedy)
    elif not all(stated.values()):
        absent = next(name for name in _PRICES if not stated[name])
        remedy = "tenants with a money budget are refused there (price_missing) until it is stated"
        yield "warning", Flaw((*at, absent), "is not stated", "", remedy)
    for name in _PRICES:
        value = info.get(name)
        with contextlib.suppress(InvalidOperation):
            if value is not None and Decimal(str(value)) > 1:
                rule = "is more than a dollar for one token"
                remedy = "write dollars for one token, not for a million"
                yield "warning", Flaw((*at, name), rule, shown(value), remedy)
    if info.get("max_output_tokens") is None:
        remedy = "a call that names no cap gets 4096"
        yield "warning", Flaw((*at, "max_output_tokens"), "is not stated", "", remedy)


def _tokenizers(path: Path, entries: Iterable[settings.DeploymentEntry]) -> Found:
    """Look for tokenizer files that are not there."""
    for number, entry in enumerate(entries):
        named = entry.tokenizer
        for name in filter(None, (named.file, named.chat_template) if named else ()):
            if not (path.resolve().parent / name).is_file():
                place = (MODEL_LIST, number, "model_info", "tokenizer")
                remedy = "a path is relative to the configuration file"
                yield "fatal", Flaw(place, "names a file that is not there", name, remedy)


def _labels(entry: Mapping[str, Any], place: Place) -> Found:
    info = _info(entry)
    for name in ("id", "provider", "region"):
        value = info.get(name)
        if not isinstance(value, str) or not _LABEL.fullmatch(value):
            rule = "expected a short label (letters, digits, . _ / : @ -)"
            remedy = f"write {name}: LABEL (what is not labelled is granted to nobody)"
            yield "fatal", Flaw((*place, "model_info", name), rule, shown_in(info, name), remedy)
    if info.get("max_input_tokens") is None:
        remedy = "state it: too long a prompt is then sent, and paid for"
        yield (
            "warning",
            Flaw((*place, "model_info", "max_input_tokens"), "is not stated", "", remedy),
        )


def _model_name(entry: Mapping[str, Any], place: Place) -> Found:
    name = entry.get("model_name")
    if isinstance(name, str) and (not name or name != name.strip() or re.search(r"[*,\s]", name)):
        rule = "expected a name without spaces, commas and *"
        remedy = f"write one name ({_ROAD})"
        yield "fatal", Flaw((*place, "model_name"), rule, shown(name), remedy)
    params = entry.get("litellm_params")
    params = params if isinstance(params, dict) else {}
    model = params.get("model")
    if not isinstance(model, str) or not model or "*" in model or model.startswith("auto_router/"):
        rule = "expected one model of a provider"
        remedy = f"write it as provider/model (else {_ROAD})"
        at = (*place, "litellm_params", "model")
        yield "fatal", Flaw(at, rule, shown_in(params, "model"), remedy)


def _params(entry: Mapping[str, Any], place: Place, environ: Mapping[str, str]) -> Found:
    params = entry.get("litellm_params")
    if not isinstance(params, dict):
        return
    at: Place = (*place, "litellm_params")
    for name, why in LEAKS.items():
        if params.get(name):
            got = masked(name, params[name])
            yield "fatal", Flaw((*at, name), "must not be set", got, take_out(why))
    for where in _literal_secrets(params):
        remedy = "name a variable instead: os.environ/NAME"
        yield "warning", Flaw((*at, *where), "a secret stands in the file", "***", remedy)
    yield from _own_key(params, at, environ)
    absent = settings.missing(entry, environ)
    if absent:
        yield "note", Flaw(place, f"{', '.join(absent)} not set: deploy/up leaves this entry out")
    yield from _engine(_info(entry).get("engine"), params, at)


def _own_key(params: Mapping[str, Any], at: Place, environ: Mapping[str, str]) -> Found:
    """Look for entries for which LiteLLM would take a key from the environment."""
    if params.get("litellm_credential_name"):
        return
    given = params.get("custom_llm_provider")
    named = isinstance(given, str) and given
    provider = str(given) if named else provider_variables.provider_of(str(params.get("model")))
    candidates = provider_variables.borrowed(provider)
    variable = next((name for name in candidates if environ.get(name)), None)
    absent = params.get("api_key") in (None, "")
    if variable is None:
        if absent and params.get("api_base") and provider in provider_variables.OPENAI_COMPATIBLE:
            remedy = 'state one ("none" for a local engine), or LiteLLM looks for its own'
            yield "warning", Flaw((*at, "api_key"), "is not stated", "", remedy)
    elif absent:
        rule = f"without it LiteLLM sends {variable} there"
        yield "fatal", Flaw((*at, "api_key"), rule, "nothing", 'write the key, or "none"')
    elif settings.missing(params["api_key"], environ):
        rule = f"is not set: where deploy/up does not leave the entry out, {variable} is sent there"
        yield "warning", Flaw((*at, "api_key"), rule, shown(params["api_key"]), "set it")


def _engine(engine: Any, params: Mapping[str, Any], at: Place) -> Found:
    if not isinstance(engine, dict):
        return
    base, url = params.get("api_base"), engine.get("url")
    if not base:
        rule = "must be stated for an engine of our own"
        remedy = "write the engine's address (else LiteLLM calls the provider's public one)"
        yield "fatal", Flaw((*at, "api_base"), rule, "nothing", remedy)
    elif isinstance(base, str) and isinstance(url, str) and not base.startswith(url):
        remedy = "the queue would watch another engine than the one that is called"
        yield "warning", Flaw((*at, "api_base"), "is not below engine.url", shown(base), remedy)


def _info(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    info = entry.get("model_info")
    return info if isinstance(info, dict) else {}


def _literal_secrets(params: Mapping[str, Any]) -> Iterator[Place]:
    for name, value in params.items():
        if name in ("headers", "extra_headers") and isinstance(value, dict):
            for header, text in value.items():
                if _SECRET_HEADERS.search(header) and _is_literal(text):
                    yield (name, header)
        elif _SECRET_FIELDS.search(name) and not name.endswith("_per_token"):
            if _is_literal(value):
                yield (name,)
        elif isinstance(value, str) and re.search(r"//[^/@\s]*:[^/@\s]*@", value):
            yield (name,)


def _is_literal(value: Any) -> bool:
    return (
        isinstance(value, str)
        and not value.startswith(settings.ENV_REFERENCE)
        and value.lower() not in _DUMMIES
    )


def _names(document: Document, environ: Mapping[str, str]) -> Found:
    entries = [e if isinstance(e, dict) else {} for e in settings.model_list(document.content)]
    ids = Counter(i for e in entries if isinstance(i := _info(e).get("id"), str))
    names = {n for e in entries if isinstance(n := e.get("model_name"), str)}
    for number, entry in enumerate(entries):
        identifier = _info(entry).get("id")
        if not isinstance(identifier, str):
            continue
        place: Place = (MODEL_LIST, number, "model_info", "id")
        if ids[identifier] > 1:
            yield "fatal", Flaw(place, "stands at several entries", shown(identifier))
        if identifier in names:
            remedy = "LiteLLM takes an id for a model name"
            yield "fatal", Flaw(place, "is also a model_name", shown(identifier), remedy)


def _fallbacks(document: Document, environ: Mapping[str, str]) -> Found:
    entries = settings.model_list(document.content)
    names = [e.get("model_name") for e in entries if isinstance(e, dict)]
    listed = _section(document, ROUTER).get("fallbacks")
    place: Place = (ROUTER, "fallbacks")
    if listed is not None and not isinstance(listed, list):
        yield "fatal", Flaw(place, _FALLBACK_FORM, shown(listed))
        return
    for number, item in enumerate(listed or []):
        at = (*place, number)
        # LiteLLM takes a bare name for a fallback of every model, and reads only the first key.
        if not isinstance(item, dict) or len(item) != 1:
            yield "fatal", Flaw(at, _FALLBACK_FORM, shown(item))
            continue
        ((model, targets),) = item.items()
        if not isinstance(targets, list):
            yield "fatal", Flaw((*at, model), _FALLBACK_FORM, shown(targets))
            continue
        for name in (model, *targets):
            if name not in names:
                rule = "names a model that is not in model_list"
                yield "fatal", Flaw((*at, model), rule, shown(name))
        if model in targets:
            yield "fatal", Flaw((*at, model), "sends a model to itself", shown(model))


def _master_key(document: Document, environ: Mapping[str, str]) -> Found:
    key = _section(document, GENERAL).get("master_key")
    place: Place = (GENERAL, "master_key")
    remedy = "write os.environ/LITELLM_MASTER_KEY; deploy/up keeps a random one"
    if not isinstance(key, str) or not key:
        got = "***" if key else shown_in(_section(document, GENERAL), "master_key")
        yield "fatal", Flaw(place, "must name a variable", got, remedy)
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
    for number, entry in enumerate(settings.model_list(document.content)):
        for name in sorted({n for n in settings.references(entry) if is_provider_variable(n)}):
            if environ.get(name):
                rule = f"{name} is a name LiteLLM reads on its own"
                remedy = f"rename it, for example to WG_{name}"
                yield "warning", Flaw((MODEL_LIST, number), rule, "", remedy)


def _not_in_force(document: Document, environ: Mapping[str, str]) -> Found:
    for name in NOT_IN_FORCE:
        if _section(document, OURS).get(name):
            yield "warning", Flaw((OURS, name), "is not in force yet: nothing acts on it")


def is_provider_variable(name: str) -> bool:
    """Return whether LiteLLM would find a provider, its address or its key by this variable."""
    return name in provider_variables.NAMES


def check_environment(environ: Mapping[str, str]) -> Iterator[Problem]:
    """Yield what would make LiteLLM load or call something that the file does not say."""
    for name, (why, remedy) in VARIABLES.items():
        if environ.get(name, "").lower() not in ("", "false", "0"):
            rule = f"must not be set: {why}"
            yield Problem("fatal", "environment", 0, name, rule, "***", remedy)
    if all(environ.get(name) for name in DATABASE_PARTS):
        rule = "LiteLLM makes a DATABASE_URL of them, except under deploy/up"
        remedy = "unset one, or start with deploy/up"
        yield Problem("warning", "environment", 0, ", ".join(DATABASE_PARTS), rule, "***", remedy)


def _stray_variables(document: Document, environ: Mapping[str, str]) -> Iterator[Problem]:
    named = set(settings.references(settings.model_list(document.content)))
    for name in sorted(environ):
        if environ[name] and is_provider_variable(name) and name not in named:
            rule = "is set and no entry names it: LiteLLM could use it on its own"
            remedy = f"start with: env -u {name} …, or rename it"
            yield Problem("fatal", "environment", 0, name, rule, "***", remedy)


def check_resolved(path: Path, environ: Mapping[str, str]) -> list[Problem]:
    """Return what the file that LiteLLM is to load names, and the environment lacks.

    LiteLLM makes nothing of such a reference: nothing for an address means the provider's
    public one, and without a master key it advises to allow a weak one. What is wrong with
    the file otherwise is for `check_file` to tell.
    """
    try:
        document = settings.read(path)
    except SettingsError:
        return []
    remedy = "set it, or take the entry out; deploy/up leaves such entries out by itself"
    problems = []
    for number, entry in enumerate(settings.model_list(document.content)):
        told = set()
        for place, name in settings.referenced(entry, (MODEL_LIST, number)):
            if not environ.get(name) and name not in told:
                told.add(name)
                rule = f"{name} is not set: LiteLLM would call the provider's own address instead"
                problems.append(_problem("fatal", path, document, Flaw(place, rule, "", remedy)))
    key = _section(document, GENERAL).get("master_key")
    # One that is set to nothing is weak, and `check_file` tells that.
    name = str(key).removeprefix(settings.ENV_REFERENCE)
    if name != key and isinstance(key, str) and name not in environ:
        remedy = f'export {name}="sk-$(openssl rand -hex 32)"'
        flaw = Flaw((GENERAL, "master_key"), f"{name} is not set", "", remedy)
        problems.append(_problem("fatal", path, document, flaw))
    return problems


def check_launch(environ: Mapping[str, str]) -> list[Problem]:
    """Return what a launch of LiteLLM lacks, whoever launches it."""

    def problem(level: Level, name: str, rule: str, remedy: str) -> Problem:
        return Problem(level, "environment", 0, name, rule, "", remedy)

    problems = []
    if START_HOOK not in environ.get("LITELLM_WORKER_STARTUP_HOOKS", "").split(","):
        problems.append(
            problem("fatal", "LITELLM_WORKER_STARTUP_HOOKS", f"must hold {START_HOOK}", "")
        )
    if not environ.get("LEDGER_URL", "").startswith(tuple(f"{s}://" for s in LEDGER_SCHEMES)):
        problems.append(
            problem(
                "fatal", "LEDGER_URL", "must be a postgresql:// URL",
                "keys and grants are kept there",
            )
        )  # fmt: skip
    if environ.get("DEFAULT_MAX_RETRIES") != "0":
        rule = "must be 0: a provider's client would retry inside one attempt"
        problems.append(problem("fatal", "DEFAULT_MAX_RETRIES", rule, "retries are LiteLLM's job"))
    for name, value in (("LITELLM_RUST", "0"), ("DISABLE_ADMIN_UI", "True")):
        if environ.get(name, value).lower() != value.lower():
            problems.append(problem("warning", name, f"should be {value}", ""))
    if environ.get("NUM_WORKERS", "1") != "1" and environ.get("WICKETGATE_METRICS_PORT"):
        name, rule = "PROMETHEUS_MULTIPROC_DIR", "must name a folder, with several workers"
        if not environ.get(name):
            problems.append(problem("warning", name, rule, "metrics would be one worker's only"))
    return problems


def masked(name: str, value: Any) -> str:
    """Return a value for people to read, or `***` when its name says that it is a secret."""
    return "***" if _SECRET_FIELDS.search(name) or "url" in name else shown(value)
