"""Making the virtual environment: once, whole, and one at a time."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
BOOTSTRAP = ROOT / "deploy" / "bootstrap.py"


@pytest.fixture(scope="session")
def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", BOOTSTRAP)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def bootstrap(module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("WICKETGATE_DATA", str(tmp_path / "data"))
    return module


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    return tmp_path / "venv"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A lock that asks for nothing, so that no index is needed."""
    file = tmp_path / "requirements.lock"
    file.write_text("# nothing\n")
    return file


@pytest.fixture(scope="session")
def made(module: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working environment, to copy from: making one takes seconds."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WICKETGATE_DATA", str(folder / "data"))
        module.make_environment(folder / "venv")
    (folder / "venv" / module.UNFINISHED).unlink()
    return folder / "venv"


@pytest.fixture
def bare(made: Path, venv: Path) -> Path:
    """A working environment without a stamp."""
    return shutil.copytree(made, venv, symlinks=True)


def test_a_ready_environment_is_left_alone(
    bootstrap: ModuleType, venv: Path, lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second run installs nothing and says nothing, on either stream."""
    python = bootstrap.ready_environment(venv, lock)
    assert python == venv / "bin" / "python"
    first = capsys.readouterr()
    assert first.out == ""
    assert first.err.splitlines()[:2] == [
        f"making a virtual environment in {venv}",
        "installing 0 packages from deploy/requirements.lock, about a minute",
    ]

    assert bootstrap.ready_environment(venv, lock) == python

    assert capsys.readouterr() == ("", "")


def test_a_changed_lock_is_installed(bootstrap: ModuleType, bare: Path, lock: Path) -> None:
    """The stamp is the lock's own hash."""
    bootstrap.ready_environment(bare, lock)
    assert bootstrap.is_ready(bare, lock)

    lock.write_text("# something else\n")

    assert not bootstrap.is_ready(bare, lock)
    bootstrap.ready_environment(bare, lock)
    assert bootstrap.is_ready(bare, lock)


def test_a_half_made_environment_is_made_again(
    bootstrap: ModuleType, bare: Path, lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What an installation that was cut off left behind is not built upon."""
    (bare / bootstrap.UNFINISHED).touch()
    (bare / "half").touch()

    bootstrap.ready_environment(bare, lock)

    assert not (bare / "half").exists()
    assert capsys.readouterr().err.splitlines()[0] == (
        f"making {bare} again: the earlier one is not whole"
    )


def test_an_environment_whose_python_is_gone_is_made_again(
    bootstrap: ModuleType, bare: Path, lock: Path
) -> None:
    """A checkout that moved to another machine recovers by itself."""
    (bare / "bin" / "python").unlink()
    (bare / "bin" / "python").symlink_to("/nowhere/python")

    assert bootstrap.runs(bootstrap.ready_environment(bare, lock).parents[1])


def test_a_folder_that_is_no_environment_is_left_alone(
    bootstrap: ModuleType, venv: Path, lock: Path
) -> None:
    """WICKETGATE_VENV may name a folder of somebody's by mistake."""
    venv.mkdir()
    (venv / "thesis.txt").touch()

    with pytest.raises(bootstrap.SetupError) as caught:
        bootstrap.ready_environment(venv, lock)

    assert str(caught.value) == (
        f"{venv} is not a virtual environment and will not be overwritten: "
        "move it away, or name another place with WICKETGATE_VENV"
    )
    assert (venv / "thesis.txt").exists()


def test_pips_last_words_are_shown_only_on_failure(
    bootstrap: ModuleType,
    bare: Path,
    lock: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A failing installation shows the end of its log and where the whole of it is."""
    lock.write_text("not a requirement\n")

    with pytest.raises(bootstrap.SetupError) as caught:
        bootstrap.ready_environment(bare, lock)

    assert str(caught.value) == (
        "pip could not install them; is the package index reachable? "
        f"(the whole log: {tmp_path}/data/install.log)"
    )
    assert "Invalid requirement" in capsys.readouterr().err
    assert (bare / bootstrap.UNFINISHED).exists()


def test_a_python_without_venv_names_the_package(
    bootstrap: ModuleType, venv: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian splits the module off into a package of its own."""
    monkeypatch.setitem(sys.modules, "ensurepip", None)

    with pytest.raises(bootstrap.SetupError) as caught:
        bootstrap.ready_environment(venv, lock)

    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert str(caught.value) == (
        f"Python {version} ({sys.executable}) cannot make a virtual environment: "
        f"apt install python3-venv (or python{version}-venv), then run this again"
    )


def test_two_at_once_make_one_environment(tmp_path: Path, venv: Path, lock: Path) -> None:
    """The second waits for the first and then finds everything done."""
    script = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import bootstrap\n"
        "bootstrap.ready_environment(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))\n"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-B", "-c", script, BOOTSTRAP.parent, venv, lock],
            env={**os.environ, "WICKETGATE_DATA": str(tmp_path / "data")},
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    told = [process.communicate(timeout=120)[1] for process in both]

    assert [process.returncode for process in both] == [0, 0]
    assert sum("making a virtual environment" in text for text in told) == 1
    assert sum("waiting for another installation" in text for text in told) == 1


def test_a_demo_that_was_cut_off_leaves_the_environment_whole(
    bootstrap: ModuleType, bare: Path, lock: Path, tmp_path: Path
) -> None:
    """The demo's packages are added to an environment in use."""
    bootstrap.ready_environment(bare, lock)
    addition = tmp_path / "demo.lock"
    addition.write_text("not a requirement\n")

    with pytest.raises(bootstrap.SetupError):
        bootstrap.ready_environment(bare, addition)

    assert bootstrap.is_ready(bare, lock)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        pytest.param(
            "exit 1", "which does not run as a Python: name a 3.11, 3.12 or 3.13, or unset it",
            id="not-a-python",
        ),
        pytest.param(
            "exit 0", "which does not run as a Python: name a 3.11, 3.12 or 3.13, or unset it",
            id="says-nothing",
        ),
        pytest.param(
            "echo 3.9", "which is Python 3.9: name a 3.11, 3.12 or 3.13, or unset it", id="old"
        ),
        pytest.param(None, "and there is no such program", id="not-there"),
    ],
)  # fmt: skip
def test_a_python_that_is_named_and_unfit_is_told(
    body: str | None, told: str, tmp_path: Path
) -> None:
    """The variable is in the line; no other Python is taken in its place."""
    python = tmp_path / "my python"
    if body is not None:
        python.write_text(f"#!/bin/sh\n{body}\n")
        python.chmod(0o755)
    result = subprocess.run(
        [ROOT / "deploy" / "up"],
        env={"PATH": "/usr/bin:/bin", "WICKETGATE_PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"deploy/up: WICKETGATE_PYTHON names {python}, {told}\n"


def test_pytests_help_comes_without_the_checks() -> None:
    """Who asks for help does not wait for mypy."""
    script = "import sys, bootstrap; sys.exit(bootstrap.run_tests(sys.executable, ['--help']))"
    result = subprocess.run(
        [sys.executable, "-B", "-c", script],
        env={**os.environ, "PYTHONPATH": str(BOOTSTRAP.parent)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("usage: ")


def test_a_folder_of_somebody_else_names_both_variables(
    bootstrap: ModuleType, tmp_path: Path
) -> None:
    """The next complaint would be of the data folder."""
    (tmp_path / "file").touch()

    with (
        pytest.raises(bootstrap.SetupError) as caught,
        bootstrap.one_at_a_time(tmp_path / "file" / "venv"),
    ):
        pass

    assert str(caught.value) == (
        f"cannot write to {tmp_path}/file (File exists): clone it for yourself, "
        "or name places of your own with WICKETGATE_VENV and WICKETGATE_DATA"
    )


def test_without_a_fitting_python_it_says_which_it_needs(tmp_path: Path) -> None:
    """The shell part ends with one line when it finds no Python to hand over to."""
    (tmp_path / "dirname").symlink_to("/usr/bin/dirname")
    result = subprocess.run(
        ["/bin/sh", ROOT / "deploy" / "up"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        "deploy/up: needs Python 3.11, 3.12 or 3.13 and found none: install one (Debian, Ubuntu: "
        "apt install python3 python3-venv), or name it with WICKETGATE_PYTHON\n"
    )


def test_ci_runs_what_a_contributor_runs() -> None:
    """CI has no steps of its own."""
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == (
        'cd "$(dirname "$0")/.." && exec deploy/test'
    )
