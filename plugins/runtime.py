"""Joins the parts in each worker; started by `LITELLM_WORKER_STARTUP_HOOKS`."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from plugins import logs, seam
from plugins.account import DEFAULT_CAP, Priced
from plugins.books import Books
from plugins.config import check, settings
from plugins.config.flags import AUTHENTICATE, DOOR_CLASSES
from plugins.config.settings import DeploymentEntry, TokenizerFiles
from plugins.entrance import Entrance
from plugins.gate import Gate
from plugins.keeper import Keeper
from plugins.policy.grants import DataClass, Deployment
from plugins.policy.identity import Key
from plugins.policy.money import Price
from plugins.policy.plan import Catalog, Plan
from plugins.telemetry import metrics
from plugins.tokens import counter
from plugins.tokens.counter import Counter, NotUsable
from plugins.tokens.images import rule_for

log = logging.getLogger("wicketgate")

DEFAULT_METRICS_HOST = "127.0.0.1"
#: Seconds LiteLLM may take from our startup hook to a loaded configuration.
LOADING_LIMIT = 60.0


class NotStarted(RuntimeError):
    """A door was loaded in a worker whose startup hook did not run.

    Start LiteLLM with LITELLM_WORKER_STARTUP_HOOKS=plugins.runtime:start in its environment.
    """

    def __init__(self) -> None:
        super().__init__(" ".join((self.__doc__ or "").split()))


@dataclass(slots=True)
class Runtime:
    """What the gate and the doors of one worker share.

    Attributes:
        deployments: Id -> labels, as read from the configuration file.

        trusted: Id -> the litellm_params LiteLLM itself resolved; empty until the boot check.
    """

    catalog: Catalog
    deployments: Mapping[str, Deployment]
    max_attempts: int
    books: Books = field(init=False)
    entrance: Entrance = field(init=False)
    trusted: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    _sound: bool = False

    def models_of(self, key: Key) -> list[str]:
        """Return the public models that *key* can reach, in the order of the configuration."""
        grants = key.tenant.grants
        return [
            model
            for model, deployments in self.catalog.groups.items()
            if grants.allowed(deployments, DataClass.ANY)
        ]

    def without_a_choice(self, plan: Plan) -> list[str]:
        """Return the models of *plan* that one single deployment may serve."""
        return [
            model
            for model in plan.models
            if sum(d.id in plan.deployments for d in self.catalog.groups[model]) == 1
        ]

    def sound(self) -> bool:
        """Return whether this worker may serve: LiteLLM runs as the boot check demands."""
        return self._sound or self.adopt_when_sound() == []

    def adopt_when_sound(self) -> list[str]:
        """Take LiteLLM over as it runs if nothing is wrong with it; return what is."""
        live = seam.live_deployments()
        if live is None:
            return ["LiteLLM has not loaded a model list"]
        problems = live_problems(live, self.deployments)
        if not problems:
            self.trusted = {
                entry["model_info"]["id"]: dict(entry["litellm_params"]) for entry in live
            }
            logs.now_serving()
            self._sound = True
        return problems


_runtime: Runtime | None = None


def get() -> Runtime:
    """Return this worker's runtime, for the doors.

    Raises:
        NotStarted: If the startup hook did not run; LiteLLM then stops at the door's import.
    """
    if _runtime is None:
        raise NotStarted
    return _runtime


def start() -> None:
    """Start this worker's runtime and put the gate around LiteLLM's application.

    Raises:
        SystemExit: If the launch or the configuration is not sound; each problem is told.
    """
    global _runtime
    logs.set_up()
    path = seam.config_path(os.environ)
    problems = check.check_launch(os.environ)
    if path is not None:
        problems += check.check_file(path, os.environ)
        # What is left out under `deploy/up` would here be called at some default address.
        problems += check.check_resolved(path, os.environ)
    if not os.environ.get("WICKETGATE_CONFIG"):  # else `deploy/up` has told them already
        for problem in problems:
            if problem.level == "warning":
                log.warning("%s", problem)
    fatal = [str(problem) for problem in problems if problem.level == "fatal"]
    if path is None:
        fatal.append("no configuration file: start LiteLLM with --config FILE")
    if fatal or path is None:
        die(fatal)
    loaded = settings.load(path)
    try:
        # Before the first call: reading a large file takes seconds.
        counters = counters_of(loaded, _folder(path, os.environ))
    except NotUsable as error:
        die([str(error)])
    _runtime = build(loaded, os.environ["LEDGER_URL"], counters)
    seam.wrap_app(lambda app: Gate(app, get().entrance))
    serve_metrics(os.environ)
    threading.Thread(target=_check_when_loaded, name="wicketgate-boot", daemon=True).start()


def build(loaded: settings.Settings, ledger_url: str, counters: Mapping[str, Counter]) -> Runtime:
    entries = loaded.deployments
    runtime = Runtime(
        catalog=Catalog(
            groups=loaded.groups,
            fallbacks=loaded.fallbacks,
            context={
                entry.deployment.id: entry.max_input_tokens
                for entry in entries
                if entry.max_input_tokens is not None
            },
        ),
        deployments={entry.deployment.id: entry.deployment for entry in entries},
        max_attempts=loaded.defaults.max_attempts,
    )
    runtime.books = Books(
        ledger_url,
        {e.deployment.id: priced(e, counters[e.deployment.id]) for e in entries},
        loaded.task_types,
        loaded.hosting,
        loaded.defaults.min_output_tokens,
    )
    keeper = Keeper(ledger_url, on_tick=metrics.snapshot_age.set)
    runtime.entrance = Entrance(
        keeper,
        runtime.catalog,
        loaded.defaults,
        now=lambda: datetime.now(UTC),
        sound=runtime.sound,
        books=runtime.books,
    )
    keeper.start()
    runtime.books.start()
    return runtime


def counters_of(loaded: settings.Settings, folder: Path) -> dict[str, Counter]:
    """Return id -> counter; deployments that count alike share one, and its counts.

    Raises:
        NotUsable: If a file that an entry names cannot be used.
    """
    shared: dict[object, Counter] = {}
    found = {}
    for entry in loaded.deployments:
        alike = (entry.tokenizer, entry.litellm_params.get("model"))
        if alike not in shared:
            shared[alike] = counter_of(entry, folder)
        found[entry.deployment.id] = shared[alike]
    return found


def _folder(path: Path, environ: Mapping[str, str]) -> Path:
    """Return where relative paths begin: at the admin's file, not at the one made of it."""
    return Path(environ.get("WICKETGATE_CONFIG") or path).resolve().parent


