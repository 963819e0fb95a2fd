"""Events of a stream, however the network cut them."""

from __future__ import annotations

import time

import pytest

from plugins.events import Events, tells_of_failure

STREAM = (
    b'event: message_start\ndata: {"type":"message_start"}\n\n'
    b": ping\r\n\r\n"
    b'event: error\ndata: {"type":"error"}\n\n'
    b"data: [DONE]\n\n"
)


@pytest.mark.parametrize("cut", range(len(STREAM)))
def test_events_come_out_whole_wherever_they_are_cut(cut: int) -> None:
    """A stream cut at any byte gives the same events, and loses nothing."""
    events = Events()

    found = events.feed(STREAM[:cut]) + events.feed(STREAM[cut:]) + events.rest()

    assert b"".join(found) == STREAM
    assert [tells_of_failure(event) for event in found] == [False, False, True, False]


def test_what_has_no_end_comes_out_in_the_end() -> None:
    """The last event of a broken stream is not lost."""
    events = Events()

    assert events.feed(b"data: {}") == []
    assert events.rest() == [b"data: {}"]


def test_an_event_without_end_is_not_kept_for_ever() -> None:
    """A stream that never ends an event does not fill the memory."""
    events = Events()

    assert events.feed(b"x" * 32_000_001) == [b"x" * 32_000_001]


def test_an_event_in_many_pieces_costs_its_length_once() -> None:
    """Nine thousand pieces of one event take milliseconds, not half a minute."""
    events = Events()
    started = time.process_time()

    for _ in range(9000):
        assert events.feed(b"x" * 100) == []

    assert events.feed(b"\n\n") == [b"x" * 900_000 + b"\n\n"]
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    ("event", "failure"),
    [
        pytest.param(b'data: {"error": {"message": "x"}}', True, id="openai"),
        pytest.param(b'data: {"id":1,"error":{"message":"x"}}', True, id="not-the-first-key"),
        pytest.param(b"id: 3\nevent: error\ndata: {}", True, id="anthropic-with-an-id"),
        pytest.param(b': note\ndata: {"error":"x"}', True, id="after-a-comment"),
        pytest.param(b'data: {"object":"error"}', True, id="vllm"),
        pytest.param(b'data: [{"error":{"message":"x"}}]', True, id="in-a-list"),
        pytest.param(b'data: {"choices":[{"error":{"message":"x"}}]}', True, id="in-a-choice"),
        pytest.param(b"event: response.failed\ndata: {}", True, id="responses"),
        pytest.param(b'data: {"type":"response.failed"}', True, id="responses-by-type"),
        pytest.param(b'data: {"error": null, "choices": []}', False, id="no-error"),
        pytest.param(b'data: {"delta": "event: error"}', False, id="a-models-words"),
        pytest.param(b"data: not json but an error", False, id="not-json"),
    ],
)
def test_failures_are_told_apart_from_words(event: bytes, failure: bool) -> None:
    """What a model says of errors is not one."""
    assert tells_of_failure(event) is failure
