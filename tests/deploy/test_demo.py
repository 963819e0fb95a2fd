"""`deploy/up --demo`: which engine it takes, what it says when there is none, and a real run."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from plugins.config import provider_variables
from plugins.ledger import grants, keys, migrate, tenants
from plugins.ledger.database import connect_engine, transaction
from plugins.policy.identity import digest
from plugins.setup import demo
from plugins.setup.data_folder import CannotStart
from plugins.setup.postgres import free_port

ROOT = Path(__file__).parents[2]
STEERING = ("LEDGER", "DATABASE", "DIRECT", "WICKETGATE", "LITELLM", "OPENAI", "ANTHROPIC", "PG")
TAGS = {"models": [{"name": "nomic-embed-text:latest"}, {"name": "gemma3:270m"}]}
PROPS = {"total_slots": 3, "default_generation_settings": {"n_ctx": 2048}}
LOADED = {"status": "ok"}


@contextmanager
def serving(answers: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Serve fixed JSON by path, as an engine would; 404 for the rest."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path)
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield ("127.0.0.1", server.server_port)
        finally:
            server.shutdown()
            thread.join()


def test_an_ollama_that_is_there_is_used() -> None:
    """The first model that can chat is taken; one for embeddings cannot."""
    with serving({"/api/tags": TAGS}) as address:
        engine = demo.running_ollama(address)

    assert engine == demo.Engine("ollama", address, "gemma3:270m", None, demo.OLLAMA_CONTEXT)


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param({}, id="something-else-on-the-port"),
        pytest.param({"/api/tags": {"models": []}}, id="no-model-pulled"),
        pytest.param({"/api/tags": {"models": [{"name": "bge-embed"}]}}, id="embeddings-only"),
        pytest.param({"/api/tags": ["models"]}, id="another-shape"),
    ],
)
def test_an_ollama_without_a_model_is_passed_over(answers: dict[str, Any]) -> None:
    """An Ollama that cannot answer a chat is as good as none."""
    with serving(answers) as address:
        assert demo.running_ollama(address) is None


def test_a_llama_server_that_is_there_is_used() -> None:
    """Its own figures say how many slots it has and how long a prompt may be."""
    models = {"data": [{"id": "qwen3-4b"}]}
    with serving({"/health": LOADED, "/props": PROPS, "/v1/models": models}) as address:
        engine = demo.running_llama_server(address)

    assert engine == demo.Engine("llama.cpp", address, "qwen3-4b", 3, 2048)


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param({"/health": LOADED}, id="another-service-with-a-health-page"),
        pytest.param({"/health": {"status": "loading"}, "/props": PROPS}, id="still-loading"),
        pytest.param({"/health": LOADED, "/props": {"total_slots": "3"}}, id="another-shape"),
    ],
)
def test_what_is_no_llama_server_is_passed_over(answers: dict[str, Any]) -> None:
    """Port 8080 belongs to many programs."""
    with serving(answers) as address:
        assert demo.running_llama_server(address) is None


def test_nobody_there_is_found_out_at_once() -> None:
    """A closed port is no engine."""
    address = ("127.0.0.1", free_port())

    assert demo.running_ollama(address) is None
    assert demo.running_llama_server(address) is None


def test_the_entry_is_labelled_and_priced() -> None:
    """It passes the same boot check as an entry an operator writes."""
    engine = demo.Engine("llama.cpp", ("127.0.0.1", 8080), "qwen3-4b", 3, 2048)

    assert engine.model_entry() == {
        "model_name": "local-demo",
        "litellm_params": {
            "model": "openai/qwen3-4b",
            "api_base": "http://127.0.0.1:8080/v1",
            "api_key": "none",
        },
        "model_info": {
            "id": "local-demo-1",
            "provider": "llama.cpp",
            "region": "onprem",
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
            "max_input_tokens": 2048,
            "max_output_tokens": 256,
            "engine": {"kind": "llama.cpp", "url": "http://127.0.0.1:8080", "slots": 3},
        },
    }


def program(folder: Path, text: str) -> Path:
    file = folder / "llama-server"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


@pytest.mark.parametrize("end", ["kill -ILL $$", "exit 132"])
def test_a_build_for_another_processor_is_named(tmp_path: Path, end: str) -> None:
    """A build that dies of an unknown instruction is told apart from every other failure."""
    server = program(tmp_path, end)

    with pytest.raises(CannotStart) as caught:
        demo.probe(server)

    assert str(caught.value) == (
        f"no local model: the build {server} needs instructions that this processor "
        f"({demo._processor()}) lacks; {demo.INSTEAD}"
    )


def test_a_missing_library_names_its_package(tmp_path: Path) -> None:
    """A slim image lacks the one library that the build does not bring."""
    server = program(
        tmp_path, "echo 'error while loading shared libraries: libgomp.so.1' >&2; exit 127"
    )

    with pytest.raises(CannotStart) as caught:
        demo.probe(server)

    assert str(caught.value) == (
        f"no local model: {server} needs libgomp: apt install libgomp1, or {demo.INSTEAD}"
    )


def test_another_failure_shows_its_last_line(tmp_path: Path) -> None:
    """What the build itself said is kept, on one line."""
    server = program(tmp_path, "echo one >&2; echo two >&2; exit 3")

    with pytest.raises(CannotStart) as caught:
        demo.probe(server)

    assert str(caught.value) == (
        f"no local model: {server} ended with exit code 3 (two); {demo.INSTEAD}"
    )


def test_another_platform_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The build is for x86_64 Linux; elsewhere nothing is fetched."""
    nobody = ("127.0.0.1", free_port())
    monkeypatch.setattr(demo, "OLLAMA", nobody)
    monkeypatch.setattr(demo, "LLAMA_SERVER", nobody)
    monkeypatch.setattr(demo.platform, "machine", lambda: "aarch64")

    with pytest.raises(CannotStart) as caught:
        demo.find_engine(Path("unused"), {}, print)

    assert str(caught.value) == (
        "no local model: the one that comes with the demo runs on x86_64 Linux only; "
        + demo.INSTEAD
    )


