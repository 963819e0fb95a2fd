"""What reaches a log, and what never does."""

from __future__ import annotations

import logging

import pytest

from plugins import logs

SECRET = "MARKER sk-wg-abc at 10.0.0.1"


def record(
    name: str, level: int = logging.ERROR, error: Exception | None = None
) -> logging.LogRecord:
    info = None if error is None else (type(error), error, None)
    return logging.LogRecord(name, level, "router.py", 7, SECRET, None, info)


@pytest.fixture(name="serving")
def _serving() -> logs.WithoutContent:
    added = logs.WithoutContent()
    added.serving = True
    return added


def test_before_the_first_request_texts_are_about_the_start() -> None:
    """What is wrong with a configuration must be readable."""
    said = record("LiteLLM")

    assert logs.WithoutContent().filter(said)
    assert said.getMessage() == SECRET


def test_of_another_librarys_record_only_place_and_kind_remain(
    serving: logs.WithoutContent,
) -> None:
    """A provider's error may quote the prompt and the key it was sent."""
    said = record("LiteLLM Proxy", error=ValueError(SECRET))

    assert serving.filter(said)
    assert said.getMessage() == "router:7 ValueError"
    assert said.exc_info is None


def test_a_record_that_would_say_nothing_is_dropped(serving: logs.WithoutContent) -> None:
    """LiteLLM tells of a failure in several lines; without their texts they are noise."""
    assert not serving.filter(record("LiteLLM Router"))


@pytest.mark.parametrize(
    ("name", "level"), [("wicketgate.gate", logging.ERROR), ("uvicorn.error", logging.INFO)]
)
def test_our_own_and_the_servers_lines_stay(
    serving: logs.WithoutContent, name: str, level: int
) -> None:
    """They hold nothing of a request."""
    said = record(name, level)

    assert serving.filter(said)
    assert said.getMessage() == SECRET


def test_a_query_is_cut_off_an_access_line() -> None:
    """A client may have put its key there."""
    said = logging.LogRecord("uvicorn.access", logging.INFO, "x", 1, "%s %s", None, None)
    said.args = ("GET", "/v1/models?key=sk-wg-abc")

    assert logs.WithoutQuery().filter(said)
    assert said.getMessage() == "GET /v1/models"


def test_a_fault_is_told_by_kind_and_place(caplog: pytest.LogCaptureFixture) -> None:
    """Our own lines of the traceback, none of the error's words or of its causes."""
    try:
        try:
            raise ValueError(SECRET)
        except ValueError as cause:
            raise RuntimeError(SECRET) from cause
    except RuntimeError as error:
        logs.fault(logging.getLogger("test"), "routing", error)

    (said,) = caplog.records
    assert said.getMessage().startswith("routing failed: RuntimeError\n")
    assert "test_logs.py" in said.getMessage()
    assert "MARKER" not in said.getMessage().replace("raise ValueError(SECRET)", "")
