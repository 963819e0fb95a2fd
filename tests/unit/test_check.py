"""What the boot check and `admin check` find, each at its line."""

from __future__ import annotations

import re
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import yaml

from plugins import runtime
from plugins.config import check, provider_variables, settings
from plugins.config.check import DEFAULT_CONFIG, Problem
from plugins.config.flags import (
    CALLBACKS,
    DATABASE_PARTS,
    DOOR_CLASSES,
    DOORS,
    FLAGS,
    LEAKS,
    NOT_IN_FORCE,
    SECTIONS,
    START_HOOK,
    VARIABLES,
    Flag,
)

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
    assert problems[0].rule == "WG_VLLM_URL not set: deploy/up leaves this entry out"


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


@pytest.mark.parametrize(
    ("place", "value", "got", "remedy"),
    [
        pytest.param(
            ("general_settings", "custom_auth_run_common_checks"), False, "false",
            "write custom_auth_run_common_checks: true (else LiteLLM's own admin routes stay open)",
            id="wrong",
        ),
        pytest.param(
            ("litellm_settings", "num_retries"), None, "nothing",
            "write num_retries: 1 (else a call that fails may be paid for many times)",
            id="absent",
        ),
        pytest.param(
            ("general_settings", "store_model_in_db"), True, "true",
            "take it out (models could be added past this file)", id="forbidden",
        ),
        pytest.param(
            ("mcp_servers",), {"x": 1}, "a section",
            "take it out (calls made on this way are seen by no policy)", id="section",
        ),
    ],
)  # fmt: skip
def test_a_remedy_is_what_to_do(
    place: tuple[Any, ...], value: Any, got: str, remedy: str, tmp_path: Path
) -> None:
    """The line to write or to take out, then the reason; values in YAML's words."""
    (problem,) = [p for p in found(tmp_path, changed(place, value)) if p.level == "fatal"]

    assert (problem.got, problem.remedy) == (got, remedy)


def test_null_is_not_nothing(tmp_path: Path) -> None:
    """A key without a value is told apart from a key that is not there."""
    document = changed((*INFO, "region"), None)
    document["model_list"][1]["model_info"]["region"] = None

    assert [p.got for p in found(tmp_path, document) if p.level == "fatal"] == ["nothing", "null"]


def test_a_needed_setting_that_is_mistyped_is_recognised(tmp_path: Path) -> None:
    """The problem stands at the line of the typing error."""
    document = changed(("general_settings", "custom_auth_run_common_check"), True)
    del document["general_settings"]["custom_auth_run_common_checks"]
    (problem,) = [p for p in found(tmp_path, document) if p.level == "fatal"]
    line = (tmp_path / "config.yaml").read_text(encoding="utf-8").splitlines()[problem.line - 1]

    assert line.strip() == "custom_auth_run_common_check: true"
    assert problem.remedy.startswith(
        "did you mean 'custom_auth_run_common_checks' by 'custom_auth_run_common_check'? write "
    )


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """Its path once, without `..`."""
    (problem,) = check.check_file(tmp_path / "x" / ".." / "nofile.yaml", {})

    assert str(problem) == f"{tmp_path}/nofile.yaml: file not found"
    assert str(check.check_file(Path("nofile.yaml"), {})[0]) == "nofile.yaml: file not found"


