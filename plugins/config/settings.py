"""`litellm_config.yaml` as frozen values; every problem at once, each with its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import yaml

from plugins.config import work
from plugins.config.flags import MODEL_LIST, NOT_IN_FORCE, OURS, ROUTER
from plugins.config.flaws import Flaw, Place, dotted, shown, unknown
from plugins.policy.call import Limits
from plugins.policy.grants import Deployment
from plugins.policy.work import Hosting, TaskType

MAX_BYTES = 2_000_000
MAX_DEPTH = 50
MAX_VALUES = 100_000
ENV_REFERENCE = "os.environ/"
MAPPING, SEQUENCE = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"
#: Encodings whose files come with LiteLLM.
ENCODINGS = ("o200k_base", "cl100k_base")
SUBSECTIONS = ("defaults", "task_types", "hosting", *NOT_IN_FORCE)


class SettingsError(Exception):
    """The file cannot be used; `flaws` holds everything that is wrong with it."""

    def __init__(self, flaws: Sequence[Flaw]) -> None:
        super().__init__("; ".join(f"{dotted(flaw.place)}: {flaw.rule}" for flaw in flaws))
        self.flaws = tuple(flaws)


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML file, with the line and the spelling of each of its values.

    Attributes:
        lines: Place -> line number, from 1.

        spelled: Place of a scalar -> its text as written, for numbers that must stay exact.
    """

    content: dict[str, Any]
    lines: Mapping[Place, int]
    spelled: Mapping[Place, str]
    flaws: tuple[Flaw, ...] = ()

    def line(self, place: Place) -> int:
        """Return the line of *place*, or of the nearest thing around it that is there."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)


@dataclass(frozen=True, slots=True)
class Engine:
    kind: str
    url: str
    slots: int | None = None
    queue: int | None = None


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """How a deployment's prompts are counted: an encoding, or a file; at most one of them.

    Attributes:
        file: A tokenizer.json; relative to the configuration file.

        chat_template: A Jinja file; None: the one that lies beside *file*.
    """

    encoding: str | None = None
    file: str | None = None
    chat_template: str | None = None


@dataclass(frozen=True, slots=True)
class DeploymentEntry:
    """One `model_list` entry.

    Attributes:
        input_price: US dollars for one prompt token; None when the entry states none.
    """

    deployment: Deployment
    litellm_params: Mapping[str, Any] = field(repr=False)
    input_price: Decimal | None = None
    output_price: Decimal | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    engine: Engine | None = None
    cached_input_price: Decimal | None = None
    cache_write_price: Decimal | None = None
    tokenizer: TokenizerFiles | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    deployments: tuple[DeploymentEntry, ...]
    groups: Mapping[str, tuple[Deployment, ...]]
    fallbacks: Mapping[str, tuple[str, ...]]
    defaults: Limits
    task_types: Mapping[str, TaskType] = field(default_factory=dict)
    hosting: Mapping[str, Hosting] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RenderedConfig:
    """What LiteLLM gets to load.

    Attributes:
        left_out: One line for each entry that is not in it, and why.

        engines: Model and `engine.url` of each entry of the file that is in it and has one.
    """

    text: str = field(repr=False)
    left_out: tuple[str, ...]
    engines: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def shown_in(section: Mapping[str, Any], name: str) -> str:
    """Return what stands under *name*, for people to read."""
    return shown(section[name]) if name in section else "nothing"


def read(path: Path) -> Document:
    """Parse the file, keeping lines and spellings.

    Raises:
        SettingsError: If it is not there, too large, not UTF-8, or not a YAML mapping.
    """
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
    except FileNotFoundError:
        raise SettingsError([Flaw((), "file not found")]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            [Flaw((), f"not readable as UTF-8 text ({error.__class__.__name__})")]
        ) from None
    if len(data) > MAX_BYTES:
        raise SettingsError([Flaw((), f"larger than {MAX_BYTES} bytes")])
    try:
        return _Reader(text).document()
    except yaml.YAMLError as error:
        raise SettingsError([_not_yaml(error, text)]) from None
    except RecursionError:
        raise SettingsError([Flaw((), f"nested more than {MAX_DEPTH} levels deep")]) from None


def _not_yaml(error: yaml.YAMLError, text: str) -> Flaw:
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark else None
    problem = getattr(error, "problem", None) or "cannot be parsed"
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        problem = "a character that YAML does not allow"
    where = f" at line {line}" if line else ""
    return Flaw((), f"not valid YAML{where}: {problem}", line=line)


class _Reader:
    def __init__(self, text: str) -> None:
        self._loader = yaml.SafeLoader(text)
        self._lines: dict[Place, int] = {}
        self._spelled: dict[Place, str] = {}
        self._flaws: list[Flaw] = []
        self._values = 0

    def document(self) -> Document:
        node = self._loader.get_single_node()
        content = None if node is None else self._value(node, ())
        if not isinstance(content, dict):
            raise SettingsError([Flaw((), "expected a mapping of sections")])
        return Document(content, self._lines, self._spelled, tuple(self._flaws))

    def _value(self, node: yaml.Node, place: Place) -> Any:
        self._lines.setdefault(place, node.start_mark.line + 1)
        # An alias is a value for each time it is used.
        self._values += 1
        if self._values > MAX_VALUES:
            raise SettingsError([Flaw(place[:1], f"more than {MAX_VALUES} values")])
        if len(place) > MAX_DEPTH:
            raise SettingsError([Flaw(place[:3], f"nested more than {MAX_DEPTH} levels deep")])
        if isinstance(node, yaml.MappingNode) and node.tag == MAPPING:
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode) and node.tag == SEQUENCE:
            return [self._value(item, (*place, n)) for n, item in enumerate(node.value)]
        if not isinstance(node, yaml.ScalarNode):
            self._flaws.append(Flaw(place, "expected a plain mapping or list", node.tag))
            return None
        self._spelled[place] = node.value
        try:
            return self._loader.construct_object(node)
        except (ValueError, KeyError, yaml.constructor.ConstructorError):
            rule = "cannot be read as what it looks like; put it in quotes"
            self._flaws.append(Flaw(place, rule, node.tag.removeprefix("tag:yaml.org,2002:")))
            return None

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        written = [key.value for key, _ in node.value]
        for name in {name for name in written if isinstance(name, str) and written.count(name) > 1}:
            if name != "<<":
                self._flaws.append(Flaw((*place, name), "the key stands there twice"))
        self._loader.flatten_mapping(node)
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._flaws.append(Flaw(place, "expected keys that are plain text"))
                continue
            name = str(key.value)
            self._lines[(*place, name)] = key.start_mark.line + 1
            found[name] = self._value(value, (*place, name))
        return found


def load(path: Path) -> Settings:
    """Read and check the file.

    Raises:
        SettingsError: With every problem that keeps it from being used.
    """
    document = read(path)
    settings, flaws = interpret(document)
    if flaws:
        raise SettingsError(flaws)
    return settings


def interpret(document: Document) -> tuple[Settings, list[Flaw]]:
    """Return the values, and what is wrong with them."""
    flaws = list(document.flaws)
    ours = document.content.get(OURS) or {}
    if not isinstance(ours, dict):
        flaws.append(Flaw((OURS,), "expected a mapping", shown(ours)))
        ours = {}
    flaws.extend(unknown((OURS,), ours, SUBSECTIONS))
    flaws.extend(
        Flaw((OURS, name), "expected a mapping", shown(ours[name]))
        for name in SUBSECTIONS
        if name != "defaults" and not isinstance(ours.get(name) or {}, dict)
    )
    defaults, found = _defaults(ours.get("defaults"))
    flaws.extend(found)
    entries = []
    for number, raw in enumerate(model_list(document.content)):
        entry, found = _entry(raw, (MODEL_LIST, number), document.spelled)
        flaws.extend(found)
        if entry is not None:
            entries.append(entry)
    groups: dict[str, tuple[Deployment, ...]] = {}
    for entry in entries:
        model = entry.deployment.model
        groups[model] = (*groups.get(model, ()), entry.deployment)
    reader = work.Reader(document.spelled)
    ids = {entry.deployment.id for entry in entries}
    types = reader.task_types(ours.get("task_types"), (OURS, "task_types"))
    machines = reader.hosting(ours.get("hosting"), (OURS, "hosting"), ids)
    flaws.extend(reader.flaws)
    settings = Settings(
        deployments=tuple(entries),
        groups=groups,
        fallbacks=fallbacks_of(document.content),
        defaults=defaults,
        task_types=types,
        hosting=machines,
    )
    return settings, flaws


def model_list(content: Mapping[str, Any]) -> list[Any]:
    found = content.get(MODEL_LIST)
    return found if isinstance(found, list) else []


def fallbacks_of(content: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return model -> its fallbacks, as LiteLLM's list of one-key mappings states them."""
    router = content.get(ROUTER)
    listed = router.get("fallbacks") if isinstance(router, dict) else None
    found: dict[str, tuple[str, ...]] = {}
    for item in listed if isinstance(listed, list) else []:
        if isinstance(item, dict):
            found.update((m, tuple(map(str, t))) for m, t in item.items() if isinstance(t, list))
    return found


