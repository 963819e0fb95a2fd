"""Whether something listens where an entry's own engine should be."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

CONNECT_SECONDS = 0.3
#: For all of them, names that are slow to resolve included.
ALL_SECONDS = 1.0


def silent(engines: Iterable[tuple[str, str]], instead: str) -> list[str]:
    """Return a line for each engine at which nothing answers.

    Args:
        engines: The model's name and its engine's URL, of each entry.

        instead: What to do about it.
    """
    places = [(model, urlsplit(url)) for model, url in engines]
    heard: set[int] = set()

    def knock(number: int, place: SplitResult) -> None:
        try:
            with socket.create_connection(_address(place), timeout=CONNECT_SECONDS):
                heard.add(number)
        except (OSError, ValueError):  # ValueError: no such port, or no such name
            pass

    knocks = [
        threading.Thread(target=knock, args=(number, place), daemon=True)
        for number, (_, place) in enumerate(places)
    ]
    for one in knocks:
        one.start()
    deadline = time.monotonic() + ALL_SECONDS
    for one in knocks:
        one.join(max(deadline - time.monotonic(), 0))
    return [
        f"{model}: nothing answers at {_shown(place)} ({instead})"
        for number, (model, place) in enumerate(places)
        if number not in heard
    ]


def _address(place: SplitResult) -> tuple[str, int]:
    return place.hostname or "", place.port or (443 if place.scheme == "https" else 80)


def _shown(place: SplitResult) -> str:
    """Return the URL without its user, its password and its path."""
    return f"{place.scheme}://{place.netloc.rpartition('@')[2]}"
