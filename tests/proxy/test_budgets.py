"""Nothing over budget reaches a provider, and every attempt has one row with what it cost."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import httpx
import pytest

from plugins import seam
from tests.fakes.script import Fault, Script, answers, breaks, fails
from tests.proxy.calls import chat, completion, embedding, messages, refused, response
from tests.proxy.launch import eventually

CENT = Decimal("0.01")


def test_a_call_is_held_and_settled(p, providers, new_tenant, treasury):
    """The row has the provider's figures, the budget what they cost, and the header the rest."""
    acme = new_tenant("acme", models=["cloud-eu"])
    budget = treasury.budget(acme, "1.00")
    providers.a.always(answers(1000, 500))

    answer = p.post("/v1/chat/completions", acme.key, chat("cloud-eu", max_tokens=500))

    assert answer.status_code == 200
    (row,) = treasury.rows(acme, 1)
    assert row["cost_usd"] == Decimal("0.006")
    assert (row["prompt_tokens"], row["completion_tokens"]) == (1000, 500)
    assert (row["status"], row["usage_source"]) == ("ok", "provider")
    assert str(row["request_id"]) == answer.headers["x-wg-request-id"]
    assert treasury.standing(budget) == (Decimal("0.006"), 0)
    assert answer.headers["x-wg-adjusted"] == "none"
    assert answer.headers["x-wg-budget-remaining-usd"] == "0.994"
    assert providers.a.journal[0].body["max_tokens"] == 500


