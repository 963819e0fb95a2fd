"""What the boot check and `admin check` find, each at its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from plugins import check
from plugins.check import DEFAULT_CONFIG, FLAGS, LEAKS, SECTIONS, Flag, Problem

SOUND = yaml.safe_load(DEFAULT_CONFIG.read_text(encoding="utf-8"))


def changed(place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """Return the shipped configuration with *value* at *place*; None takes it away."""
    document = yaml.safe_load(DEFAULT_CONFIG.read_text(encoding="utf-8"))
    target = document
    for part in place[:-1]:
        target = target.setdefault(part, {}) if isinstance(target, dict) else target[part]
    if value is None:
        target.pop(place[-1], None)
    else:
        target[place[-1]] = value
    return document


def found(
    tmp_path: Path, document: dict[str, Any], environ: dict[str, str] | None = None
) -> list[Problem]:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return check.check_file(path, environ or {})


def fatal(problems: list[Problem]) -> list[str]:
    return [problem.path for problem in problems if problem.level == "fatal"]


def test_the_shipped_configuration_is_sound() -> None:
    """A newcomer starts with nothing to mend; entries without a key are notes."""
    problems = check.check_file(DEFAULT_CONFIG, {})

    assert [problem.level for problem in problems] == ["note", "note", "note"]


def test_the_shipped_configuration_is_sound_with_every_key() -> None:
    """Setting the variables that it names brings up no new complaint."""
    environ = {
        "WG_VLLM_URL": "http://127.0.0.1:8000/v1",
        "WG_OPENROUTER_API_KEY": "pk-1",
        "WG_ANTHROPIC_API_KEY": "pk-2",
        "LITELLM_MASTER_KEY": "sk-0123456789abcdef0123456789abcdef",
    }

    assert check.check_file(DEFAULT_CONFIG, environ) == []


def wrong_value(flag: Flag) -> Any:
    return next(value for value in (True, False, 99, ["x"]) if not flag.allowed(value))


@pytest.mark.parametrize("flag", FLAGS, ids=lambda f: f"{f.section}.{f.name}")
def test_every_flag_has_an_effect(flag: Flag, tmp_path: Path) -> None:
    """One wrong value brings up exactly one problem, at its own line."""
    place = (flag.section, flag.name)
    problems = found(tmp_path, changed(place, wrong_value(flag)))
    (problem,) = [p for p in problems if p.level == "fatal"]
    line = (tmp_path / "config.yaml").read_text(encoding="utf-8").splitlines()[problem.line - 1]

    assert problem.path == ".".join(place)
    assert line.strip().startswith(f"{flag.name}:")


@pytest.mark.parametrize(
    "flag", [f for f in FLAGS if f.needed], ids=lambda f: f"{f.section}.{f.name}"
)
def test_what_is_needed_is_missed(flag: Flag, tmp_path: Path) -> None:
    """Leaving a needed setting out is as bad as a wrong value."""
    place = (flag.section, flag.name)

    assert fatal(found(tmp_path, changed(place, None))) == [".".join(place)]


@pytest.mark.parametrize("name", SECTIONS)
def test_sections_that_make_calls_of_their_own_are_refused(name: str, tmp_path: Path) -> None:
    """They would reach providers past every policy."""
    assert fatal(found(tmp_path, changed((name,), {"x": 1}))) == [name]


@pytest.mark.parametrize("name", LEAKS)
def test_entries_that_leave_their_deployment_are_refused(name: str, tmp_path: Path) -> None:
    """One entry is one place for the data to go."""
    document = changed(("model_list", 0, "litellm_params", name), "x")

    assert fatal(found(tmp_path, document)) == [f"model_list[0].litellm_params.{name}"]


INFO = ("model_list", 0, "model_info")
PARAMS = ("model_list", 0, "litellm_params")


@pytest.mark.parametrize(
    ("place", "value", "path"),
    [
        pytest.param((*INFO, "id"), None, "model_list[0].model_info.id", id="no-id"),
        pytest.param((*INFO, "id"), 7, "model_list[0].model_info.id", id="id-not-a-text"),
        pytest.param((*INFO, "provider"), None, "model_list[0].model_info.provider", id="provider"),
        pytest.param((*INFO, "region"), "", "model_list[0].model_info.region", id="empty-region"),
        pytest.param((*INFO, "region"), "*", "model_list[0].model_info.region", id="region-star"),
        pytest.param(
            ("model_list", 0, "model_name"), "openai/*", "model_list[0].model_name", id="wildcard"
        ),
        pytest.param(
            ("model_list", 0, "model_name"), "a,b", "model_list[0].model_name", id="comma"
        ),
        pytest.param(
            (*PARAMS, "model"), "openai/*", "model_list[0].litellm_params.model", id="any-model"
        ),
        pytest.param(
            ("general_settings", "master_key"), None, "general_settings.master_key", id="no-master"
        ),
        pytest.param(
            ("general_settings", "master_key"), "sk-1234", "general_settings.master_key",
            id="weak-master",
        ),
        pytest.param(
            ("environment_variables",), {"OPENAI_API_KEY": "pk"},
            "environment_variables.OPENAI_API_KEY", id="key-for-everyone",
        ),
        pytest.param(("model_list",), [], "model_list", id="no-models"),
        pytest.param(("wicketgate", "default"), {}, "wicketgate.default", id="typing-error"),
    ],
)  # fmt: skip
def test_a_fault_is_fatal(place: tuple[Any, ...], value: Any, path: str, tmp_path: Path) -> None:
    """Each of these would let a call go where nobody decided it may."""
    document = changed(place, value)
    document["router_settings"].pop("fallbacks")

    assert fatal(found(tmp_path, document)) == [path]


def test_an_id_stands_once(tmp_path: Path) -> None:
    """Two entries of one id, and an id that is also a model's name, are both told."""
    twice = changed((*INFO, "id"), "local-ollama-1")
    name = changed((*INFO, "id"), "local-ollama")

    assert fatal(found(tmp_path, twice)) == [
        "model_list[0].model_info.id",
        "model_list[1].model_info.id",
    ]
    assert fatal(found(tmp_path, name)) == ["model_list[0].model_info.id"]


