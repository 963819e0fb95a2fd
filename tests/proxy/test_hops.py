"""Residency at every hop: what a tenant was not granted is in nobody's journal.

Cases O-17 and O-18. A is in the EU, B in the US, L on our own ground.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fakes.script import Fault, Script, answers, breaks, fails
from tests.proxy.calls import MARKER, chat, messages, refused
from tests.proxy.models import NOTHING

EVERY_MODEL = [
    *(
        "cloud-eu",
        "cloud-us",
        "chat",
        "trio",
        "pair",
        "frail",
        "claude-eu",
        "claude-us",
        "cloud-eu-large",
    ),
    *("local-a", "local/*", "localx/*", "embed", "out-only"),
]
OPENAI, ANTHROPIC = "/v1/chat/completions", "/v1/messages"
CONTEXT_OVERFLOW = {
    "error": {
        "message": "This model's maximum context length is 32000 tokens.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
}
CONTENT_POLICY = {
    "error": {
        "message": "Your request was rejected as a result of our safety system.",
        "type": "invalid_request_error",
        "param": None,
        "code": "content_policy_violation",
    }
}


@pytest.fixture(name="european", scope="module")
def _european(new_tenant):
    """Granted every name, but only one region: just the region stands in the way."""
    return new_tenant("klinik", models=EVERY_MODEL, regions=["eu"])


@pytest.fixture(name="homebody", scope="module")
def _homebody(new_tenant):
    """Granted every name, but only our own machines."""
    return new_tenant("homebody", models=EVERY_MODEL, regions=["onprem"])


@pytest.fixture(name="free", scope="module")
def _free(new_tenant):
    return new_tenant("free", models=EVERY_MODEL)


@pytest.mark.parametrize("path", [OPENAI, ANTHROPIC])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_first_try(p, providers, european, homebody, path, stream):
    """A model whose every deployment lies elsewhere is refused before anything is sent."""
    for tenant, model in (
        (european, "cloud-us"),
        (european, "claude-us"),
        (european, "localx/big"),
        (european, "local-a"),
        (homebody, "cloud-eu"),
        (homebody, "cloud-us"),
        (homebody, "claude-eu"),
        (homebody, "chat"),
    ):
        refused(p.post(path, tenant.key, chat(model, stream=stream)), 403, "region_not_allowed")

    assert providers.seen() == NOTHING


FAILURES = [
    pytest.param(fails(500), "upstream_error", id="500"),
    pytest.param(fails(503), "upstream_error", id="503"),
    pytest.param(fails(429), "upstream_rate_limited", id="429"),
    pytest.param(fails(401), "upstream_auth", id="401"),
    pytest.param(fails(403), "upstream_auth", id="403"),
    pytest.param(fails(404), "upstream_error", id="404"),
    pytest.param(fails(400), "invalid_request_error", id="400"),
    pytest.param(
        fails(400, document=CONTEXT_OVERFLOW), "context_length_exceeded", id="context-overflow"
    ),
    pytest.param(fails(400, document=CONTENT_POLICY), "invalid_request_error", id="content-policy"),
    pytest.param(breaks(Fault.HANGS_UP), "upstream_error", id="hangs-up"),
    pytest.param(breaks(Fault.NOT_JSON), "upstream_error", id="half-a-document"),
]
STATUS = {
    "upstream_error": 502,
    "upstream_auth": 502,
    "upstream_rate_limited": 429,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
}


@pytest.mark.parametrize(
    ("path", "model"), [(OPENAI, "cloud-eu"), (ANTHROPIC, "claude-eu"), (OPENAI, "chat")]
)
@pytest.mark.parametrize(("failure", "code"), FAILURES)
def test_a_failing_provider_leads_nowhere_else(p, providers, european, path, model, failure, code):
    """Retries stay where they may be, and no configured fallback leads out of the region."""
    providers.a.always(failure)

    answer = p.post(path, european.key, chat(model))

    error = refused(answer, STATUS[code], code)
    assert providers.a.journal
    assert providers.b.journal == []
    assert "out of order" not in answer.text
    assert "127.0.0.1" not in answer.text
    assert MARKER not in answer.text
    assert "cloud-us" not in error["message"]


@pytest.mark.parametrize(
    ("path", "model"), [(OPENAI, "cloud-eu"), (ANTHROPIC, "claude-eu"), (OPENAI, "chat")]
)
@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(fails(500), id="500"),
        pytest.param(fails(429), id="429"),
        pytest.param(breaks(Fault.HANGS_UP), id="hangs-up"),
        pytest.param(breaks(Fault.NO_CHUNK), id="no-chunk"),
        pytest.param(breaks(Fault.ERROR_EVENT), id="error-event"),
    ],
)
def test_a_stream_that_fails_before_its_first_chunk_leads_nowhere_else(
    p, providers, european, path, model, failure
):
    """A stream that never begins is an error, and is not begun again in another region."""
    providers.a.always(failure)

    answer = p.post(path, european.key, chat(model, stream=True))

    assert providers.a.journal
    assert providers.b.journal == []
    assert answer.status_code >= 400 or '"error"' in answer.text
    assert "out of order" not in answer.text
    assert "127.0.0.1" not in answer.text


def test_a_stream_that_breaks_midway_leads_nowhere_else(p, providers, european):
    """Once words have arrived, the rest does not come from another region."""
    providers.a.always(Script(words=5, cut_after=2))

    answer = p.post(OPENAI, european.key, chat("cloud-eu", stream=True))

    assert (answer.status_code, answer.headers["x-wg-region"]) == (200, "eu")
    assert "word1" in answer.text
    assert "word2" not in answer.text
    assert '"upstream_error"' in answer.text
    assert providers.b.journal == []


def test_a_retry_stays_in_the_region(p, providers, european):
    """A second try goes to the same provider, and the answer says that there were two."""
    providers.a.script(fails(500))

    answer = p.post(OPENAI, european.key, chat("cloud-eu"))

    assert answer.status_code == 200
    assert answer.headers["x-wg-attempts"] == "2"
    assert providers.seen() == {"A": 2, "B": 0, "L": 0}


@pytest.mark.parametrize(
    "model",
    [
        "cloud-eu,cloud-us",
        "cloud-eu, cloud-us",
        "cloud-us,cloud-eu",
        "us-1",
        "eu-1",
        "chat-us",
        "openai/raw-us-1",
        "raw-us-1",
        "openai/raw-eu-1",
        "anthropic/raw-claude-2",
        "*",
        "cloud-*",
        "openai/*",
        "local/*",
        "cloud-us/",
        "cloud-us/cloud-eu",
        "cloud-eu ",
        " cloud-us",
        "CLOUD-US",
        "cloud-eu\n",
        "gpt-4o",
        "auto",
        "default",
        "fallback",
        "http://127.0.0.1/v1",
        "ft:cloud-us",
        "bedrock/cloud-us",
        "cloud-us\u200b",
        "模型🚑",
        "e\u0301",
    ],
)
@pytest.mark.parametrize("path", [OPENAI, ANTHROPIC])
def test_only_a_granted_name_opens_anything(p, providers, european, homebody, path, model):
    """Lists, ids, provider names, patterns and other spellings open nothing."""
    for tenant in (european, homebody):
        refused(p.post(path, tenant.key, chat(model)), 403, "model_not_allowed")

    assert providers.seen() == NOTHING


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"],
)
def test_a_model_in_the_query_is_refused(p, providers, european, path):
    """`?model=` would override the model that was checked."""
    for query in ("model=cloud-us", "model=", "a=b&model=cloud-us", "mod%65l=cloud-us"):
        error = refused(
            p.post(f"{path}?{query}", european.key, chat("cloud-eu")), 400, "param_not_allowed"
        )
        assert error["param"] == "model"

    assert providers.seen() == NOTHING


@pytest.mark.parametrize(
    "path",
    [
        "/engines/cloud-us/chat/completions",
        "/engines/cloud-us/completions",
        "/engines/cloud-us/embeddings",
        "/openai/deployments/cloud-us/chat/completions",
        "/v1/messages/count_tokens",
        "/utils/token_counter?call_endpoint=true",
        "/models/cloud-us:generateContent",
        "/v1beta/models/cloud-us:countTokens",
    ],
)
def test_a_model_in_the_path_is_not_served(p, providers, free, path):
    """No path names a model, not even for a tenant that may use it."""
    refused(p.post(path, free.key, chat("cloud-us")), 404, "route_not_served")

    assert providers.seen() == NOTHING


@pytest.mark.parametrize(
    ("path", "body"), [(OPENAI, chat), (ANTHROPIC, messages)], ids=["openai", "anthropic"]
)
def test_local_only_data_stays_on_our_own_ground(p, providers, free, path, body):
    """`x-data-class: local-only` keeps one call of a free tenant on granted local engines."""
    header = {"x-data-class": "local-only"}

    for model in ("cloud-eu", "cloud-us", "chat", "claude-eu"):
        refused(p.post(path, free.key, body(model), headers=header), 403, "region_not_allowed")
    assert providers.seen() == NOTHING
    answer = p.post(path, free.key, body("local-a"), headers=header)

    assert (answer.status_code, answer.headers["x-wg-region"]) == (200, "onprem")
    assert providers.seen() == {"A": 0, "B": 0, "L": 1}


@pytest.mark.parametrize("value", ["any", "LOCAL-ONLY", "public", "", "local-only, any"])
def test_a_data_class_may_only_tighten(p, providers, european, value):
    """Any other value is refused, not ignored: whoever sends one means something by it."""
    header = {"x-data-class": value}

    error = refused(
        p.post(OPENAI, european.key, chat("cloud-eu"), headers=header), 400, "invalid_request_error"
    )

    assert error["param"] == "x-data-class"
    assert providers.seen() == NOTHING


def test_o17_a_fallback_needs_a_grant_of_its_own(p, providers, new_tenant):
    """O-17 (a), (c): the configured fallback serves whoever was granted it, and nobody else."""
    acme = new_tenant("acme", models=["cloud-eu"])
    wide = new_tenant("wide", models=["cloud-eu", "cloud-us"])
    providers.a.always(fails(500))
    providers.b.always(answers(10, 20))

    refused(p.post(OPENAI, acme.key, chat("cloud-eu")), 502, "upstream_error")
    assert providers.b.journal == []
    answer = p.post(OPENAI, wide.key, chat("cloud-eu"))

    assert answer.status_code == 200
    assert answer.headers["x-wg-model"] == "cloud-us"
    assert answer.headers["x-wg-region"] == "us"
    assert answer.headers["x-wg-provider"] == "beta"
    assert answer.json()["usage"]["total_tokens"] == 30
    assert len(providers.b.journal) == 1


def test_o17_a_streamed_fallback_is_named_before_the_first_byte(p, providers, free):
    """The headers of a stream name the deployment that really answers."""
    providers.a.always(fails(500))

    answer = p.post(OPENAI, free.key, chat("cloud-eu", stream=True))

    assert answer.status_code == 200
    assert (answer.headers["x-wg-model"], answer.headers["x-wg-region"]) == ("cloud-us", "us")
    assert "data: [DONE]" in answer.text


def test_o17_an_overlong_prompt_forces_no_fallback(p, providers, new_tenant):
    """O-17 (b): a prompt over every granted context is refused before anything is sent."""
    acme = new_tenant("acme", models=["cloud-eu"])
    body = chat("cloud-eu", messages=[{"role": "user", "content": "word " * 40_000}])

    refused(p.post(OPENAI, acme.key, body), 400, "context_length_exceeded")

    assert providers.seen() == NOTHING


def test_o18_a_mixed_group_serves_from_the_granted_region(p, providers, european):
    """O-18 (a): fifty calls to a group with members in two regions all stay in one."""
    regions = {
        p.post(OPENAI, european.key, chat("chat")).headers.get("x-wg-region") for _ in range(50)
    }

    assert regions == {"eu"}
    assert providers.seen() == {"A": 50, "B": 0, "L": 0}


def test_o18_an_outage_does_not_move_the_data(p, providers, european):
    """O-18 (b): with every EU member failing, the call fails, and passes Retry-After on."""
    providers.a.always(fails(503, retry_after="9"))

    answer = p.post(OPENAI, european.key, chat("trio"))

    refused(answer, 502, "upstream_error")
    assert answer.headers["retry-after"] == "9"
    assert providers.b.journal == []
    assert str(providers.b.port) not in answer.text
    assert str(providers.a.port) not in answer.text


def test_o18_a_free_tenant_is_served_from_the_other_region(p, providers, free):
    """O-18 (d): whoever may use both regions gets an answer, every time."""
    providers.a.always(fails(503, retry_after="9"))

    for _ in range(8):
        answer = p.post(OPENAI, free.key, chat("pair"))
        assert (answer.status_code, answer.headers.get("x-wg-region")) == (200, "us")


def test_repeated_failures_move_no_data(p, providers, european):
    """However often the granted deployment fails, calls stay in their region."""
    providers.a.always(fails(429))

    statuses = [p.post(OPENAI, european.key, chat("frail")).status_code for _ in range(5)]

    assert set(statuses) <= {429, 502}
    assert providers.b.journal == []


def test_a_rate_limit_reaches_the_caller_with_its_wait(p, providers, european):
    """Though another member of the group lies elsewhere, the 429 is what is told."""
    providers.a.always(fails(429, retry_after="7"))

    answer = p.post(OPENAI, european.key, chat("frail"))

    refused(answer, 429, "upstream_rate_limited")
    assert answer.headers["retry-after"] == "7"
    assert providers.b.journal == []


def test_one_tenants_failures_do_not_lock_another_out(p, providers, european, free):
    """A refused region leaves every deployment in service for those who may use it."""
    for _ in range(10):
        refused(p.post(OPENAI, european.key, chat("cloud-us")), 403, "region_not_allowed")

    assert p.post(OPENAI, free.key, chat("cloud-us")).status_code == 200


def test_calls_at_the_same_time_do_not_mix(p, providers, european, free):
    """Whose call it is stays with the call, at any number of calls at once."""
    tenants = {"european": european, "free": free}

    def call(number: int) -> tuple[str, int, str | None]:
        name = ("european", "free")[number % 2]
        body = chat("chat", messages=[{"role": "user", "content": f"from {name}"}])
        if number % 3 == 0:
            body["stream"] = True
        answer = p.post(OPENAI, tenants[name].key, body)
        return name, answer.status_code, answer.headers.get("x-wg-region")

    with ThreadPoolExecutor(16) as pool:
        answers_ = list(pool.map(call, range(96)))

    assert {status for _, status, _ in answers_} == {200}
    assert {region for name, _, region in answers_ if name == "european"} == {"eu"}
    assert {region for name, _, region in answers_ if name == "free"} == {"eu", "us"}
    prompts = {seen.body["messages"][0]["content"] for seen in providers.b.journal}
    assert prompts == {"from free"}
    assert len(providers.a.journal) + len(providers.b.journal) == 96