@pytest.mark.parametrize("model", ["openai/x", "hosted_vllm/x"])
def test_an_entry_of_a_local_server_states_a_key(model: str, tmp_path: Path) -> None:
    """Otherwise the first OPENAI_API_KEY in the environment would go there."""
    document = changed((*PARAMS, "model"), model)
    del document["model_list"][0]["litellm_params"]["api_key"]
    (warning,) = [p for p in found(tmp_path, document) if p.level == "warning"]

    assert (warning.path, warning.remedy) == (
        "model_list[0].litellm_params.api_key",
        'state one ("none" for a local engine), or LiteLLM looks for its own',
    )


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
            {"OPENAI_API_KEY": "pk-secret"}, "OPENAI_API_KEY",
            "is set and no entry names it: LiteLLM could use it on its own",
            id="stray-key",
        ),
        pytest.param(
            {"AWS_SECRET_ACCESS_KEY": "pk-secret"}, "AWS_SECRET_ACCESS_KEY",
            "is set and no entry names it: LiteLLM could use it on its own",
            id="stray-cloud-key",
        ),
        pytest.param(
            {"OPENAI_BASE_URL": "http://pk-secret"}, "OPENAI_BASE_URL",
            "is set and no entry names it: LiteLLM could use it on its own",
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
    problem = Problem("fatal", "c.yaml", 7, "a.b", "must be true", "false", "write b: true")

    assert str(problem) == "c.yaml:7: a.b: must be true (got false)\n    write b: true"


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        pytest.param(
            {}, ["LITELLM_WORKER_STARTUP_HOOKS", "LEDGER_URL", "DEFAULT_MAX_RETRIES"], id="nothing"
        ),
        pytest.param(
            {
                "LITELLM_WORKER_STARTUP_HOOKS": "a:b,plugins.runtime:start",
                "LEDGER_URL": "mysql://",
                "DEFAULT_MAX_RETRIES": "0",
            },
            ["LEDGER_URL"],
            id="another-database",
        ),
        pytest.param(
            {
                "LITELLM_WORKER_STARTUP_HOOKS": "plugins.runtime:start",
                "LEDGER_URL": "postgresql://u@h/d",
                "DEFAULT_MAX_RETRIES": "0",
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


@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks_that_send_prompts_on_are_refused(name: str, tmp_path: Path) -> None:
    """A callback beside ours must not reach a model or a service of its own."""
    place = ("litellm_settings", "callbacks")
    callbacks = [*SOUND["litellm_settings"]["callbacks"], "prometheus", name]

    assert fatal(found(tmp_path, changed(place, callbacks))) == ["litellm_settings.callbacks[4]"]


def test_a_callback_of_somebody_else_is_warned_of(tmp_path: Path) -> None:
    """We cannot know what it sends where."""
    callbacks = [*SOUND["litellm_settings"]["callbacks"], "team.audit.logger"]
    (problem, *notes) = found(tmp_path, changed(("litellm_settings", "callbacks"), callbacks))

    assert (problem.level, problem.got) == ("warning", "'team.audit.logger'")
    assert {note.level for note in notes} == {"note"}


@pytest.mark.parametrize("name", VARIABLES)
def test_every_variable_has_an_effect(name: str, tmp_path: Path) -> None:
    """LiteLLM would load or call what the file does not say."""
    problems = found(tmp_path, SOUND, {name: "pk-secret"})

    assert fatal(problems) == [name]
    assert str(problems[0]).startswith(f"environment: {name}: must not be set: ")
    assert "pk-secret" not in str(problems[0])
    assert fatal(found(tmp_path, SOUND, {name: ""})) == []


def test_the_parts_of_a_database_address_are_warned_of(tmp_path: Path) -> None:
    """Under `deploy/up` LiteLLM does not see them; a plain launch makes an address of them."""
    problems = found(tmp_path, SOUND, dict.fromkeys(DATABASE_PARTS, "x"))

    assert [p.level for p in problems if p.file == "environment"] == ["warning"]
    assert found(tmp_path, SOUND, {"DATABASE_HOST": "x"}) == found(tmp_path, SOUND)


@pytest.mark.parametrize(
    ("fallbacks", "path"),
    [
        pytest.param("hosted-small", "router_settings.fallbacks", id="a-name"),
        pytest.param(["hosted-small"], "router_settings.fallbacks[0]", id="of-every-model"),
        pytest.param(
            [{"local-small": "hosted-small"}], "router_settings.fallbacks[0].local-small",
            id="not-a-list",
        ),
        pytest.param(
            [{"local-small": [{"model": "hosted-small", "api_base": "http://x"}]}],
            "router_settings.fallbacks[0].local-small", id="with-a-destination",
        ),
        pytest.param(
            [{"*": ["hosted-small"]}], "router_settings.fallbacks[0].*", id="star",
        ),
        pytest.param(
            [{"local-small": ["hosted-small"], "local-ollama": ["hosted-small"]}],
            "router_settings.fallbacks[0]", id="two-in-one",
        ),
    ],
)  # fmt: skip
def test_a_fallback_is_from_one_model_to_named_ones(
    fallbacks: Any, path: str, tmp_path: Path
) -> None:
    """LiteLLM takes a bare name for everybody's fallback, and a mapping for a new destination."""
    document = changed(("router_settings", "fallbacks"), fallbacks)

    assert fatal(found(tmp_path, document)) == [path]


@pytest.mark.parametrize(
    "place",
    [
        pytest.param((*PARAMS, "num_retries"), id="entry"),
        pytest.param((*PARAMS, "max_retries"), id="client"),
        pytest.param(("router_settings", "retry_policy", "TimeoutErrorRetries"), id="by-error"),
        pytest.param(
            ("router_settings", "model_group_retry_policy", "local-small", "TimeoutErrorRetries"),
            id="by-model",
        ),
    ],
)
def test_retries_are_bounded_wherever_they_stand(place: tuple[Any, ...], tmp_path: Path) -> None:
    """LiteLLM counts them in five places; each is a paid attempt."""
    (path,) = fatal(found(tmp_path, changed(place, 6)))

    assert path.endswith(place[-1])
    assert fatal(found(tmp_path, changed(place, 5))) == []


@pytest.mark.parametrize(
    ("place", "value", "rule"),
    [
        pytest.param(
            (*PARAMS, "api_base"), None, "must be stated for an engine of our own",
            id="no-address",
        ),
        pytest.param(
            (*INFO, "engine"), {}, "expected one of llama.cpp, ollama, vllm, sglang, none",
            id="empty-engine",
        ),
        pytest.param(
            (*PARAMS, "model"), "auto_router/local-small", "expected one model of a provider",
            id="auto-router",
        ),
    ],
)  # fmt: skip
def test_a_local_engine_is_called_where_it_is(
    place: tuple[Any, ...], value: Any, rule: str, tmp_path: Path
) -> None:
    """What counts as local must not reach a public address."""
    problems = found(tmp_path, changed(place, value))

    assert rule in [p.rule for p in problems if p.level == "fatal"]


def test_an_unfinished_engine_is_not_local(tmp_path: Path) -> None:
    """`engine:` with nothing behind it must not let a hosted model pass for one of ours."""
    path = tmp_path / "config.yaml"
    text = DEFAULT_CONFIG.read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.lstrip().startswith("engine: {"))
    path.write_text(text.replace(line, "      engine:", 1), encoding="utf-8")

    assert fatal(check.check_file(path, {})) == ["model_list[0].model_info.engine"]


@pytest.mark.parametrize("model", ["gpt-4o", "openai/x", "custom_openai/x"])
def test_a_model_without_a_prefix_borrows_openais_key(model: str, tmp_path: Path) -> None:
    """LiteLLM would send the team's OpenAI key to the address of this entry."""
    document = changed((*PARAMS, "model"), model)
    del document["model_list"][0]["litellm_params"]["api_key"]
    document["model_list"][1]["litellm_params"]["api_key"] = "os.environ/OPENAI_API_KEY"

    assert fatal(found(tmp_path, document, {"OPENAI_API_KEY": "pk"})) == [
        "model_list[0].litellm_params.api_key"
    ]


def test_a_key_that_is_not_set_borrows_another_on_a_plain_launch(tmp_path: Path) -> None:
    """`deploy/up` leaves the entry out; LiteLLM alone keeps it, and takes what it finds."""
    document = changed((*PARAMS, "api_key"), "os.environ/WG_NONE")
    document["model_list"][1]["litellm_params"]["api_key"] = "os.environ/OPENAI_API_KEY"
    problems = found(tmp_path, document, {"OPENAI_API_KEY": "pk"})

    assert fatal(problems) == []
    assert "model_list[0].litellm_params.api_key" in [
        p.path for p in problems if p.level == "warning"
    ]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        pytest.param((*PARAMS, "extra_headers"), {"Authorization": "Bearer hunter2"}, id="header"),
        pytest.param((*PARAMS, "api_base"), "http://u:hunter2@127.0.0.1:8080/v1", id="address"),
        pytest.param(
            (*INFO, "engine"), {"kind": "vllm", "url": "u:hunter2@h"}, id="engine-as-text"
        ),
        pytest.param(
            (*INFO, "engine"), {"kind": "vllm", "url": "ftp://u:hunter2@h"}, id="engine-address"
        ),
        pytest.param(
            ("litellm_settings", "cache_params"), {"password": "hunter2"}, id="within-a-section"
        ),
        pytest.param(
            ("general_settings", "pass_through_endpoints"),
            [{"headers": {"Authorization": "hunter2"}}],
            id="within-a-list",
        ),
        pytest.param(("environment_variables",), {"OPENAI_API_KEY": "hunter2"}, id="variable"),
        pytest.param(("general_settings", "master_key"), ["hunter2"], id="not-a-text"),
        pytest.param(("wicketgate",), "http://u:hunter2@h", id="our-section"),
    ],
)
def test_no_secret_is_shown_wherever_it_stands(
    place: tuple[Any, ...], value: Any, tmp_path: Path
) -> None:
    """The check's output goes into tickets and logs."""
    listed = " ".join(map(repr, found(tmp_path, changed(place, value))))

    assert place[-1] in listed
    assert "hunter2" not in listed


