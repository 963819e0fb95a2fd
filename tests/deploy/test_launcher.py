"""What `deploy/up` refuses: one clear line with the remedy, and a non-zero exit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from plugins.config import provider_variables
from plugins.setup import launcher, local_engines
from plugins.setup.data_folder import CannotStart, Lock
from plugins.setup.launcher import Options
from plugins.setup.postgres import EmbeddedPostgres, answers, free_port
from tests.databases import visitor

ROOT = Path(__file__).parents[2]
STEERING = ("LEDGER", "DATABASE", "DIRECT", "WICKETGATE", "LITELLM", "OPENAI", "ANTHROPIC", "PG")


class Attempt:
    """One `deploy/up` that is expected to end by itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.metrics_port = free_port()

    def __call__(self, *arguments: str, **variables: str) -> str:
        """Return its last line, after having seen it fail without a word on stdout."""
        result = self.run(*arguments, **variables)
        assert (result.returncode, result.stdout) == (1, "")
        assert "Traceback" not in result.stderr
        return result.stderr.splitlines()[-1]

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(STEERING) and name not in provider_variables.NAMES
        }
        ports = ("--port", str(self.port), "--metrics-port", str(self.metrics_port))
        return subprocess.run(
            [sys.executable, "-m", "plugins.setup.launcher", *ports, *arguments],
            cwd=ROOT,
            env={**inherited, "WICKETGATE_DATA": str(self.folder), **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def up(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path / "data")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("name", ["DATABASE_URL", "DIRECT_URL"])
def test_litellms_own_database_variables_are_refused(up: Attempt, name: str) -> None:
    """LiteLLM would migrate that database; nothing is touched before this is told."""
    assert up(**{name: "postgresql://db.example/ledger"}) == (
        f"deploy/up: {name} is set, and LiteLLM would take that database for its own: "
        f"unset {name}; the ledger's address is LEDGER_URL"
    )
    assert not up.folder.exists()


def test_a_taken_port_is_named(up: Attempt, taken_port: int) -> None:
    """The option that chooses another port is in the line."""
    assert up("--port", str(taken_port)) == (
        f"deploy/up: cannot listen on 127.0.0.1 port {taken_port} (Address already in use): "
        "free it, or name another one with --port"
    )


def test_a_taken_metrics_port_is_named(up: Attempt, taken_port: int) -> None:
    """The metrics have a port and an option of their own."""
    assert up("--metrics-port", str(taken_port)) == (
        f"deploy/up: cannot listen on 127.0.0.1 port {taken_port} (Address already in use): "
        "free it, or name another one with --metrics-port"
    )


def test_one_port_cannot_serve_both(up: Attempt) -> None:
    """The same number twice would fail only after half a minute of loading."""
    assert up("--metrics-port", str(up.port)) == (
        f"deploy/up: --port and --metrics-port are both {up.port}: name two different ones"
    )


@pytest.mark.parametrize("host", ["192.0.2.1", "999.1.1.1", "a..b"])
def test_an_unknown_host_is_named(up: Attempt, host: str) -> None:
    """A host that is not ours to listen on, whatever the port."""
    assert up("--host", host) == f"deploy/up: --host '{host}': no such address here"


def test_a_ledger_url_of_another_kind_is_refused(up: Attempt) -> None:
    """The address is not repeated: it may hold a password."""
    line = up(LEDGER_URL="mysql://root:hunter2@127.0.0.1/ledger")

    assert line == (
        "deploy/up: LEDGER_URL: expected postgresql://user:password@host:port/database"
        " (percent-encode special characters in the password)"
    )


def test_an_empty_ledger_url_is_refused(up: Attempt) -> None:
    """A variable that was not filled in must not start another database in silence."""
    assert up(LEDGER_URL="") == (
        "deploy/up: LEDGER_URL is set but empty: unset it to use the embedded database"
    )
    assert not up.folder.exists()


def test_a_ledger_that_does_not_answer_is_refused(up: Attempt) -> None:
    """Nothing of the address shows, in any line."""
    result = up.run(LEDGER_URL="postgresql://keeper:hunter2@127.0.0.1:1/books")

    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "deploy/up: the database that LEDGER_URL names does not let us in: check its host, port, "
        "user, password and database, or unset LEDGER_URL to have one started here"
    )
    assert not [word for word in ("keeper", "hunter2", ":1/", "books") if word in result.stderr]


def test_a_role_without_rights_is_refused(
    up: Attempt, postgres: EmbeddedPostgres, fresh_database: str
) -> None:
    """A database that lets us in and lets us make nothing is told before LiteLLM loads."""
    with visitor(postgres, fresh_database) as url:
        assert up(LEDGER_URL=url) == (
            "deploy/up: The ledger's role may not do this: grant it CREATE on the database,"
            " or migrate as its owner."
        )


def test_a_restart_of_the_database_waits_for_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `deploy/admin` may have taken the database meanwhile; it is waited for, then named."""
    command = Lock(tmp_path / "postgres.lock", "deploy/admin")
    with ExitStack() as stack, EmbeddedPostgres(tmp_path, fsync=False) as server:
        environ = {"WICKETGATE_DATA": str(tmp_path)}
        options = Options(False, Path("x"), "127.0.0.1", 4000, 1, 0)
        gateway = launcher.Up(options, environ, stack, lambda: False)
        before = server.url
        server.stop()
        command.acquire()
        monkeypatch.setattr(launcher, "ADMIN_COMMAND_WAIT", 0.2)
        with pytest.raises(CannotStart) as caught:
            gateway._restart_database(server)
        monkeypatch.setattr(launcher, "ADMIN_COMMAND_WAIT", 30.0)
        threading.Timer(0.5, command.release).start()
        gateway._restart_database(server)

        assert str(caught.value) == (
            f"the database in {tmp_path} is held by deploy/admin (process {os.getpid()}): "
            "wait for that one to end"
        )
        assert (server.url, answers(before)) == (before, True)


def test_a_bad_configuration_is_named_with_its_line(up: Attempt, tmp_path: Path) -> None:
    """Broken YAML is told with file and line, and nothing is started."""
    config = tmp_path / "litellm_config.yaml"
    config.write_text("model_list:\n  - model_name: [unclosed\n")

    result = up.run("--config", str(config))

    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    problem, summary = result.stderr.splitlines()
    assert problem.startswith(f"{config}:")
    assert summary == (
        f"deploy/up: {config} has 1 fatal problem(s), named above: "
        "correct them (deploy/admin check shows them again)"
    )
    assert not (up.folder / "postgres").exists()


def test_a_missing_configuration_is_named(up: Attempt, tmp_path: Path) -> None:
    """A wrong --config is told as any other problem of the file."""
    config = tmp_path / "nowhere.yaml"

    result = up.run("--config", str(config))

    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[0] == f"{config}: file not found"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """The reason is the system's, the remedy ours."""
    (tmp_path / "file").touch()
    up = Attempt(tmp_path / "file" / "data")

    assert up() == (
        f"deploy/up: cannot write to {tmp_path}/file/data (Not a directory): "
        "give this user the folder, or name another one with WICKETGATE_DATA"
    )


def test_a_second_up_on_the_same_folder_says_so(up: Attempt) -> None:
    """It names the process that holds the folder."""
    up.folder.mkdir()
    lock = Lock(up.folder / "lock", "deploy/up")
    lock.acquire()
    try:
        assert up() == (
            f"deploy/up: {up.folder} is in use by deploy/up (process {os.getpid()}): "
            "stop that one, or name another folder with WICKETGATE_DATA"
        )
    finally:
        lock.release()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param(
            ("--port", "70000"),
            "argument --port: expected a port from 1 to 65535, got '70000'",
            id="port-too-high",
        ),
        pytest.param(
            ("--workers", "0"),
            "argument --workers: expected a number from 1 to 128, got '0'",
            id="no-worker",
        ),
        pytest.param(("--prot", "4000"), "unrecognized arguments: --prot 4000", id="typo"),
    ],
)
def test_a_wrong_option_is_named(up: Attempt, arguments: tuple[str, str], complaint: str) -> None:
    """Options are checked before anything is done."""
    result = up.run(*arguments)

    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == f"deploy/up: error: {complaint}"
    assert not up.folder.exists()


