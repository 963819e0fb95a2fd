"""The configuration file as values, and everything that is wrong with it at once."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
import yaml

from plugins.config import settings
from plugins.config.flaws import dotted
from plugins.config.settings import Engine, SettingsError
from plugins.policy.call import Limits
from plugins.policy.grants import Deployment
from plugins.policy.work import TaskBudget, TaskType

ENTRY = """
model_list:
  - model_name: chat
    litellm_params: {model: openai/x, api_key: os.environ/WG_KEY}
    model_info:
      id: chat-1
      provider: a
      region: eu
      input_cost_per_token: 1e-6
      output_cost_per_token: 0.00000015
      max_input_tokens: 100
      engine: {kind: vllm, url: "http://127.0.0.1:1", slots: 4}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_entry_becomes_a_deployment(tmp_path: Path) -> None:
    """Labels, limits and the engine are read; prices keep every digit as written."""
    (entry,) = settings.load(written(tmp_path, ENTRY)).deployments

    assert entry.deployment == Deployment("chat-1", "chat", "a", "eu", local=True)
    assert (entry.input_price, entry.output_price) == (Decimal("1e-6"), Decimal("0.00000015"))
    assert entry.max_input_tokens == 100
    assert entry.engine == Engine("vllm", "http://127.0.0.1:1", slots=4)


def test_no_secret_shows_in_a_repr(tmp_path: Path) -> None:
    """What an entry is called with stays out of logs."""
    text = ENTRY.replace("os.environ/WG_KEY", "pk-secret")

    assert "pk-secret" not in repr(settings.load(written(tmp_path, text)))


def test_what_is_not_set_has_its_default(tmp_path: Path) -> None:
    """A file without a section of ours is complete."""
    loaded = settings.load(written(tmp_path, ENTRY))

    assert loaded.defaults == Limits()
    assert loaded.fallbacks == {}


def test_our_section_is_read(tmp_path: Path) -> None:
    """Limits, task types and LiteLLM's fallbacks."""
    more = """
router_settings: {fallbacks: [{chat: [other]}]}
wicketgate:
  defaults: {max_body_bytes: 5000, remote_media: true}
  task_types: {extract: {priority: high}}
  routes: {auto: []}
"""
    loaded = settings.load(written(tmp_path, ENTRY + more))

    assert loaded.defaults == Limits(5000, True)
    assert loaded.task_types == {"extract": TaskType("extract", "high")}
    assert loaded.fallbacks == {"chat": ("other",)}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("a: [", "not valid YAML at line 1: expected the node content, but found "
                     "'<stream end>'", id="not-yaml"),
        pytest.param("a: \x00", "not valid YAML at line 1: a character that YAML does not allow",
                     id="null-byte"),
        pytest.param("a: 1\n---\nb: 2", "not valid YAML at line 2", id="two-documents"),
        pytest.param("a: 2026-13-45", "a: cannot be read as what it looks like; put it in quotes",
                     id="no-such-day"),
        pytest.param("a: !!int x", "a: cannot be read as what it looks like; put it in quotes",
                     id="not-a-number"),
        pytest.param("a: !!python/object:os.system {}", "a: expected a plain mapping or list",
                     id="an-object"),
        pytest.param("? [a]\n: b", "expected keys that are plain text", id="a-list-as-a-key"),
        pytest.param("a: " + "[" * 20_000, "nested more than 50 levels deep", id="very-deep"),
        pytest.param("wicketgate: {task_types: [a]}", "wicketgate.task_types: expected a mapping",
                     id="list-of-types"),
        pytest.param("- a", "expected a mapping of sections", id="a-list"),
        pytest.param("", "expected a mapping of sections", id="empty"),
        pytest.param("a: &a [*a]", "nested more than 50 levels deep", id="contains-itself"),
        pytest.param(
            "a0: &a0 x\n" + "".join(
                f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
            ),
            "more than 100000 values", id="grows-without-end",
        ),
        pytest.param("a: " + "[" * 200 + "]" * 200, "nested more than 50 levels deep", id="deep"),
        pytest.param(f"a: {'x' * 2_000_000}", "larger than 2000000 bytes", id="large"),
    ],
)  # fmt: skip
def test_an_unusable_file_is_told_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    """Whatever stands in the file, reading it ends, and says what is wrong."""
    with pytest.raises(SettingsError) as caught:
        settings.load(written(tmp_path, text))

    assert told in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The path is the first thing to look at."""
    with pytest.raises(SettingsError, match="file not found"):
        settings.load(tmp_path / "none.yaml")


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    """Nobody mends a file one line at a time."""
    text = """
model_list:
  - model_name: a
    litellm_params: {model: openai/x}
    model_info:
      input_cost_per_token: cheap
      output_cost_per_token: -1
      max_input_tokens: many
      max_input_tokens: 5
      engine: {kind: vlm, url: gpu-1, slot: 4}
  - model_name: b
wicketgate:
  default: {}
  defaults: {max_body_bytes: 8MB, remote_media: "yes", max_body: 1}