@pytest.mark.parametrize("value", [[], ["a"], {"a": 1}, 7, True, "", None])
@pytest.mark.parametrize(
    "place",
    [
        *(("model_list",), ("model_list", 0), ("model_list", 0, "model_name"), INFO, PARAMS),
        *((*INFO, "id"), (*INFO, "engine"), (*PARAMS, "model"), (*PARAMS, "api_base")),
        *(("general_settings",), ("litellm_settings",), ("router_settings",), ("wicketgate",)),
        *(("router_settings", "fallbacks"), ("litellm_settings", "callbacks")),
        *(("environment_variables",), ("general_settings", "master_key")),
    ],
    ids=lambda place: ".".join(map(str, place)),
)
def test_no_shape_of_a_file_breaks_the_check(
    place: tuple[Any, ...], value: Any, tmp_path: Path
) -> None:
    """Whatever a value is replaced with, the check ends and can be printed."""
    document = yaml.safe_load(DEFAULT_CONFIG.read_text(encoding="utf-8"))
    target = document
    for part in place[:-1]:
        target = target[part]
    target[place[-1]] = value

    assert all(str(problem) for problem in found(tmp_path, document))


def test_a_typing_error_in_a_section_is_told(tmp_path: Path) -> None:
    """Otherwise LiteLLM and we would both pass over it."""
    problems = found(tmp_path, {"router_setings": {"num_retries": 1}, "x-common": {}, **SOUND})

    assert [(p.path, p.remedy) for p in problems if p.level == "warning"] == [
        ("router_setings", "did you mean 'router_settings'?")
    ]


