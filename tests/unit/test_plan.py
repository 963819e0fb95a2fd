"""Who may serve a call."""

from __future__ import annotations

import pytest

from plugins.policy.call import Call
from plugins.policy.grants import DataClass, Deployment, Grants
from plugins.policy.plan import Catalog, Plan, make_plan
from plugins.policy.refusal import Refusal

EU = Deployment("eu-1", "chat", "a", "eu")
US = Deployment("us-1", "chat", "b", "us")
BARE = Deployment("bare-1", "chat", "b", "")
BACKUP = Deployment("backup-1", "backup", "b", "us")
LOCAL = Deployment("local-1", "backup", "llama.cpp", "onprem", local=True)

CATALOG = Catalog(
    groups={"chat": (EU, US, BARE), "backup": (BACKUP, LOCAL)},
    fallbacks={"chat": ("backup", "gone")},
    context={"eu-1": 100, "us-1": 1000},
)
ANYWHERE = frozenset({"*"})


def grants(
    *models: str, providers: set[str] | None = None, regions: set[str] | None = None
) -> Grants:
    return Grants(
        frozenset(models),
        ANYWHERE if providers is None else frozenset(providers),
        ANYWHERE if regions is None else frozenset(regions),
    )


def everywhere(tokens: int) -> dict[str, int]:
    return dict.fromkeys(CATALOG.context, tokens)


@pytest.mark.parametrize(
    ("allowed", "models", "deployments"),
    [
        pytest.param(grants("chat"), ("chat",), {"eu-1", "us-1"}, id="no-label-no-grant"),
        pytest.param(grants("chat", regions={"eu"}), ("chat",), {"eu-1"}, id="one-region"),
        pytest.param(
            grants("chat", "backup"), ("chat", "backup"),
            {"eu-1", "us-1", "backup-1", "local-1"}, id="granted-fallback",
        ),
        pytest.param(
            grants("chat", "backup", regions={"eu"}), ("chat",), {"eu-1"},
            id="fallback-in-another-region",
        ),
        pytest.param(
            grants("chat", "backup", providers={"a", "llama.cpp"}), ("chat", "backup"),
            {"eu-1", "local-1"}, id="providers-narrow-each-group",
        ),
    ],
)  # fmt: skip
def test_only_granted_deployments_take_part(
    allowed: Grants, models: tuple[str, ...], deployments: set[str]
) -> None:
    """Model, provider and region must all match, in the fallbacks too."""
    plan = make_plan(Call("chat"), allowed, CATALOG)

    assert plan == Plan(models, frozenset(deployments))


@pytest.mark.parametrize(
    ("call", "allowed", "code"),
    [
        pytest.param(Call("chat"), Grants(), "model_not_allowed", id="nothing-granted"),
        pytest.param(Call("nothing"), grants("nothing"), "model_not_allowed", id="no-such-model"),
        pytest.param(Call("backup"), grants("chat"), "model_not_allowed", id="another-model"),
        pytest.param(
            Call("chat"), grants("chat", regions={"mars"}), "region_not_allowed", id="no-region"
        ),
        pytest.param(
            Call("chat"), grants("chat", providers=set()), "region_not_allowed", id="no-provider"
        ),
        pytest.param(
            Call("chat", data_class=DataClass.LOCAL_ONLY), grants("chat"), "region_not_allowed",
            id="no-local-engine",
        ),
    ],
)  # fmt: skip
def test_nobody_may_serve(call: Call, allowed: Grants, code: str) -> None:
    """A refusal says which wall it was, and no more than that."""
    refusal = make_plan(call, allowed, CATALOG)

    assert isinstance(refusal, Refusal)
    assert refusal.code == code


def test_a_model_that_is_not_granted_looks_like_one_that_does_not_exist() -> None:
    """Nobody learns from an answer which models others use."""
    hidden = make_plan(Call("backup"), grants("chat"), CATALOG)

    assert hidden == make_plan(Call("nothing"), grants("chat"), CATALOG)


def test_local_only_keeps_the_local_engines() -> None:
    """A call may tighten what its tenant was granted."""
    call = Call("backup", data_class=DataClass.LOCAL_ONLY)

    assert make_plan(call, grants("backup"), CATALOG) == Plan(("backup",), frozenset({"local-1"}))


@pytest.mark.parametrize(
    ("prompt_tokens", "models", "deployments"),
    [
        pytest.param(100, ("chat",), {"eu-1", "us-1"}, id="exactly-the-context-fits"),
        pytest.param(101, ("chat",), {"us-1"}, id="one-token-over-the-smaller"),
    ],
)
def test_a_long_prompt_leaves_out_what_it_does_not_fit(
    prompt_tokens: int, models: tuple[str, ...], deployments: set[str]
) -> None:
    """A deployment with too short a context is not tried."""
    plan = make_plan(Call("chat"), grants("chat"), CATALOG, everywhere(prompt_tokens))

    assert plan == Plan(models, frozenset(deployments))


def test_a_prompt_longer_than_every_context_is_refused() -> None:
    """Nothing is sent that cannot be answered."""
    refusal = make_plan(Call("chat"), grants("chat"), CATALOG, everywhere(1001))

    assert isinstance(refusal, Refusal)
    assert refusal.code == "context_length_exceeded"


def test_a_granted_fallback_with_room_takes_a_long_prompt() -> None:
    """The group asked for drops out; the next one leads."""
    plan = make_plan(Call("chat"), grants("chat", "backup"), CATALOG, everywhere(1001))

    assert plan == Plan(("backup",), frozenset({"backup-1", "local-1"}))