def counter_of(entry: DeploymentEntry, folder: Path) -> Counter:
    """Return what counts the prompts of a deployment.

    Raises:
        NotUsable: If the files it names cannot be used.
    """
    named = entry.tokenizer or TokenizerFiles()
    tokenizer, template = counter.load(
        named.encoding,
        None if named.file is None else folder / named.file,
        None if named.chat_template is None else folder / named.chat_template,
    )
    rule = rule_for(str(entry.litellm_params.get("model", "")))
    return Counter(tokenizer, template, rule, openai=named.encoding is not None)


def priced(entry: DeploymentEntry, counts: Counter) -> Priced:
    model = str(entry.litellm_params.get("model", ""))
    return Priced(
        entry.deployment,
        Price(
            entry.input_price,
            entry.output_price,
            entry.cached_input_price,
            entry.cache_write_price,
        ),
        counts,
        entry.max_output_tokens or DEFAULT_CAP,
        reports_charges=model.startswith("openrouter/"),
    )


def serve_metrics(environ: Mapping[str, str]) -> None:
    port = environ.get("WICKETGATE_METRICS_PORT", "")
    if port.isdecimal() and int(port) > 0:
        metrics.serve(environ.get("WICKETGATE_METRICS_HOST", DEFAULT_METRICS_HOST), int(port))


def live_problems(live: list[dict[str, Any]], deployments: Mapping[str, Deployment]) -> list[str]:
    """Return what LiteLLM made of the configuration that we cannot stand behind."""
    authenticate, callbacks = seam.live_doors()
    problems = []
    if f"{getattr(authenticate, '__module__', '')}.authenticate" != AUTHENTICATE:
        problems.append(f"general_settings.custom_auth is not {AUTHENTICATE}")
    present = [f"{type(c).__module__}.{type(c).__qualname__}" for c in callbacks]
    problems.extend(
        f"litellm_settings.callbacks lacks {door}" for door in DOOR_CLASSES if door not in present
    )
    for entry in live:
        identifier = (entry.get("model_info") or {}).get("id")
        known = deployments.get(str(identifier))
        if known is None or known.model != entry.get("model_name"):
            problems.append(f"the router serves a deployment the configuration lacks: {identifier}")
    return problems


def _check_when_loaded() -> None:
    """Tell how the boot check ended without waiting for the first call."""
    runtime = get()
    deadline = time.monotonic() + LOADING_LIMIT
    problems = runtime.adopt_when_sound()
    while problems and time.monotonic() < deadline:
        time.sleep(0.2)
        problems = runtime.adopt_when_sound()
    if problems:
        die(problems)
    log.info("ready: %d deployments", len(runtime.deployments))


def die(problems: list[str]) -> NoReturn:
    """End this worker: a gate that is not sound serves nothing."""
    for problem in problems:
        log.critical("%s", problem)
    log.critical("Wicketgate does not start: %d problem(s), see above", len(problems))
    logging.shutdown()
    os._exit(3)
