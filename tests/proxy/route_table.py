"""Print every route of the installed LiteLLM as JSON: [[kind, path, methods], …].

Run as a process of its own: importing LiteLLM's proxy takes seconds and changes global state.
Features that LiteLLM loads on first use are loaded here, so that the table is complete.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any


def routes(candidates: Iterable[Any], prefix: str = "") -> Iterator[tuple[str, str, list[str]]]:
    """Yield every route below *candidates*, through included routers and mounts."""
    for candidate in candidates:
        if hasattr(candidate, "effective_route_contexts"):
            yield from routes(candidate.effective_route_contexts(), prefix)
            continue
        # What an included router holds: the route as written, and as its prefix makes it.
        original = getattr(candidate, "original_route", candidate)
        effective = getattr(candidate, "starlette_route", None) or candidate
        path = prefix + (getattr(effective, "path_format", None) or effective.path)
        kind = "websocket" if "WebSocket" in type(original).__name__ else "http"
        if type(original).__name__ == "Mount":
            kind = "mount"
        yield kind, path, sorted(getattr(effective, "methods", None) or [])
        if kind == "mount":
            yield from routes(getattr(effective, "routes", None) or (), prefix + effective.path)


def main() -> None:
    from litellm.proxy._lazy_features import register_all_features
    from litellm.proxy.proxy_server import app

    register_all_features(app)
    json.dump(list(routes(app.routes)), sys.stdout)


if __name__ == "__main__":
    main()