ROADS = [
    pytest.param("/v1/chat/completions", chat, "cloud-eu", id="chat"),
    pytest.param("/v1/completions", completion, "cloud-eu", id="completions"),
    pytest.param("/v1/responses", response, "cloud-eu", id="responses"),
    pytest.param("/v1/messages", messages, "cloud-eu", id="messages-bridged"),
    pytest.param("/v1/messages", messages, "claude-eu", id="messages"),
    pytest.param("/v1/chat/completions", chat, "claude-eu", id="chat-anthropic"),
    pytest.param("/v1/responses", response, "claude-eu", id="responses-bridged"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(("path", "make", "model"), ROADS)
def test_every_road_has_one_row(p, providers, new_tenant, treasury, path, make, model, stream):
    """Each path is held, capped and settled once, streamed or not."""
    acme = new_tenant("acme", models=[model])
    budget = treasury.budget(acme, "1.00")
    providers.a.always(answers(15, 100))

    answer = p.post(path, acme.key, make(model, **({"stream": True} if stream else {})))

    assert answer.status_code == 200, answer.text
    (row,) = treasury.rows(acme, 1)
    assert (row["status"], row["usage_source"]) == ("ok", "provider")
    assert (row["prompt_tokens"], row["completion_tokens"]) == (15, 100)
    assert row["cost_usd"] == Decimal("0.00083")
    assert treasury.standing(budget) == (Decimal("0.00083"), 0)
    sent = providers.a.journal[0].body
    caps = [v for n, v in sent.items() if n.startswith("max_") and n.endswith("tokens")]
    assert caps == [50]


def test_embeddings(p, providers, new_tenant, treasury):
    """An embedding has a prompt and no output; no cap goes upstream."""
    acme = new_tenant("acme", models=["embed"])
    budget = treasury.budget(acme, "1.00")
    providers.a.always(answers(100, 0))

    assert p.post("/v1/embeddings", acme.key, embedding("embed")).status_code == 200

    (row,) = treasury.rows(acme, 1)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (100, 0)
    assert treasury.standing(budget) == (Decimal("0.0001"), 0)
    assert not [name for name in providers.a.journal[0].body if name.startswith("max_")]


def test_twenty_at_once_through_room_for_five(p, providers, new_tenant, treasury):
    """O-01: five are served, fifteen refused, and the provider saw five."""
    acme = new_tenant("acme", models=["out-only"])
    budget = treasury.budget(acme, "0.05")
    providers.a.always(Script(hold=True, usage=(7, 500)))

    with ThreadPoolExecutor(20) as pool:
        calls = [
            pool.submit(p.post, "/v1/chat/completions", acme.key, chat("out-only", max_tokens=1000))
            for _ in range(20)
        ]
        eventually(lambda: sum(c.done() for c in calls) == 15)
        assert treasury.standing(budget) == (0, Decimal("0.05"))
        providers.a.release()
        answers_ = [call.result() for call in calls]

    assert sorted(a.status_code for a in answers_) == [200] * 5 + [429] * 15
    error = next(a for a in answers_ if a.status_code == 429)
    refused(error, 429, "budget_exceeded")
    assert error.headers["x-should-retry"] == "false"
    assert int(error.headers["retry-after"]) <= 86_400
    assert len(providers.a.journal) == 5
    assert [row["cost_usd"] for row in treasury.rows(acme, 5)] == [Decimal("0.005")] * 5
    assert treasury.standing(budget) == (Decimal("0.025"), 0)


def test_what_is_left_shrinks_the_cap(p, providers, new_tenant, treasury):
    """The cap goes down to what is left, is sent so, and the answer says it was clamped."""
    acme = new_tenant("acme", models=["out-only"])
    treasury.budget(acme, "0.002")

    answer = p.post("/v1/chat/completions", acme.key, chat("out-only", max_tokens=1000))

    assert answer.status_code == 200
    assert answer.headers["x-wg-adjusted"] == "clamped"
    assert providers.a.journal[0].body["max_tokens"] == 200


@pytest.mark.parametrize("window", ["day", "week", "month", "total"])
def test_what_could_never_fit(p, providers, new_tenant, treasury, window):
    """A call whose shortest answer passes the whole limit is the caller's to shorten."""
    acme = new_tenant("acme", models=["out-only"])
    treasury.budget(acme, "0.0001", window=window)

    answer = p.post("/v1/chat/completions", acme.key, chat("out-only"))

    refused(answer, 400, "request_too_large")
    assert providers.seen()["A"] == 0


def test_no_cap_holds_the_deployments_own_maximum(p, providers, new_tenant, treasury):
    """O-04: without a cap the model's maximum is held and sent; an absurd one is cut to it."""
    acme = new_tenant("acme", models=["out-only"])
    budget = treasury.budget(acme, "1.00")
    providers.a.always(Script(hold=True, usage=(7, 100)))
    body = chat("out-only")
    del body["max_tokens"]

    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(p.post, "/v1/chat/completions", acme.key, body) for _ in range(2)]
        eventually(lambda: len(providers.a.journal) == 2)
        assert treasury.standing(budget) == (0, Decimal("0.08192"))
        providers.a.release()
        assert [call.result().status_code for call in calls] == [200, 200]

    assert [seen.body["max_tokens"] for seen in providers.a.journal] == [4096, 4096]
    treasury.rows(acme, 2)
    assert treasury.standing(budget) == (Decimal("0.002"), 0)
    providers.reset()
    huge = p.post("/v1/chat/completions", acme.key, chat("out-only", max_tokens=999_999_999))
    assert huge.headers["x-wg-adjusted"] == "clamped"
    assert providers.a.journal[0].body["max_tokens"] == 4096


def test_a_client_that_leaves_before_the_first_byte(p, providers, new_tenant, treasury):
    """O-03: its hold goes back, the provider's connection is closed, and the next is served."""
    acme = new_tenant("acme", models=["out-only"])
    budget = treasury.budget(acme, "0.05")
    providers.a.script(*[Script(hold=True)] * 5)
    body = chat("out-only", max_tokens=1000, stream=True)

    def leave() -> None:
        with pytest.raises(Exception, match="timed out"):
            p.client.post(
                "/v1/chat/completions",
                json=body,
                headers={"Authorization": f"Bearer {acme.key}"},
                timeout=2.5,
            )

    with ThreadPoolExecutor(5) as pool:
        for call in [pool.submit(leave) for _ in range(5)]:
            call.result()
    rows = treasury.rows(acme, 5)

    assert treasury.standing(budget) == (0, 0)
    assert [(row["status"], row["cost_usd"]) for row in rows] == [("cancelled", 0)] * 5
    eventually(lambda: providers.a.abandoned == 5)
    providers.a.always(answers(7, 300))
    assert p.post("/v1/chat/completions", acme.key, chat("out-only", max_tokens=1000)).is_success
    assert treasury.rows(acme, 6)[-1]["cost_usd"] == Decimal("0.003")


def test_a_client_that_leaves_in_the_middle(p, providers, new_tenant, treasury):
    """O-13: the row says partial and estimated, with the words that had come."""
    acme = new_tenant("acme", models=["cloud-eu"])
    budget = treasury.budget(acme, "1.00")
    providers.a.always(Script(words=100, usage=(15, 100), pause=0.05))
    body = chat("cloud-eu", max_tokens=200, stream=True)

    with p.client.stream(
        "POST", "/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {acme.key}"}
    ) as answer:
        for number, _ in enumerate(answer.iter_lines()):
            if number == 80:
                break

    (row,) = treasury.rows(acme, 1)
    assert (row["status"], row["usage_source"]) == ("partial", "estimated")
    assert 38 <= row["completion_tokens"] <= 200
    assert row["prompt_tokens"] > 0
    assert treasury.standing(budget) == (row["cost_usd"], 0)
    eventually(lambda: providers.a.abandoned == 1)