def _defaults(raw: Any) -> tuple[Limits, list[Flaw]]:
    place: Place = (OURS, "defaults")
    if raw is None:
        return Limits(), []
    if not isinstance(raw, dict):
        return Limits(), [Flaw(place, "expected a mapping", shown(raw))]
    flaws = list(unknown(place, raw, [f.name for f in fields(Limits)]))
    size = raw.get("max_body_bytes", Limits().max_body_bytes)
    if type(size) is not int or not 1_000 <= size <= 1_000_000_000:
        rule = "expected a whole number from 1000 to 1000000000"
        flaws.append(Flaw((*place, "max_body_bytes"), rule, shown(size)))
    media = raw.get("remote_media", Limits().remote_media)
    if type(media) is not bool:
        flaws.append(Flaw((*place, "remote_media"), "expected true or false", shown(media)))
    floor = raw.get("min_output_tokens", Limits().min_output_tokens)
    if type(floor) is not int or not 1 <= floor <= 1_000_000:
        rule = "expected a whole number from 1 to 1000000"
        flaws.append(Flaw((*place, "min_output_tokens"), rule, shown(floor)))
    attempts = raw.get("max_attempts", Limits().max_attempts)
    if type(attempts) is not int or not 1 <= attempts <= 20:
        rule = "expected a whole number from 1 to 20"
        flaws.append(Flaw((*place, "max_attempts"), rule, shown(attempts)))
    return (Limits() if flaws else Limits(size, media, floor, attempts)), flaws


