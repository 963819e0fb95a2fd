"""What an image costs in prompt tokens, by the rules its provider documents.

Sources, as of 2026-12: OpenAI, "Images and vision", section on costs; Anthropic, "Vision",
section on image costs. Where a rule is not known, a bound over the known ones is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Image:
    """Width and height in pixels, None when unknown; `detail` as OpenAI's field says it."""

    width: int | None = None
    height: int | None = None
    detail: str = "auto"


Rule = Callable[[Image], int]

#: Anthropic scales an image down until it costs no more than this.
ANTHROPIC_MOST = 4_784
_PIXELS_OF_A_TOKEN = 750
#: OpenAI's models that count tiles: name -> (tokens of any image, tokens of a tile).
_TILED = {
    "gpt-4o-mini": (2833, 5667),
    "gpt-4o": (85, 170),
    "gpt-4.1": (85, 170),
    "gpt-4.5": (85, 170),
    "gpt-5": (70, 140),
    "o1": (75, 150),
    "o3": (75, 150),
}
#: OpenAI's models that count patches of 32 x 32 pixels, at most 1,536: name -> tokens of a patch.
_PATCHED = {
    "gpt-4.1-mini": 1.62,
    "gpt-4.1-nano": 2.46,
    "gpt-5-mini": 1.62,
    "gpt-5-nano": 2.46,
    "o4-mini": 1.72,
}
_MOST_PATCHES = 1_536
_MOST_TILES = 8
#: More than one image costs anywhere that is documented: gpt-4o-mini's tiles.
MOST = 2833 + _MOST_TILES * 5667


def rule_for(model: str) -> Rule:
    """Return the rule of a deployment by LiteLLM's name of its model: `provider/model`."""
    provider, _, name = model.rpartition("/")
    if "anthropic" in provider or name.startswith("claude"):
        return anthropic
    known = (n for n in (*_TILED, *_PATCHED) if name == n or _dated(name, n))
    found = max(known, key=len, default=None)
    if found in _PATCHED:
        return lambda image: patched(image, _PATCHED[found])
    if found in _TILED:
        return lambda image: tiled(image, *_TILED[found])
    return unknown


def _dated(name: str, family: str) -> bool:
    """Return whether *name* is a snapshot of *family*: `gpt-4o-2024-08-06`."""
    return name.startswith(f"{family}-2")


def anthropic(image: Image) -> int:
    """Return a token for each 750 pixels."""
    if image.width is None or image.height is None:
        return ANTHROPIC_MOST
    return min(ceil(image.width * image.height / _PIXELS_OF_A_TOKEN), ANTHROPIC_MOST)


def tiled(image: Image, base: int, tile: int) -> int:
    """Fit into 2048 x 2048, shrink the shorter side to 768, and count tiles of 512 x 512."""
    if image.detail == "low":
        return base
    if not image.width or not image.height:
        return base + _MOST_TILES * tile
    scale = min(1.0, 2048 / max(image.width, image.height))
    scale *= min(1.0, 768 / (scale * min(image.width, image.height)))
    across, down = (ceil(round(scale * side, 3) / 512) for side in (image.width, image.height))
    return base + min(across * down, _MOST_TILES) * tile


def patched(image: Image, patch: float) -> int:
    """Count patches of 32 x 32; larger images are scaled down to at most 1,536 of them."""
    if image.width is None or image.height is None:
        patches = _MOST_PATCHES
    else:
        patches = min(ceil(image.width / 32) * ceil(image.height / 32), _MOST_PATCHES)
    return ceil(patches * patch)


def unknown(image: Image) -> int:
    """Bound it for a model whose rule is not known here.

    Open models take up to a token for each 28 x 28 pixels, or a fixed 2,880 and less.
    """
    if image.width is None or image.height is None:
        return MOST
    return min(max(ceil(image.width / 28) * ceil(image.height / 28), 2_880), MOST)