def test_a_failed_attempt_and_the_retry_have_a_row_each(p, providers, new_tenant, treasury):
    """A provider that answers with an error charges nothing; the next attempt is paid."""
    acme = new_tenant("acme", models=["cloud-eu"])
    budget = treasury.budget(acme, "1.00")
    providers.a.script(fails(500), answers(1000, 100))

    answer = p.post("/v1/chat/completions", acme.key, chat("cloud-eu", max_tokens=500))

    assert answer.status_code == 200
    first, second = treasury.rows(acme, 2)
    assert (first["status"], first["cost_usd"], first["usage_source"]) == ("failed", 0, "none")
    assert (second["status"], second["cost_usd"]) == ("ok", Decimal("0.0028"))
    assert first["request_id"] == second["request_id"]
    assert treasury.standing(budget) == (Decimal("0.0028"), 0)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(
    "fault",
    [Fault.HANGS_UP, Fault.NOT_JSON, Fault.NO_CHUNK, Fault.ERROR_EVENT],
    ids=lambda f: f.name,
)
def test_a_broken_answer_leaves_nothing_held(p, providers, new_tenant, treasury, fault, stream):
    """However an answer breaks, each attempt has one row and nothing stays held."""
    acme = new_tenant("acme", models=["cloud-eu"], regions=["eu"])
    budget = treasury.budget(acme, "1.00")
    providers.a.always(breaks(fault))

    p.post("/v1/chat/completions", acme.key, chat("cloud-eu", stream=stream))

    rows = treasury.rows(acme, len(providers.a.journal))
    assert len(rows) == len(providers.a.journal)
    used, held = treasury.standing(budget)
    assert (used, held) == (sum(row["cost_usd"] for row in rows), 0)


def test_a_cut_stream_is_estimated(p, providers, new_tenant, treasury):
    """A stream that breaks off after some words is partial, at what had come."""
    acme = new_tenant("acme", models=["cloud-eu"], regions=["eu"])
    treasury.budget(acme, "1.00")
    providers.a.always(Script(words=20, cut_after=10))

    p.post("/v1/chat/completions", acme.key, chat("cloud-eu", stream=True))

    (row,) = treasury.rows(acme, 1)
    assert (row["status"], row["usage_source"]) == ("partial", "estimated")
    assert row["completion_tokens"] >= 10


def test_a_tenant_without_a_budget_has_rows_too(p, providers, new_tenant, treasury):
    """Unlimited is not unrecorded, and no header speaks of a budget."""
    acme = new_tenant("acme", models=["cloud-eu"])

    answer = p.post("/v1/chat/completions", acme.key, chat("cloud-eu"))

    assert "x-wg-budget-remaining-usd" not in answer.headers
    (row,) = treasury.rows(acme, 1)
    assert row["cost_usd"] == Decimal("0.00018")


def test_a_request_caps_its_own_cost(p, providers, new_tenant, treasury):
    """`x-max-cost-usd` shrinks the cap, refuses what cannot fit, and must be an amount."""
    acme = new_tenant("acme", models=["out-only"])
    headers = {"x-max-cost-usd": "0.002"}

    answer = p.post(
        "/v1/chat/completions", acme.key, chat("out-only", max_tokens=1000), headers=headers
    )

    assert answer.status_code == 200
    assert providers.a.journal[0].body["max_tokens"] == 200
    for text, status, code in (
        ("0.0001", 429, "budget_exceeded"),
        ("much", 400, "invalid_request_error"),
    ):
        refusal = p.post(
            "/v1/chat/completions", acme.key, chat("out-only"), headers={"x-max-cost-usd": text}
        )
        refused(refusal, status, code)


