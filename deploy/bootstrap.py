"""Make the virtual environment from the lock, then become the command. Standard library only.

Called by `deploy/up`, `deploy/test` and `deploy/admin` with their own name as first argument, and
by the commands in `bench/` with `bench` and their name.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
LOCKS = {
    "up": "requirements.lock",
    "admin": "requirements.lock",
    "test": "test.lock",
    "bench": "requirements.lock",
    # Called by `deploy/up --demo`, for the environment it runs in.
    "demo": "demo.lock",
}
PROGRESS_SECONDS = 10.0
SHOWN_LINES = 15  # of the log, on failure
#: There while pip works in the environment: one that was cut off is thrown away.
UNFINISHED = "wicketgate-unfinished"

#: pip's line for each package: from an index, or from a folder of wheels.
FETCHED = re.compile(r"^(?:Collecting|Processing) ", re.MULTILINE)

CHECKS = (
    ("ruff check", ("ruff", "check", ".")),
    ("ruff format", ("ruff", "format", "--check", ".")),
    ("mypy", ("mypy",)),
)


class SetupError(Exception):
    """One line for the operator: what is missing, and what to do about it."""


def main(arguments: Sequence[str]) -> int:
    command, *rest = arguments
    try:
        python = ready_environment(
            Path(os.environ.get("WICKETGATE_VENV") or ROOT / ".venv").absolute(),
            ROOT / "deploy" / LOCKS[command],
        )
    except SetupError as error:
        say(f"deploy/{command}: {error}")
        return 1
    if command == "demo":
        return 0
    if command == "test":
        return run_tests(python, rest)
    if command == "bench":
        name, *rest = rest
        return become(python, f"bench.{name}", rest)
    # From where the caller stands: that is where the files it names are.
    return become(python, "plugins.setup.launcher" if command == "up" else "plugins.admin", rest)


def become(python: Path, module: str, arguments: Sequence[str]) -> NoReturn:
    os.execve(python, [str(python), "-m", module, *arguments], environment())


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def environment() -> dict[str, str]:
    """Return our environment, in which `plugins` is this checkout's wherever we are called."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    return {**inherited, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}


def ready_environment(venv: Path, lock: Path) -> Path:
    """Return the Python of an environment that holds what *lock* says, making it if needed."""
    python = venv / "bin" / "python"
    if is_ready(venv, lock):
        return python
    with one_at_a_time(venv):
        if not is_ready(venv, lock):
            # The demo's lock adds to an environment that runs this very moment.
            if lock.name != LOCKS["demo"]:
                make_environment(venv)
            install(venv, lock)
    return python


def is_ready(venv: Path, lock: Path) -> bool:
    try:
        stamped = (venv / stamp_name(lock)).read_text()
    except OSError:
        return False
    return stamped == fingerprint(lock) and not (venv / UNFINISHED).exists() and runs(venv)