def test_a_variable_of_another_program_is_left_alone(tmp_path: Path) -> None:
    """Only what LiteLLM reads is told."""
    environ = {"STRIPE_API_KEY": "x", "SENDGRID_KEY": "x"}

    assert found(tmp_path, SOUND, environ) == found(tmp_path, SOUND)


@pytest.mark.parametrize("name", NOT_IN_FORCE)
def test_a_part_that_nothing_acts_on_yet_is_warned_of(name: str, tmp_path: Path) -> None:
    """Who writes a route or a budget must not believe that it holds."""
    problems = found(tmp_path, changed(("wicketgate", name), {"x": {}}))

    assert [(p.path, p.rule) for p in problems if p.level != "note"] == [
        (f"wicketgate.{name}", "is not in force yet: nothing acts on it")
    ]
    assert found(tmp_path, changed(("wicketgate", name), {})) == found(tmp_path, SOUND)


@pytest.mark.parametrize("environ", [{}, {"WG_VLLM_URL": ""}], ids=["unset", "empty"])
def test_an_entry_that_litellm_could_not_resolve_is_fatal(environ: dict[str, str]) -> None:
    """Without its address LiteLLM would send a local call to OpenAI; told once for an entry."""
    keys = {"WG_OPENROUTER_API_KEY": "pk-1", "WG_ANTHROPIC_API_KEY": "pk-2"}
    keys["LITELLM_MASTER_KEY"] = ""
    (problem,) = check.check_resolved(DEFAULT_CONFIG, {**keys, **environ})
    line = DEFAULT_CONFIG.read_text(encoding="utf-8").splitlines()[problem.line - 1]

    assert (problem.level, problem.path) == ("fatal", "model_list[2].litellm_params.api_base")
    assert line.strip() == "api_base: os.environ/WG_VLLM_URL"
    assert problem.rule == (
        "WG_VLLM_URL is not set: LiteLLM would call the provider's own address instead"
    )
    assert problem.remedy == (
        "set it, or take the entry out; deploy/up leaves such entries out by itself"
    )


def test_what_deploy_up_renders_is_resolved(tmp_path: Path) -> None:
    """The entries that lack a variable are gone from it; an unreadable file is told elsewhere."""
    rendered = tmp_path / "rendered.yaml"
    rendered.write_text(settings.render(DEFAULT_CONFIG, {}).text, encoding="utf-8")

    environ = {"LITELLM_MASTER_KEY": "sk-0123456789abcdef"}
    assert len(check.check_resolved(DEFAULT_CONFIG, environ)) == 3
    assert check.check_resolved(rendered, environ) == []
    assert check.check_resolved(tmp_path / "none.yaml", {}) == []


def test_a_master_key_that_is_not_set_is_fatal_at_boot(tmp_path: Path) -> None:
    """LiteLLM itself would advise to allow a weak one."""
    rendered = tmp_path / "rendered.yaml"
    rendered.write_text(settings.render(DEFAULT_CONFIG, {}).text, encoding="utf-8")
    (problem,) = check.check_resolved(rendered, {})

    assert (problem.level, problem.path) == ("fatal", "general_settings.master_key")
    assert problem.rule == "LITELLM_MASTER_KEY is not set"
    assert problem.remedy == 'export LITELLM_MASTER_KEY="sk-$(openssl rand -hex 32)"'