@pytest.mark.parametrize(
    ("path", "make", "stream"),
    [
        pytest.param("/v1/chat/completions", chat, False, id="chat"),
        pytest.param("/v1/chat/completions", chat, True, id="chat-stream"),
        pytest.param("/v1/completions", completion, False, id="completions"),
        pytest.param("/v1/completions", completion, True, id="completions-stream"),
        pytest.param("/v1/messages", messages, False, id="messages-bridged"),
        pytest.param("/v1/messages", messages, True, id="messages-bridged-stream"),
        pytest.param("/v1/responses", response, True, id="responses-stream"),
    ],
)
def test_an_answer_without_usage_is_estimated(
    p, providers, new_tenant, treasury, path, make, stream
):
    """O-11 S4: what the provider does not tell is estimated from the words, and marked so."""
    acme = new_tenant("acme", models=["cloud-eu"], regions=["eu"])
    budget = treasury.budget(acme, "1.00")
    providers.a.always(Script(words=34, usage=None))

    answer = p.post(path, acme.key, make("cloud-eu", stream=stream))

    assert answer.status_code == 200
    (row,) = treasury.rows(acme, 1)
    assert (row["status"], row["usage_source"], row["usage_flag"]) == (
        "ok",
        "estimated",
        "no_usage, prompt_bound",
    )
    assert row["completion_tokens"] >= 34
    assert row["prompt_tokens"] > 0
    assert treasury.standing(budget) == (row["cost_usd"], 0)


def test_a_key_sees_its_own_standing(p, providers, new_tenant, office, treasury):
    """`/v1/me` tells grants, budgets and today's spend of the key's tenant, nothing of others."""
    acme = new_tenant("acme", models=["cloud-eu"], regions=["eu"])
    other = new_tenant("other", models=["cloud-us"])
    treasury.budget(acme, "1.50")
    treasury.budget(other, "9.75")
    providers.a.always(answers(1000, 500))
    p.post("/v1/chat/completions", acme.key, chat("cloud-eu", max_tokens=500))
    treasury.rows(acme, 1)

    answer = p.get("/v1/me", acme.key)

    assert answer.status_code == 200
    told = answer.json()
    assert told["tenant"] == acme.name
    assert told["grants"] == {"models": ["cloud-eu"], "providers": ["*"], "regions": ["eu"]}
    (budget,) = told["budgets"]
    assert (budget["limit"], budget["used"], budget["held"]) == ("1.5", "0.006", "0")
    assert budget["remaining"] == "1.494"
    assert told["today"]["cost_usd"] == "0.006"
    assert told["today"]["requests"] == 1
    assert other.name not in answer.text
    assert "9.75" not in answer.text
    refused(p.get("/v1/me", "sk-wg-unknown"), 401, "invalid_api_key")


def test_an_exhausted_budget_may_send_a_call_on(p, providers, new_tenant, treasury):
    """With `downgrade` the cheaper fallback answers, and the answer says so; else it is refused."""
    for manner, status in (("downgrade", 200), ("refuse", 429)):
        acme = new_tenant("acme", models=["dear", "cheap"])
        treasury.spent(treasury.budget(acme, "0.02", on_exhausted=manner), "0.019")
        providers.reset()

        answer = p.post("/v1/chat/completions", acme.key, chat("dear"))

        assert answer.status_code == status, answer.text
        if manner == "downgrade":
            assert answer.headers["x-wg-adjusted"] == "downgraded"
            assert answer.headers["x-wg-model"] == "cheap"
            assert providers.seen() == {"A": 1, "B": 0, "L": 0}