def _entry(
    raw: Any, place: Place, spelled: Mapping[Place, str]
) -> tuple[DeploymentEntry | None, list[Flaw]]:
    info = raw.get("model_info") if isinstance(raw, dict) else None
    params = raw.get("litellm_params") if isinstance(raw, dict) else None
    if not isinstance(params, dict) or not isinstance(raw.get("model_name"), str):
        return None, [Flaw(place, "expected an entry with model_name and litellm_params")]
    info = info if isinstance(info, dict) else {}
    at: Place = (*place, "model_info")
    flaws: list[Flaw] = []

    def price(name: str) -> Decimal | None:
        value, flaw = _price(info.get(name), (*at, name), spelled)
        flaws.extend(flaw)
        return value

    def count(name: str) -> int | None:
        value = info.get(name)
        if value is not None and (type(value) is not int or value < 1):
            flaws.append(Flaw((*at, name), "expected a whole number above 0", shown(value)))
            return None
        return value

    engine = None
    if "engine" in info:
        engine, found = _engine(info["engine"], (*at, "engine"))
        flaws.extend(found)
    tokenizer, found = _tokenizer(info.get("tokenizer"), (*at, "tokenizer"))
    flaws.extend(found)
    labels = {name: _label(info.get(name)) for name in ("id", "provider", "region")}
    entry = DeploymentEntry(
        Deployment(
            labels["id"], raw["model_name"], labels["provider"], labels["region"],
            local=engine is not None,
        ),
        params,
        price("input_cost_per_token"),
        price("output_cost_per_token"),
        count("max_input_tokens"),
        count("max_output_tokens"),
        engine,
        price("cache_read_input_token_cost"),
        price("cache_creation_input_token_cost"),
        tokenizer,
    )  # fmt: skip
    return entry, flaws