def test_the_second_run_closes_the_first_runs_key(fresh_database: str) -> None:
    """Only the key printed last opens anything, and the grants stay as they are."""
    migrate.migrate(fresh_database, lambda _: None)
    engine = demo.Engine("llama.cpp", ("127.0.0.1", 8080), "qwen3-4b", 3, 2048)

    secrets = [demo.new_key(fresh_database, engine) for _ in range(2)]

    with transaction(connect_engine(fresh_database)) as conn:
        tenant = tenants.find(conn, "demo")
        assert tenant is not None
        first, second = keys.listed(conn, tenant.id)
        granted = {(row.dimension.value, row.pattern) for row in grants.listed(conn, tenant.id)}
    assert first.revoked_at is not None
    assert second.revoked_at is None
    assert secrets[1].startswith(second.prefix)
    assert digest(secrets[0]) != digest(secrets[1])
    assert granted == {
        ("model", "local-demo"),
        ("provider", "llama.cpp"),
        ("region", "onprem"),
    }


class Run:
    """One `deploy/up --demo` on ports and a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "data"
        self.port = free_port()
        self.told = folder / "stderr"
        self.printed = folder / "stdout"
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(STEERING) and name not in provider_variables.NAMES
        }
        with self.told.open("wb") as told, self.printed.open("wb") as printed:
            self.process = subprocess.Popen(
                [
                    *(ROOT / "deploy" / "up", "--demo", "--port", str(self.port)),
                    *("--metrics-port", str(free_port())),
                ],
                cwd=folder,
                env={
                    **inherited,
                    "WICKETGATE_DATA": str(self.folder),
                    "WICKETGATE_VENV": sys.prefix,
                },
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=told,
            )

    def wait(self, seconds: float) -> bool:
        """Return True once the call is printed, False when it ended before."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if "client = OpenAI(" in self.printed.read_text():
                return True
            if self.process.poll() is not None:
                return False
            time.sleep(0.1)
        raise AssertionError(f"not ready after {seconds} s:\n{self.told.read_text()}")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    if run.process.poll() is None:
        run.process.kill()
        run.process.wait()


def descendants(pid: int) -> dict[int, str]:
    """Return the command lines of all live processes that *pid* started, by their ids."""
    found: dict[int, str] = {}
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            line = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
            found |= {child: line, **descendants(child)}
    return found


def still_there(pids: dict[int, str]) -> dict[int, str]:
    return {pid: line for pid, line in pids.items() if Path(f"/proc/{pid}").exists()}


def paste(command: str) -> dict[str, Any]:
    """Run the printed curl in a shell; where there is none, send exactly what it would."""
    if shutil.which("curl"):
        result = subprocess.run(
            ["/bin/sh", "-c", f"{command} --silent --show-error --max-time 120"],
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(result.stdout)
    words = shlex.split(command.replace("\\\n", " "))
    headers = dict(words[i + 1].split(": ", 1) for i, word in enumerate(words) if word == "-H")
    body = words[words.index("-d") + 1]
    return httpx.post(words[1], headers=headers, content=body, timeout=120).json()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_newcomers_first_call(run: Run) -> None:
    """The printed call is answered by a real local model, and stopping leaves nothing running.

    On a machine where the model's server cannot run, the last line says what to install.
    """
    if not run.wait(400):
        last = run.told.read_text().splitlines()[-1]
        assert run.process.returncode == 1
        assert last.startswith("deploy/up: no local model: ")
        assert last.endswith(demo.INSTEAD)
        return
    printed, told = run.printed.read_text(), run.told.read_text()
    command = printed[printed.index("curl ") : printed.index("\n\nfrom openai")]
    key = printed.partition("Bearer ")[2].partition("'")[0]
    started = descendants(run.process.pid)

    answer = paste(command)
    assert answer["choices"][0]["message"]["content"].strip() != ""
    assert 0 < answer["usage"]["completion_tokens"] <= 16

    with openai.OpenAI(base_url=f"http://127.0.0.1:{run.port}/v1", api_key=key) as client:
        stream = client.chat.completions.create(
            model=demo.MODEL,
            messages=[{"role": "user", "content": "Say hello"}],
            max_tokens=8,
            stream=True,
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert [model.id for model in client.models.list()] == [demo.MODEL]
        with pytest.raises(openai.PermissionDeniedError) as caught:
            client.chat.completions.create(
                model="hosted-large", messages=[{"role": "user", "content": "Hi"}]
            )
        assert caught.value.code == "model_not_allowed"

    assert {Path(line.split()[0]).name for line in started.values()} >= {"postgres", "python"}
    secrets = [
        key,
        *((run.folder / name).read_text().strip() for name in ("postgres.password", "master_key")),
    ]
    shown = told + " ".join(started.values()) + (run.folder / "proxy.log").read_text()
    assert not [secret for secret in secrets if secret in shown]

    assert run.stop() == 0
    assert still_there(started) == {}
    assert "ready on" in told
    assert f"log in {run.folder / 'proxy.log'}" in told