def test_a_money_budget_needs_prices(p, providers, new_tenant, treasury):
    """O-07: without a price the call is refused under a money budget, and has no cost without."""
    acme = new_tenant("acme", models=["no-price"])
    free = new_tenant("free", models=["no-price"])
    treasury.budget(acme, "1.00")

    refused(p.post("/v1/chat/completions", acme.key, chat("no-price")), 503, "price_missing")
    assert providers.seen()["A"] == 0
    assert p.post("/v1/chat/completions", free.key, chat("no-price")).status_code == 200
    (row,) = treasury.rows(free, 1)
    assert row["cost_usd"] is None


@pytest.mark.parametrize(
    ("used", "expected"),
    [("broke", (200, 429, 429)), ("zero", (200, 429, 429)), ("open", (200, 200, 200))],
)
def test_zero_is_a_price_and_a_limit(p, providers, new_tenant, treasury, used, expected):
    """O-08: what costs nothing is served when nothing is left; no budget is no limit."""
    acme = new_tenant("acme", models=["local-a", "cloud-eu", "out-only"])
    if used != "open":
        budget = treasury.budget(acme, "1.00" if used == "broke" else "0")
        if used == "broke":
            treasury.spent(budget, "1")

    got = tuple(
        p.post("/v1/chat/completions", acme.key, chat(model)).status_code
        for model in ("local-a", "cloud-eu", "out-only")
    )

    assert got == expected


def test_chinese_is_not_counted_by_its_letters(p, providers, new_tenant, treasury):
    """O-16: the bound holds for a prompt of 1,200 bytes; the limit is never passed."""
    acme = new_tenant("acme", models=["out-only"])
    budget = treasury.budget(acme, "1300", unit="tokens")
    providers.a.always(answers(400, 50))
    body = chat("out-only", max_tokens=50)
    body["messages"][0]["content"] = "\u4f60\u597d\u4e16\u754c" * 100

    statuses = [p.post("/v1/chat/completions", acme.key, body).status_code for _ in range(4)]

    assert statuses[0] == 200
    assert statuses.count(200) in {1, 2}
    assert treasury.standing(budget)[0] <= 1300


def test_the_official_client_does_not_retry_a_budget_refusal(p, providers, new_tenant, treasury):
    """O-24, D1: one request reaches the gateway, and none the provider."""
    import openai

    acme = new_tenant("acme", models=["out-only"])
    treasury.spent(treasury.budget(acme, "0.001"), "0.001")
    sent = []
    with httpx.Client(
        event_hooks={"request": [lambda request: sent.append(request.url.path)]}
    ) as c:
        client = openai.OpenAI(base_url=f"{p.url}/v1", api_key=acme.key, http_client=c)
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(**chat("out-only"))

    assert sent == ["/v1/chat/completions"]
    assert providers.seen()["A"] == 0


def test_a_task_opens_with_its_first_call_and_ends_with_its_last(
    p, providers, new_tenant, treasury
):
    """The task gathers what its calls cost; the header on the last one ends it."""
    acme = new_tenant("acme", models=["cloud-eu"])
    providers.a.always(answers(1000, 500))
    work = {"x-task-id": "run-7", "x-task-type": "summarize"}
    body = chat("cloud-eu", max_tokens=500)

    p.post("/v1/chat/completions", acme.key, body, headers=work)
    p.post("/v1/chat/completions", acme.key, body, headers={**work, "x-task-outcome": "finished"})

    treasury.rows(acme, 2)

    def task():
        (row,) = treasury.ask(
            "SELECT k.* FROM wicketgate.tasks k JOIN wicketgate.tenants t ON t.id = k.tenant_id"
            " WHERE t.name = %s",
            acme.name,
        )
        return row

    eventually(lambda: task()["state"] == "finished")
    assert (task()["name"], task()["task_type"]) == ("run-7", "summarize")
    assert (task()["requests"], task()["cost_usd"]) == (2, Decimal("0.012"))
    wrong = p.post(
        "/v1/chat/completions", acme.key, body, headers={**work, "x-task-outcome": "perhaps"}
    )
    refused(wrong, 400, "invalid_request_error")


