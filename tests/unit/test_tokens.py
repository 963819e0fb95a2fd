"""The estimate that guards a context length."""

from __future__ import annotations

from plugins import tokens


def test_all_text_of_a_prompt_counts() -> None:
    """Messages, their parts, tools and instructions are read; inline media is not."""
    words = "word " * 100
    body = {
        "model": "ignored " * 100,
        "messages": [
            {"role": "user", "content": words},
            {"role": "user", "content": [{"type": "text", "text": words}]},
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:" + words}}],
            },
        ],
        "tools": [{"function": {"description": words}}],
    }

    assert tokens.estimate(body) in range(300, 400)


def test_a_very_long_text_is_counted_at_the_rate_of_its_beginning() -> None:
    """Half a million words do not hold a thread for long."""
    assert tokens.estimate({"prompt": "word " * 500_000}) in range(495_000, 505_000)
