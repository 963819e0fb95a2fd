"""The fake providers: what the real clients make of them, and what they note down."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import anthropic
import httpx
import openai
import pytest

from tests.fakes.provider import Provider
from tests.fakes.script import Fault, Script, answers, breaks, fails

YES = [{"role": "user", "content": "Say yes."}]


@pytest.fixture(name="provider")
def _provider() -> Iterator[Provider]:
    with Provider("A") as provider:
        yield provider


@pytest.fixture(name="client")
def _client(provider: Provider) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="k", base_url=f"{provider.url}/v1", max_retries=0) as client:
        yield client


@pytest.fixture(name="claude")
def _claude(provider: Provider) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(api_key="k", base_url=provider.url, max_retries=0) as client:
        yield client


def test_answers_chat_with_the_told_usage(provider, client):
    """A chat answer carries the words and the usage of the script, and is journaled."""
    provider.script(answers(7, 500, words=2))

    answer = client.chat.completions.create(model="m", messages=YES)

    assert answer.choices[0].message.content == "word0 word1"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 500)
    [seen] = provider.journal
    assert (seen.method, seen.path) == ("POST", "/v1/chat/completions")
    assert seen.headers["authorization"] == "Bearer k"
    assert seen.body["messages"] == YES


def test_streams_chat_with_a_usage_chunk_when_asked(client):
    """A chat stream ends in a usage chunk if, and only if, the request asks for one."""
    options = {"include_usage": True}
    with client.chat.completions.create(
        model="m", messages=YES, stream=True, stream_options=options
    ) as stream:
        chunks = list(stream)
    with client.chat.completions.create(model="m", messages=YES, stream=True) as stream:
        plain = list(stream)

    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 30
    assert all(chunk.usage is None for chunk in plain)
    assert "".join(c.choices[0].delta.content or "" for c in plain) == "word0 word1 word2 "


def test_speaks_the_other_openai_routes(client):
    """Completions, embeddings, responses and the model list satisfy the real client."""
    assert client.completions.create(model="m", prompt="x").choices[0].text == "word0 word1 word2"
    assert len(client.embeddings.create(model="m", input=["a", "b"]).data) == 2
    assert client.responses.create(model="m", input="x").output_text == "word0 word1 word2"
    with client.responses.create(model="m", input="x", stream=True) as stream:
        kinds = [event.type for event in stream]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert [model.id for model in client.models.list().data] == ["fake"]


def test_speaks_anthropic(claude):
    """Messages, whole and streamed, satisfy the real client."""
    whole = claude.messages.create(model="m", max_tokens=9, messages=YES)
    with claude.messages.stream(model="m", max_tokens=9, messages=YES) as stream:
        streamed = stream.get_final_message()

    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (10, 20)
    assert streamed.content[0].text == "word0 word1 word2 "
    assert streamed.usage.output_tokens == 20


def test_fails_as_told(provider, client, claude):
    """A status, its headers and an error in the route's own shape come back."""
    provider.script(fails(503, retry_after="9"), fails(529))

    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(model="m", messages=YES)
    with pytest.raises(anthropic.APIStatusError) as overloaded:
        claude.messages.create(model="m", max_tokens=9, messages=YES)

    assert refused.value.status_code == 503
    assert refused.value.response.headers["retry-after"] == "9"
    assert overloaded.value.response.json()["type"] == "error"


@pytest.mark.parametrize(
    ("fault", "stream"),
    [
        pytest.param(Fault.HANGS_UP, False, id="closes-before-the-first-byte"),
        pytest.param(Fault.NO_CHUNK, True, id="stream-closes-before-the-first-chunk"),
    ],
)
def test_breaks_off(provider, fault, stream):
    """The client sees a broken connection."""
    provider.script(breaks(fault))

    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{provider.url}/v1/chat/completions", json={"stream": stream})


def test_an_error_event_takes_the_place_of_the_first_chunk(provider):
    """A stream may start with status 200 and then tell of an error at once."""
    provider.script(breaks(Fault.ERROR_EVENT))

    answer = httpx.post(f"{provider.url}/v1/chat/completions", json={"stream": True})

    assert answer.status_code == 200
    assert answer.text == 'data: {"error": {"message": "A is out of order", "code": 500}}\n\n'


def test_a_stream_is_cut_after_the_told_number_of_chunks(provider):
    """Just the first words arrive before the connection breaks."""
    provider.script(Script(words=9, cut_after=2))
    url = f"{provider.url}/v1/chat/completions"

    with httpx.stream("POST", url, json={"stream": True}) as answer:
        pieces = answer.iter_raw()
        received = b"".join(next(pieces) for _ in range(3))
        with pytest.raises(httpx.RemoteProtocolError):
            received += b"".join(pieces)

    assert received.count(b"word") == 2


def test_half_a_document_and_an_echo(provider):
    """Malformed JSON, and an error that quotes the request's key and prompt, can be had."""
    provider.script(breaks(Fault.NOT_JSON), breaks(Fault.ECHOES, status=400))
    url, headers = f"{provider.url}/v1/chat/completions", {"Authorization": "Bearer pk-1"}

    half = httpx.post(url, json={"messages": []}, headers=headers)
    echo = httpx.post(url, json={"messages": "MARK"}, headers=headers)

    with pytest.raises(ValueError):
        half.json()
    assert "pk-1" in echo.text
    assert "MARK" in echo.text


def test_holds_until_released(provider):
    """A held request is in the journal but gets no answer before `release`."""
    provider.script(Script(hold=True))
    answered = threading.Event()

    def call() -> None:
        httpx.post(f"{provider.url}/v1/embeddings", json={"input": "x"})
        answered.set()

    caller = threading.Thread(target=call)
    caller.start()
    assert not answered.wait(0.2)
    assert len(provider.journal) == 1
    provider.release()
    caller.join(5)

    assert answered.is_set()


def test_notices_a_caller_that_leaves(provider):
    """A caller that hangs up while it is held is counted."""
    provider.script(Script(hold=True))

    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{provider.url}/v1/embeddings", json={"input": "x"}, timeout=0.2)
    deadline = time.monotonic() + 5
    while provider.abandoned == 0 and time.monotonic() < deadline:
        time.sleep(0.01)

    assert provider.abandoned == 1


def test_counts_a_bare_connection(provider):
    """A connection that says nothing at all is still counted."""
    with socket.create_connection(("127.0.0.1", provider.port)):
        deadline = time.monotonic() + 5
        while provider.connections == 0 and time.monotonic() < deadline:
            time.sleep(0.01)

    assert provider.connections == 1
    assert provider.journal == []


def test_journals_unknown_paths_and_websockets(provider):
    """What it does not serve is answered 404, and is in the journal all the same."""
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "eA=="}

    assert httpx.get(f"{provider.url}/nowhere").status_code == 404
    assert httpx.get(f"{provider.url}/v1/realtime?model=m", headers=upgrade).status_code == 404
    assert [seen.path for seen in provider.journal] == ["/nowhere", "/v1/realtime?model=m"]


def test_reset_forgets(provider):
    """After `reset` the journal is empty and the default answer is back."""
    provider.always(fails(500))
    provider.script(fails(501))
    httpx.post(f"{provider.url}/v1/embeddings", json={"input": "x"})

    provider.reset()

    assert (provider.journal, provider.connections) == ([], 0)
    assert httpx.post(f"{provider.url}/v1/embeddings", json={"input": "x"}).status_code == 200