@pytest.mark.parametrize("options", [None, {"include_usage": False}, {"include_usage": True}])
@pytest.mark.parametrize(
    ("path", "make", "model"),
    [
        ("/v1/chat/completions", chat, "cloud-eu"),
        ("/v1/chat/completions", chat, "claude-eu"),
        ("/v1/completions", completion, "cloud-eu"),
    ],
)
def test_usage_is_shown_to_who_asked_for_it(
    p, providers, new_tenant, treasury, path, make, model, options
):
    """O-12: the provider is always asked; the caller sees the extra chunk only on request."""
    acme = new_tenant("acme", models=[model], regions=["eu"])
    providers.a.always(answers(5, 3))
    more = {} if options is None else {"stream_options": options}

    answer = p.post(path, acme.key, make(model, stream=True, **more))

    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    chunks = [json.loads(line) for line in lines if line != "[DONE]"]
    told = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    asked = options == {"include_usage": True}
    assert len(told) == (1 if asked else 0)
    assert lines[-1] == "[DONE]"
    (row,) = treasury.rows(acme, 1)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (5, 3)
    assert row["usage_source"] == "provider"


CACHED = [
    pytest.param(
        {
            "prompt_tokens": 10_000,
            "completion_tokens": 500,
            "total_tokens": 10_500,
            "prompt_tokens_details": {"cached_tokens": 8_000},
        },
        *("0.012", 8_000, None),
        id="U1",
    ),
    pytest.param(
        {
            "prompt_tokens": 51,
            "completion_tokens": 136,
            "total_tokens": 187,
            "completion_tokens_details": {"reasoning_tokens": 31},
        },
        *("0.00119", 0, None),
        id="U3",
    ),
    pytest.param(
        {
            "prompt_tokens": 100,
            "completion_tokens": 10,
            "total_tokens": 110,
            "prompt_tokens_details": {"cached_tokens": 250},
        },
        *("0.00013", 100, "inconsistent"),
        id="U4",
    ),
]


@pytest.mark.parametrize(("usage", "cost", "cached", "flag"), CACHED)
def test_cached_and_reasoning_tokens_cost_once(
    p, providers, new_tenant, treasury, usage, cost, cached, flag
):
    """O-26: they are part of the prompt and the output, and never added again."""
    acme = new_tenant("acme", models=["cached"], regions=["eu"])
    message = {"role": "assistant", "content": "yes"}
    document = {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "x",
        "usage": usage,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    providers.a.always(Script(whole=document))

    p.post("/v1/chat/completions", acme.key, chat("cached"))

    (row,) = treasury.rows(acme, 1)
    assert (row["cost_usd"], row["cached_tokens"]) == (Decimal(cost), cached)
    assert row["usage_flag"] in {flag, "over_cap"}


TEXT = "Wie viele Wörter hat dieser Satz? 这句话有多少个字? 👋 " * 20


@pytest.mark.parametrize(
    ("short", "cap", "adjusted"), [(0, 200, "none"), (1, 199, "clamped")], ids=["fits", "one-less"]
)
def test_a_prompt_is_counted_as_its_model_reads_it(
    p, providers, new_tenant, treasury, short, cap, adjusted
):
    """A budget with room for exactly the counted prompt and the cap is used to the last token."""
    encoding = seam.encoding("o200k_base")
    prompt = len(encoding.encode(TEXT)) + len(encoding.encode("user")) + 6
    acme = new_tenant("acme", models=["counted"])
    budget = treasury.budget(acme, str(prompt + 200 - short), unit="tokens")
    providers.a.always(answers(prompt, cap))
    body = chat("counted", max_tokens=200, messages=[{"role": "user", "content": TEXT}])

    answer = p.post("/v1/chat/completions", acme.key, body)

    assert answer.status_code == 200, answer.text
    assert answer.headers["x-wg-adjusted"] == adjusted
    assert providers.a.journal[0].body["max_tokens"] == cap
    (row,) = treasury.rows(acme, 1)
    assert row["usage_flag"] is None
    assert treasury.standing(budget) == (prompt + cap, 0)


def test_a_count_that_the_provider_exceeds_is_flagged(p, providers, new_tenant, treasury):
    """The provider's figure is what counts; that it was not foreseen stands in the row."""
    acme = new_tenant("acme", models=["counted"])
    providers.a.always(answers(5000, 1))

    p.post("/v1/chat/completions", acme.key, chat("counted", max_tokens=20))

    (row,) = treasury.rows(acme, 1)
    assert (row["prompt_tokens"], row["usage_flag"]) == (5000, "over_count")