def _label(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _price(
    value: Any, place: Place, spelled: Mapping[Place, str]
) -> tuple[Decimal | None, list[Flaw]]:
    """Return the price exactly as written; YAML itself would make `1e-6` a text."""
    if value is None:
        return None, []
    try:
        price = Decimal(spelled.get(place, str(value)))
    except InvalidOperation:
        price = Decimal("NaN")
    if isinstance(value, bool) or not price.is_finite() or price < 0:
        rule = "expected US dollars for one token, 0 or more"
        return None, [Flaw(place, rule, shown(value))]
    return price, []


def _tokenizer(raw: Any, place: Place) -> tuple[TokenizerFiles | None, list[Flaw]]:
    if raw is None:
        return None, []
    if isinstance(raw, str) and raw in ENCODINGS:
        return TokenizerFiles(encoding=raw), []
    if isinstance(raw, str) and raw.endswith(".json"):
        return TokenizerFiles(file=raw), []
    rule = f"expected {', '.join(ENCODINGS)}, a tokenizer.json, or file and chat_template"
    if not isinstance(raw, dict) or not isinstance(raw.get("file"), str):
        return None, [Flaw(place, rule, shown(raw))]
    flaws = list(unknown(place, raw, ["file", "chat_template"]))
    if not isinstance(raw.get("chat_template"), str | None):
        flaws.append(Flaw((*place, "chat_template"), rule, shown(raw["chat_template"])))
    return (None if flaws else TokenizerFiles(None, **raw)), flaws


def _engine(raw: Any, place: Place) -> tuple[Engine | None, list[Flaw]]:
    if not isinstance(raw, dict):
        return None, [Flaw(place, "expected a mapping of kind and url", shown(raw))]
    flaws = list(unknown(place, raw, [f.name for f in fields(Engine)]))
    kind, url = raw.get("kind"), raw.get("url")
    kinds = ("llama.cpp", "ollama", "vllm", "sglang", "none")
    if kind not in kinds:
        rule = f"expected one of {', '.join(kinds)}"
        flaws.append(Flaw((*place, "kind"), rule, shown_in(raw, "kind")))
    if not isinstance(url, str) or not url.startswith(("http://", "https://", ENV_REFERENCE)):
        flaws.append(Flaw((*place, "url"), "expected the engine's http URL", shown_in(raw, "url")))
    for name in ("slots", "queue"):
        value = raw.get(name)
        if value is not None and (type(value) is not int or value < 0):
            flaws.append(Flaw((*place, name), "expected a whole number", shown(value)))
    return (None if flaws else Engine(**raw)), flaws


def references(value: Any) -> Iterator[str]:
    """Yield the environment variables that *value* names as `os.environ/NAME`."""
    return (name for _, name in referenced(value, ()))


def referenced(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    """Yield each reference to an environment variable below *place*, with where it stands."""
    if isinstance(value, str) and value.startswith(ENV_REFERENCE):
        yield place, value.removeprefix(ENV_REFERENCE)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from referenced(item, (*place, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from referenced(item, (*place, number))


def missing(entry: Any, environ: Mapping[str, str]) -> list[str]:
    """Return the variables an entry needs and the environment lacks."""
    return sorted({name for name in references(entry) if not environ.get(name)})


def render(
    path: Path, environ: Mapping[str, str], extra_model_list: Sequence[Mapping[str, Any]] = ()
) -> RenderedConfig:
    """Return the file as LiteLLM is to load it: without the entries whose key is not set.

    Fallbacks to a model that is left out go with it. Nothing else is changed.
    """
    read(path)  # within bounds
    # Read again the way LiteLLM does, so that keys such as `429:` stay what they are.
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    kept, left_out = [], []
    for entry in model_list(content):
        absent = missing(entry, environ)
        if absent:
            left_out.append(f"{entry.get('model_name')}: {', '.join(absent)} not set")
        else:
            kept.append(entry)
    content[MODEL_LIST] = [*kept, *(dict(entry) for entry in extra_model_list)]
    names = {entry["model_name"] for entry in content[MODEL_LIST]}
    router = content.get(ROUTER)
    if isinstance(router, dict) and "fallbacks" in router:
        remaining = {
            model: [target for target in targets if target in names]
            for model, targets in fallbacks_of(content).items()
            if model in names
        }
        router["fallbacks"] = [{model: targets} for model, targets in remaining.items() if targets]
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return RenderedConfig(text, tuple(left_out), tuple(_engine_urls(kept, environ)))


def _engine_urls(
    entries: Sequence[Mapping[str, Any]], environ: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    for entry in entries:
        info = entry.get("model_info")
        engine = info.get("engine") if isinstance(info, dict) else None
        url = engine.get("url") if isinstance(engine, dict) else None
        if isinstance(url, str):
            named = url.removeprefix(ENV_REFERENCE)
            yield str(entry.get("model_name")), url if named == url else environ[named]
