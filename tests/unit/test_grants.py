"""Grants: three sets, and all three must match."""

from __future__ import annotations

import pytest

from plugins.policy.grants import (
    DataClass,
    Deployment,
    Dimension,
    Grants,
    label_matches,
    model_matches,
    pattern_problem,
)

GRANTED = Grants(frozenset({"local/*", "cloud-eu"}), frozenset({"a"}), frozenset({"eu"}))


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("local/a", True),
        ("cloud-eu", True),
        ("localx/big", False),
        ("local", False),
        ("local/", False),
        ("cloud-eu-large", False),
        ("cloud-us", False),
        ("cloud-us/local/a", False),
        ("*", False),
        ("", False),
    ],
)
def test_case_o_23(name: str, allowed: bool) -> None:
    """`local/*` and `cloud-eu` grant just what they say, never what merely begins alike."""
    assert GRANTED.allows_model(name) is allowed


@pytest.mark.parametrize("name", ["local/../cloud-us", "local/*"])
def test_case_o_23_names_below_a_granted_prefix(name: str) -> None:
    """These lie under `local/`, and name no deployment: nothing resolves them to another."""
    configured = [
        Deployment(model, model, "a", "eu")
        for model in ("local/a", "localx/big", "cloud-eu", "cloud-eu-large", "cloud-us")
    ]
    allowed = GRANTED.allowed(configured, DataClass.ANY)

    assert [deployment.model for deployment in allowed] == ["local/a", "cloud-eu"]
    assert name not in {deployment.model for deployment in configured}


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        pytest.param("gpt", "gpt", True, id="exact"),
        pytest.param("gpt", "GPT", False, id="letters-count-as-written"),
        pytest.param("gpt", "gpt ", False, id="spaces-count"),
        pytest.param("é", "e\u0301", False, id="accents-count-as-written"),
        pytest.param("a/*", "a/b/c", True, id="prefix-takes-deeper-names"),
        pytest.param("a/b/*", "a/c", False, id="prefix-of-two-parts"),
        pytest.param("a*", "ab", False, id="a-star-elsewhere-is-a-star"),
        pytest.param("*", "anything", False, id="no-pattern-grants-everything"),
        pytest.param("", "", False, id="nothing-matches-nothing"),
        pytest.param("/*", "/a", True, id="empty-prefix-still-needs-its-slash"),
        pytest.param("/*", "a", False, id="empty-prefix-is-not-everything"),
    ],
)
def test_model_matches(pattern: str, name: str, matches: bool) -> None:
    """A pattern is an exact name or `prefix/*`."""
    assert model_matches(pattern, name) is matches


@pytest.mark.parametrize(
    ("granted", "label", "matches"),
    [
        pytest.param({"eu"}, "eu", True, id="exact"),
        pytest.param({"eu"}, "EU", False, id="letters-count-as-written"),
        pytest.param({"eu"}, "eu-west", False, id="not-a-prefix"),
        pytest.param({"*"}, "us", True, id="star"),
        pytest.param({"*"}, "", False, id="star-never-grants-unlabelled"),
        pytest.param({""}, "", False, id="empty-grant-never-grants-unlabelled"),
        pytest.param(set(), "eu", False, id="empty-set"),
    ],
)
def test_label_matches(granted: set[str], label: str, matches: bool) -> None:
    """A label is granted by name or by `*`; a missing one never is."""
    assert label_matches(frozenset(granted), label) is matches


@pytest.mark.parametrize(
    ("deployment", "data_class", "reason"),
    [
        pytest.param(("cloud-eu", "a", "eu", False), "any", None, id="all-three-match"),
        pytest.param(("cloud-us", "b", "us", False), "any", "model", id="model-first"),
        pytest.param(("cloud-eu", "b", "us", False), "any", "provider", id="provider-next"),
        pytest.param(("cloud-eu", "a", "us", False), "any", "region", id="region"),
        pytest.param(("cloud-eu", "", "eu", False), "any", "provider", id="no-provider-label"),
        pytest.param(("cloud-eu", "a", "", False), "any", "region", id="no-region-label"),
        pytest.param(("cloud-eu", "a", "eu", False), "local-only", "data_class", id="not-local"),
        pytest.param(("local/a", "a", "eu", True), "local-only", None, id="local"),
        pytest.param(("local/a", "a", "us", True), "local-only", "region", id="only-tightens"),
    ],
)
def test_turned_away(
    deployment: tuple[str, str, str, bool], data_class: str, reason: str | None
) -> None:
    """The first set that does not match is the reason."""
    model, provider, region, local = deployment
    candidate = Deployment("id", model, provider, region, local)

    assert GRANTED.turned_away(candidate, DataClass(data_class)) == reason


def test_a_tenant_without_grants_reaches_nothing() -> None:
    """Empty sets match nothing, not everything."""
    assert Grants().allowed([Deployment("id", "m", "p", "r")], DataClass.ANY) == []


@pytest.mark.parametrize(
    ("dimension", "pattern", "problem"),
    [
        ("model", "gpt", None),
        ("model", "a/b/*", None),
        ("model", "*", "not a model name or a 'prefix/*' pattern"),
        ("model", "/*", "not a model name or a 'prefix/*' pattern"),
        ("model", "a*b", "not a model name or a 'prefix/*' pattern"),
        ("model", "a*/*", "not a model name or a 'prefix/*' pattern"),
        ("model", "", "not a model name or a 'prefix/*' pattern"),
        ("provider", "*", None),
        ("provider", "llama.cpp", None),
        ("model", "a,b", "not a model name or a 'prefix/*' pattern"),
        ("model", " a", "not a model name or a 'prefix/*' pattern"),
        ("model", "a b/*", "not a model name or a 'prefix/*' pattern"),
        ("model", "größe/东京", None),
        ("provider", "a" * 64, None),
        ("provider", "a" * 65, "not a label"),
        ("provider", "llama*", "not a label"),
        ("region", "", "not a label"),
        ("region", "onprem,eu", "not a label"),
        ("region", "eu\n", "not a label"),
        ("region", "-eu", "not a label"),
        ("region", "ü", "not a label"),
    ],
)
def test_pattern_problem(dimension: str, pattern: str, problem: str | None) -> None:
    """A pattern that could not mean what it says is refused when it is typed."""
    assert pattern_problem(Dimension(dimension), pattern) == problem