def runs(venv: Path) -> bool:
    """Tell whether the environment's Python still works: the one it was made from may be gone."""
    fits = "import pip, sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))"
    try:
        result = subprocess.run(
            [venv / "bin" / "python", "-c", fits],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except OSError:
        return False
    return result.returncode == 0


def stamp_name(lock: Path) -> str:
    return f"wicketgate-{lock.stem}"


def fingerprint(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes()).hexdigest()


@contextmanager
def one_at_a_time(venv: Path) -> Iterator[None]:
    """Hold a lock beside *venv*; the kernel drops it with us."""
    try:
        venv.parent.mkdir(parents=True, exist_ok=True)
        file = open(venv.with_name(venv.name + ".lock"), "w")  # noqa: SIM115
    except OSError as error:
        raise SetupError(
            f"cannot write to {venv.parent} ({error.strerror}): "
            "clone it for yourself, or name places of your own with WICKETGATE_VENV "
            "and WICKETGATE_DATA"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("waiting for another installation into the same environment")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_environment(venv: Path) -> None:
    """Make *venv*, or leave a sound one as it is; a half-made one is made again."""
    if venv.is_dir() and any(venv.iterdir()):
        if not (venv / "pyvenv.cfg").exists() and not (venv / UNFINISHED).exists():
            raise SetupError(
                f"{venv} is not a virtual environment and will not be overwritten: "
                "move it away, or name another place with WICKETGATE_VENV"
            )
        if not (venv / UNFINISHED).exists() and runs(venv):
            return
        say(f"making {venv} again: the earlier one is not whole")
        shutil.rmtree(venv)
    check_venv_module()
    venv.mkdir(parents=True, exist_ok=True)
    (venv / UNFINISHED).touch()
    say(f"making a virtual environment in {venv}")
    run_logged([sys.executable, "-m", "venv", str(venv)], "venv could not make it")


def check_venv_module() -> None:
    try:
        import ensurepip
        import venv
    except ImportError:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise SetupError(
            f"Python {version} ({sys.executable}) cannot make a virtual environment: "
            f"apt install python3-venv (or python{version}-venv), then run this again"
        ) from None
    del ensurepip, venv


def install(venv: Path, lock: Path) -> None:
    packages = sum(1 for line in lock.read_text().splitlines() if "==" in line.split(" ")[0])
    say(f"installing {packages} packages from deploy/{lock.name}, about a minute")
    # An addition that was cut off leaves the rest of the environment sound.
    adds = lock.name == LOCKS["demo"]
    if not adds:
        (venv / UNFINISHED).touch()
    started = time.monotonic()
    run_logged(
        [str(venv / "bin" / "python"), *pip_install(lock)],
        "pip could not install them; is the package index reachable?",
        counted=True,
    )
    # The test lock holds everything of the other one, in the same versions.
    whole = {lock, lock.with_name(LOCKS["up"])} if lock.name == LOCKS["test"] else {lock}
    for done in whole:
        (venv / stamp_name(done)).write_text(fingerprint(done))
    (venv / UNFINISHED).unlink(missing_ok=True)
    say(f"installed in {time.monotonic() - started:.0f} s")


def pip_install(lock: Path) -> list[str]:
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    return ["-m", "pip", "install", *quiet, "--no-deps", "--require-hashes", "-r", str(lock)]


def run_logged(command: Sequence[str], failure: str, counted: bool = False) -> None:
    """Run *command* with its output in a log, and say now and then that it still runs."""
    folder = Path(os.environ.get("WICKETGATE_DATA") or ROOT / ".data")
    log = folder / "install.log"
    try:
        folder.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        output = log.open("wb")
    except OSError as error:
        raise SetupError(
            f"cannot write to {folder} ({error.strerror}): give this user the folder, "
            "or name another one with WICKETGATE_DATA"
        ) from None
    with output:
        inherited = {k: v for k, v in os.environ.items() if k not in {"PYTHONHOME", "PYTHONPATH"}}
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**inherited, "PIP_USER": "0"},
        )
        try:
            wait_aloud(process, log, counted)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        for line in log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]:
            say(f"    {line}")
        raise SetupError(f"{failure} (the whole log: {log})")


def wait_aloud(process: subprocess.Popen[bytes], log: Path, counted: bool) -> None:
    started = time.monotonic()
    while True:
        try:
            process.wait(PROGRESS_SECONDS)
        except subprocess.TimeoutExpired:
            seconds = f"{time.monotonic() - started:.0f} s"
            if not counted:
                say(f"    still at it, {seconds}")
            else:
                text = log.read_text(errors="replace")
                unpacking = "Installing collected packages" in text
                say(
                    f"    still at it, {seconds}, {len(FETCHED.findall(text))} packages fetched"
                    f"{', unpacking them' if unpacking else ''}"
                )
        else:
            return


def run_tests(python: Path, arguments: Sequence[str]) -> int:
    """Run the checks and then the tests; the first that fails ends it with its exit code."""
    os.chdir(ROOT)
    if {"-h", "--help"}.intersection(arguments):
        return subprocess.run(
            [python, "-m", "pytest", "--help"], env=environment(), check=False
        ).returncode
    timings = []
    for name, command in (*CHECKS, ("pytest", ("pytest", *arguments))):
        say(f"== {name}")
        started = time.monotonic()
        code = subprocess.run([python, "-m", *command], env=environment(), check=False).returncode
        timings.append(f"{name} {time.monotonic() - started:.0f} s")
        if code != 0:
            say(f"deploy/test: {name} failed ({', '.join(timings)})")
            return code
    say(f"deploy/test: all passed ({', '.join(timings)})")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