@pytest.mark.parametrize(
    ("host", "url"),
    [
        pytest.param("127.0.0.1", "http://127.0.0.1:4000", id="loopback"),
        pytest.param("0.0.0.0", "http://127.0.0.1:4000", id="every-address"),
        pytest.param("::", "http://[::1]:4000", id="every-ipv6-address"),
    ],
)
def test_the_address_shown_is_one_that_can_be_called(host: str, url: str) -> None:
    """What is printed works when pasted on this machine."""
    options = Options(False, Path("x"), host, 4000, 1, 9400)

    assert options.url == url


def test_an_engine_that_is_not_there_is_told(taken_port: int) -> None:
    """One line for each, without user and password; those that answer are not mentioned."""
    nowhere = f"127.0.0.1:{free_port()}"
    engines = [
        ("there", f"http://127.0.0.1:{taken_port}/v1"),
        ("gone", f"http://{nowhere}/v1"),
        ("secret", f"http://u:hunter2@{nowhere}"),
        ("odd", "http://127.0.0.1:99999"),
    ]

    assert local_engines.silent(engines, "start it, or use --demo") == [
        f"gone: nothing answers at http://{nowhere} (start it, or use --demo)",
        f"secret: nothing answers at http://{nowhere} (start it, or use --demo)",
        "odd: nothing answers at http://127.0.0.1:99999 (start it, or use --demo)",
    ]


def test_the_help_explains_every_option(up: Attempt) -> None:
    """With the defaults, and the variables that matter."""
    result = up.run("--help")

    assert result.returncode == 0
    for word in ("(litellm_config.yaml)", "(4000)", "LEDGER_URL", "WICKETGATE_DATA"):
        assert word in result.stdout


def test_two_signals_at_one_moment_are_one_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    """`timeout` signals us and our group; only a later signal hurries, a hang-up never."""
    clock = iter([1000.0, 1000.01, 1001.0, 1002.0])
    monkeypatch.setattr(launcher, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    hurry = launcher.Hurry()

    with pytest.raises(KeyboardInterrupt):
        hurry.receive(signal.SIGINT, None)
    hurry.receive(signal.SIGINT, None)
    hurry.listen()
    hurry.receive(signal.SIGHUP, None)
    assert not hurry()
    hurry.receive(signal.SIGINT, None)
    assert hurry()