def test_the_doors_are_named_once() -> None:
    """A door's class and its instance are of the same module, and the runtime looks for these."""
    assert [door.rpartition(".")[0] for door in DOOR_CLASSES] == [
        door.rpartition(".")[0] for door in DOORS
    ]
    assert callable(getattr(runtime, START_HOOK.partition(":")[2]))


#: LiteLLM's secret manager, a loop variable, and what `VARIABLES` says more of.
NOT_PROVIDERS = ("CYBERARK_", "DEFAULT_API_BASE")
SPEC = util.find_spec("litellm")
assert SPEC is not None
assert SPEC.origin is not None
LITELLM = Path(SPEC.origin).parent
IN_QUOTES = re.compile(
    r"[\"']([A-Z][A-Z0-9_]*_(?:API_KEY|APIKEY|API_BASE|BASE_URL|API_TOKEN|AUTH_TOKEN))[\"']"
)


def test_every_provider_variable_of_the_installed_litellm_is_known() -> None:
    """A new provider fails here until its variables are listed."""
    files = [
        *(LITELLM / "llms").rglob("*.py"),
        *(LITELLM / "llms").rglob("*.json"),
        *(LITELLM / "main.py", LITELLM / "litellm_core_utils/get_llm_provider_logic.py"),
    ]
    read = {
        name
        for file in files
        for name in IN_QUOTES.findall(file.read_text(encoding="utf-8"))
        if not name.startswith(NOT_PROVIDERS)
    }

    assert len(read) > 200
    assert read - provider_variables.NAMES == set()


def test_every_name_in_the_tables_is_one_of_litellms() -> None:
    """A setting that LiteLLM renamed would be looked for in vain."""
    source = " ".join(
        file.read_text(encoding="utf-8", errors="replace") for file in LITELLM.rglob("*.py")
    )
    words = set(re.findall(r"\w+", source))
    names = {
        *(flag.name for flag in FLAGS),
        *(*SECTIONS, *LEAKS, *CALLBACKS, *VARIABLES, *DATABASE_PARTS),
    }

    # Read by litellm-enterprise, which a gateway that exists already may have.
    assert names - words == {"custom_auth_settings"}


@pytest.mark.parametrize(
    ("info", "level", "told"),
    [
        pytest.param(
            {"engine": {"kind": "none", "url": "http://127.0.0.1:1"}, "output_cost_per_token": 0},
            "fatal",
            "input_cost_per_token: is not stated",
            id="a-local-engine-states-its-price",
        ),
        pytest.param(
            {"input_cost_per_token": 1e-6},
            "warning",
            "output_cost_per_token: is not stated",
            id="a-hosted-price-is-missed",
        ),
        pytest.param(
            {"input_cost_per_token": 3, "output_cost_per_token": "15.00"},
            "warning",
            "output_cost_per_token: is more than a dollar for one token",
            id="dollars-for-a-million",
        ),
        pytest.param({}, "warning", "max_output_tokens: is not stated", id="no-output-limit"),
        pytest.param(
            {"tokenizer": "no/such/tokenizer.json"},
            "fatal",
            "tokenizer: names a file that is not there",
            id="a-tokenizer-that-is-not-there",
        ),
        pytest.param(
            {"tokenizer": "gpt-4o"}, "fatal", "tokenizer: expected o200k_base", id="no-tokenizer"
        ),
        pytest.param(
            {"tokenizer": {"file": "a.json", "templat": "b"}},
            "fatal",
            "tokenizer.templat: unknown setting",
            id="a-misspelt-template",
        ),
    ],
)
def test_what_budgets_need_to_know_of_an_entry(
    tmp_path: Path, info: dict[str, Any], level: str, told: str
) -> None:
    """Prices, limits and tokenizer files are looked at before the first call."""
    entry = {
        "model_name": "m",
        "litellm_params": {
            "model": "openai/m",
            "api_base": "http://127.0.0.1:1",
            "api_key": "none",
        },
        "model_info": {"id": "m-1", "provider": "p", "region": "r", "max_input_tokens": 9, **info},
    }
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"model_list": [entry]}))

    found = [p for p in check.check_file(path, {}) if told in f"{p.path}: {p.rule}"]

    assert [problem.level for problem in found] == [level]