"""
    document = settings.read(written(tmp_path, text))
    _, flaws = settings.interpret(document)

    assert sorted(
        (document.line(f.place), f"{dotted(f.place)}: {f.rule} ({f.got}) {f.remedy}".rstrip())
        for f in flaws
    ) == [
        (6, "model_list[0].model_info.input_cost_per_token: expected US dollars for one token, "
            "0 or more ('cheap')"),
        (7, "model_list[0].model_info.output_cost_per_token: expected US dollars for one token, "
            "0 or more (-1)"),
        (9, "model_list[0].model_info.max_input_tokens: the key stands there twice ()"),
        (10, "model_list[0].model_info.engine.kind: expected one of llama.cpp, ollama, vllm, "
             "sglang, none ('vlm')"),
        (10, "model_list[0].model_info.engine.slot: unknown setting (slot) did you mean 'slots'?"),
        (10, "model_list[0].model_info.engine.url: expected the engine's http URL ('gpu-1')"),
        (11, "model_list[1]: expected an entry with model_name and litellm_params ()"),
        (13, "wicketgate.default: unknown setting (default) did you mean 'defaults'?"),
        (14, "wicketgate.defaults.max_body: unknown setting (max_body) did you mean "
             "'max_body_bytes'?"),
        (14, "wicketgate.defaults.max_body_bytes: expected a whole number from 1000 to "
             "1000000000 ('8MB')"),
        (14, "wicketgate.defaults.remote_media: expected true or false ('yes')"),
    ]  # fmt: skip


def test_an_entry_without_its_key_is_left_out(tmp_path: Path) -> None:
    """LiteLLM gets the rest as it was, and a line says what is missing."""
    text = ENTRY + (
        "  - {model_name: other, litellm_params: {model: openai/y, api_key: none}}\n"
        "router_settings: {fallbacks: [{other: [chat]}, {chat: [other]}], num_retries: 1}\n"
    )
    path = written(tmp_path, text)

    without = settings.render(path, {})
    whole = settings.render(path, {"WG_KEY": "pk"})

    assert without.left_out == ("chat: WG_KEY not set",)
    assert [e["model_name"] for e in yaml.safe_load(without.text)["model_list"]] == ["other"]
    assert yaml.safe_load(without.text)["router_settings"] == {"fallbacks": [], "num_retries": 1}
    assert whole.left_out == ()
    assert yaml.safe_load(whole.text) == yaml.safe_load(text)
    assert (without.engines, whole.engines) == ((), (("chat", "http://127.0.0.1:1"),))


def test_an_engines_address_may_be_a_variable(tmp_path: Path) -> None:
    """It is looked up, as LiteLLM looks up the entry's own."""
    path = written(tmp_path, ENTRY.replace('"http://127.0.0.1:1"', "os.environ/WG_URL"))
    rendered = settings.render(path, {"WG_KEY": "pk", "WG_URL": "http://gpu-1:8000/v1"})

    assert rendered.engines == (("chat", "http://gpu-1:8000/v1"),)


def test_an_entry_of_the_demo_is_added(tmp_path: Path) -> None:
    """`deploy/up --demo` serves its model beside the configured ones."""
    extra = {"model_name": "local-demo", "litellm_params": {"model": "openai/demo"}}

    rendered = settings.render(written(tmp_path, ENTRY), {"WG_KEY": "pk"}, [extra])

    assert yaml.safe_load(rendered.text)["model_list"][-1] == extra


def test_what_is_left_in_is_left_as_it_was(tmp_path: Path) -> None:
    """Numbers keep their value, keys their type, and texts that look like numbers stay texts."""
    text = ENTRY + (
        "router_settings:\n"
        "  retry_policy: {429: 1, on: 2, null: 3, 1.5: 4}\n"
        "  shared: &s {a: 0.1, b: 1e-6, c: '1', d: 0x10, e: 1.5e-07}\n"
        "  again: {<<: *s, f: 2026-12-01}\n"
    )
    path = written(tmp_path, text)

    assert yaml.safe_load(settings.render(path, {"WG_KEY": "pk"}).text) == yaml.safe_load(text)


def test_a_line_is_given_where_the_file_cannot_be_parsed(tmp_path: Path) -> None:
    """An editor can jump there."""
    with pytest.raises(SettingsError) as caught:
        settings.load(written(tmp_path, "a: 1\nb: @x\n"))

    assert [flaw.line for flaw in caught.value.flaws] == [2]


def test_task_types_and_hosting_are_exact(tmp_path: Path) -> None:
    """Amounts keep their digits, and what is left out has its default."""
    path = tmp_path / "c.yaml"
    path.write_text(
        "wicketgate:\n  task_types:\n    summarize: {priority: high, max_tokens: 400,"
        " budget: {usd: 0.02}}\n    extract: {budget: {tokens: 1000, window: day,"
        " on_exhausted: downgrade}}\n"
    )

    assert settings.load(path).task_types == {
        "summarize": TaskType("summarize", "high", 400, TaskBudget("usd", Decimal("0.02"))),
        "extract": TaskType(
            "extract", budget=TaskBudget("tokens", Decimal(1000), "day", "downgrade")
        ),
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{x: 1}", "wicketgate.task_types.x: expected a mapping"),
        ("{x: {priority: top}}", "wicketgate.task_types.x.priority: expected one of high, normal,"),
        ("{x: {max_tokens: 0}}", "wicketgate.task_types.x.max_tokens: expected a whole number"),
        ("{x: {budget: {window: day}}}", "wicketgate.task_types.x.budget: expected one of usd,"),
        ("{x: {budget: {usd: 1, tokens: 1}}}", "wicketgate.task_types.x.budget: expected one of"),
        ("{x: {budget: {usd: -1}}}", "wicketgate.task_types.x.budget.usd: expected a number, 0"),
        (
            "{x: {budget: {usd: 1, window: year}}}",
            "wicketgate.task_types.x.budget.window: ",
        ),
        ("{x: {colour: red}}", "wicketgate.task_types.x.colour: unknown setting"),
        ("{'a b': {}}", "wicketgate.task_types.a b: a label has up to 64 letters"),
    ],
)
def test_a_task_type_that_cannot_be_meant(tmp_path: Path, text: str, told: str) -> None:
    """Each flaw is told at its place."""
    path = tmp_path / "c.yaml"
    path.write_text(f"wicketgate: {{task_types: {text}}}\n")

    with pytest.raises(settings.SettingsError) as caught:
        settings.load(path)

    assert str(caught.value).startswith(told)
