"""The count that guards a context length."""

from __future__ import annotations

from typing import Any

import pytest

from plugins.tokens import context

WORDS = "word " * 120


def test_all_text_of_a_prompt_counts() -> None:
    """Messages, their parts, tools and instructions are read; inline media is not."""
    body = {
        "model": "ignored " * 100,
        "messages": [
            {"role": "user", "content": WORDS},
            {"role": "user", "content": [{"type": "text", "text": WORDS}]},
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:" + WORDS}}],
            },
        ],
        "tools": [{"function": {"description": WORDS}}],
    }

    assert context.at_least(body) in range(300, 340)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param({"input": [WORDS] * 120}, 100, id="texts-stand-alone"),
        pytest.param({"prompt": [WORDS, WORDS * 2]}, 200, id="the-longest-counts"),
        pytest.param({"prompt": [7] * 5000}, 5000, id="token-ids"),
        pytest.param({"input": [[7] * 10, [7] * 30]}, 30, id="lists-of-token-ids"),
        pytest.param({"input": [{"role": "user", "content": WORDS}]}, 103, id="items"),
        pytest.param({"messages": []}, 0, id="nothing"),
    ],
)
def test_each_prompt_has_a_context_to_itself(body: dict[str, Any], expected: int) -> None:
    """A batch is as long as its longest member."""
    assert context.at_least(body) == pytest.approx(expected, abs=3)


def test_a_very_long_text_is_counted_at_the_rate_of_its_beginning() -> None:
    """Half a million words do not hold a thread for long."""
    assert context.at_least({"prompt": "word " * 600_000}) in range(495_000, 505_000)
