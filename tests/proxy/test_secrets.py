"""No key, prompt or database address is in any log line, error body or process title.

The last file of this folder: it searches what all the others have left behind.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.fakes.script import Fault, breaks, fails
from tests.proxy.calls import MARKER, chat, messages, refused
from tests.proxy.models import PROVIDER_KEYS


@pytest.fixture(name="secrets")
def _secrets(office, postgres, p) -> dict[str, str]:
    """What must not be found: name -> text."""
    address = urlsplit(postgres.url)
    assert address.password
    keys = {f"key {number}": key for number, key in enumerate(office.secrets)}
    tails = {
        f"{name}, its secret part": key.removeprefix("sk-wg-")[6:] for name, key in keys.items()
    }
    return {
        **keys,
        **tails,
        **PROVIDER_KEYS,
        "prompt": MARKER,
        "database password": address.password,
        "database address": f"@127.0.0.1:{address.port}",
        "master key": p.master_key,
    }


def found(text: str, secrets: dict[str, str]) -> list[str]:
    return [name for name, secret in secrets.items() if secret in text]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_a_provider_that_quotes_the_request(
    p, providers, new_tenant, secrets, path, stream, status
):
    """A provider's error may hold the prompt and its key; the caller's answer does not."""
    acme = new_tenant("acme", models=["cloud-eu"])
    providers.a.always(breaks(Fault.ECHOES, status=status))
    body = (
        {"model": "cloud-eu", "input": MARKER, "stream": stream}
        if path == "/v1/responses"
        else messages("cloud-eu", stream=stream)
    )

    answer = p.post(path, acme.key, body)

    assert answer.status_code >= 400
    assert found(answer.text + str(answer.headers), secrets) == []


def test_a_key_in_the_wrong_place(p, secrets, new_tenant):
    """A key in a query, a path or a body is not written down either."""
    acme = new_tenant("acme", models=["cloud-eu"])

    p.post(f"/v1/chat/completions?key={acme.key}", None, chat("cloud-eu"))
    p.post(f"/v1/chat/completions?model={acme.key}", acme.key, chat("cloud-eu"))
    p.post("/v1/chat/completions", acme.key, chat(acme.key))
    p.post("/v1/chat/completions", acme.key, chat("cloud-eu", **{acme.key: 1}))
    p.get(f"/key/{acme.key}", acme.key)

    assert acme.key not in p.output()


def test_a_failing_stream_says_nothing(p, providers, new_tenant, secrets):
    """A stream that breaks after it began is told of in our words."""
    acme = new_tenant("acme", models=["cloud-eu"])
    providers.a.always(fails(500))

    refused(
        p.post("/v1/chat/completions", acme.key, chat("cloud-eu", stream=True)),
        502,
        "upstream_error",
    )

    assert found(p.output(), secrets) == []


def test_no_secret_in_any_output(replicas, secrets, folder):
    """Everything the replicas of this session have written, to standard output and error."""
    for log in folder.glob("*.log"):
        assert found(log.read_text(encoding="utf-8", errors="replace"), secrets) == []
    assert all(proxy.output() for proxy in replicas)


def test_no_secret_in_any_error_body(replicas, secrets):
    """Every error body and its headers that this session's callers were sent."""
    bodies = [body for proxy in replicas for body in proxy.errors]

    assert len(bodies) > 5
    assert [names for body in bodies if (names := found(body, secrets))] == []


def test_no_secret_in_any_process_title(replicas, postgres, secrets):
    """What `ps` shows to every user of the machine."""
    pids = [proxy.process.pid for proxy in replicas]
    assert postgres.pid is not None
    pids.append(postgres.pid)
    pids += [int(child) for pid in pids for child in children(pid)]

    for pid in pids:
        title = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
        assert found(title, secrets) == []


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_the_servers_log_is_clean(folder, secrets):
    """The embedded PostgreSQL writes down no statement and no value."""
    log = folder / "data" / "postgres.log"

    assert found(log.read_text(encoding="utf-8", errors="replace"), secrets) == []