def test_a_fallback_names_a_model(tmp_path: Path) -> None:
    """A fallback to nowhere would be found out on a bad day."""
    fallbacks = [{"local-small": ["gone", "local-small"]}]
    problems = found(tmp_path, changed(("router_settings", "fallbacks"), fallbacks))

    assert [(p.rule, p.got) for p in problems if p.level == "fatal"] == [
        ("names a model that is not in model_list", "'gone'"),
        ("sends a model to itself", "'local-small'"),
    ]


@pytest.mark.parametrize(
    ("environ", "path", "rule"),
    [
        pytest.param(
            {"OPENAI_API_KEY": "pk-secret"}, "model_list",
            "OPENAI_API_KEY is set and no entry names it: LiteLLM could use it on its own",
            id="stray-key",
        ),
        pytest.param(
            {"AWS_SECRET_ACCESS_KEY": "pk-secret"}, "model_list",
            "AWS_SECRET_ACCESS_KEY is set and no entry names it: LiteLLM could use it on its own",
            id="stray-cloud-key",
        ),
        pytest.param(
            {"OPENAI_BASE_URL": "http://pk-secret"}, "model_list",
            "OPENAI_BASE_URL is set and no entry names it: LiteLLM could use it on its own",
            id="stray-destination",
        ),
        pytest.param(
            {"DATABASE_URL": "postgresql://pk-secret"}, "DATABASE_URL",
            "must not be set: LiteLLM would migrate it", id="litellms-database",
        ),
        pytest.param(
            {"LITELLM_MASTER_KEY": "pk-secret"}, "general_settings.master_key",
            "is weak: expected sk- and at least 20 characters", id="weak-master-key",
        ),
    ],
)  # fmt: skip
def test_the_environment_is_looked_at(
    environ: dict[str, str], path: str, rule: str, tmp_path: Path
) -> None:
    """A variable that LiteLLM reads on its own is told, its value is not."""
    (problem,) = [p for p in found(tmp_path, SOUND, environ) if p.level == "fatal"]

    assert (problem.path, problem.rule) == (path, rule)
    assert "pk-secret" not in str(problem)


def test_a_key_that_an_entry_names_is_only_warned_of(tmp_path: Path) -> None:
    """Who runs a gateway already need not rename everything on the first day."""
    document = changed((*PARAMS, "api_key"), "os.environ/OPENAI_API_KEY")
    problems = found(tmp_path, document, {"OPENAI_API_KEY": "pk"})

    assert fatal(problems) == []
    assert ("warning", "model_list[0]") in [(p.level, p.path) for p in problems]


def test_an_entry_without_a_key_does_not_borrow_one(tmp_path: Path) -> None:
    """LiteLLM would send the key of the environment to the local engine."""
    document = changed((*PARAMS, "api_key"), None)
    document["model_list"][1]["litellm_params"]["api_key"] = "os.environ/OPENAI_API_KEY"

    assert fatal(found(tmp_path, document, {"OPENAI_API_KEY": "pk"})) == [
        "model_list[0].litellm_params.api_key"
    ]


def test_a_secret_in_the_file_is_not_repeated(tmp_path: Path) -> None:
    """It is warned of, and masked wherever it stands."""
    document = changed((*PARAMS, "api_key"), "pk-secret-1")
    document["general_settings"]["master_key"] = "sk-secret-0123456789abcdef"
    problems = found(tmp_path, document)

    assert {p.path for p in problems if p.level == "warning"} == {
        "model_list[0].litellm_params.api_key",
        "general_settings.master_key",
    }
    assert "secret-" not in " ".join(map(str, problems))


def test_a_problem_reads_as_place_rule_and_remedy(tmp_path: Path) -> None:
    """The form is the one compilers use, so editors can jump to it."""
    problem = Problem("fatal", "c.yaml", 7, "a.b", "must be true", "False", "else it leaks")

    assert str(problem) == "c.yaml:7: a.b: must be true (got False)\n    else it leaks"


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        pytest.param({}, ["LITELLM_WORKER_STARTUP_HOOKS", "LEDGER_URL"], id="nothing"),
        pytest.param(
            {"LITELLM_WORKER_STARTUP_HOOKS": "a:b,plugins.runtime:start", "LEDGER_URL": "mysql://"},
            ["LEDGER_URL"],
            id="another-database",
        ),
        pytest.param(
            {
                "LITELLM_WORKER_STARTUP_HOOKS": "plugins.runtime:start",
                "LEDGER_URL": "postgresql://u@h/d",
            },
            [],
            id="complete",
        ),
    ],
)
def test_a_launch_is_complete_or_says_what_it_lacks(
    environ: dict[str, str], names: list[str]
) -> None:
    """Whoever starts LiteLLM needs our hook and our database."""
    assert fatal(check.check_launch(environ)) == names


def test_the_command_prints_every_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1 when one is fatal; as data, every field of each."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"model_list": SOUND["model_list"][:1]}), encoding="utf-8")

    code = check.command(path, as_json=True)
    listed = json.loads(capsys.readouterr().out)

    assert code == 1
    assert {"level", "file", "line", "path", "rule", "got", "remedy"} == listed[0].keys()
    assert "general_settings.custom_auth" in [problem["path"] for problem in listed]
    assert check.command(DEFAULT_CONFIG, as_json=False) == 0
    assert "note: " in capsys.readouterr().out
