"""Make a Python environment for this repository: ``python3 tools/setup_env.py main`` or ``legacy``.

Makes the virtual environment, installs the pinned packages of ``requirements/``, builds mmcv's
operators for the CPU (kept as a wheel in a cache folder), and installs Loongkit itself in place.
Running it again does only what is missing, so it can also be stopped and started again.

pip's own configuration is honoured, by pip and by uv (which does not read it by itself); a
setting of uv's own wins. ``SETUP_WHEEL_CACHE`` names another folder for the built wheels.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mmcv_wheel import mmcv_wheel
from setup_steps import SetupError, Steps, output_of

PROJECT = Path(__file__).resolve().parent.parent
CACHE = PROJECT / ".cache"
REQUIREMENTS = PROJECT / "requirements"
UV = "uv==0.13.9"
DISK_GIB_WANTED = 4


class Environment(NamedTuple):
    """One environment: its folder, its interpreter and what goes into it, in this order."""

    folder: str
    python: str
    requirements: tuple[str, ...]
    constraints: str
    nodeps: str
    mmcv: str
    #: A folder whose files go into site-packages as they are.
    site_files: str = ""


ENVIRONMENTS = {
    "main": Environment(
        folder=".venv",
        python="3.11",
        requirements=("main.txt", "dev.txt"),
        constraints="main-constraints.txt",
        nodeps="main-nodeps.txt",
        mmcv="mmcv==2.1.0",
    ),
    "legacy": Environment(
        folder=".venv-legacy",
        python="3.11",
        requirements=("legacy.txt", "dev.txt"),
        constraints="legacy-constraints.txt",
        nodeps="legacy-nodeps.txt",
        mmcv="mmcv-full==1.7.2",
        site_files="tools/legacy_shim",
    ),
}

# pip's setting -> the variable by which uv takes the same, and the separator between its values
UV_NAMES_OF_PIP_SETTINGS = {
    "find-links": ("UV_FIND_LINKS", ","),
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "no-index": ("UV_NO_INDEX", " "),
    "constraint": ("UV_CONSTRAINT", " "),
    "cert": ("SSL_CERT_FILE", " "),
}


class Setup:
    """Brings one environment up to date."""

    def __init__(self, name: str) -> None:
        self.environment = ENVIRONMENTS[name]
        self.venv = PROJECT / self.environment.folder
        self.python = self.venv / "bin" / "python"
        self.steps = Steps(PROJECT, CACHE / f"setup-{name}.log")

    def make(self) -> None:
        """Do what is missing.

        Raises:
            SetupError: something that is needed is missing, or a step failed.
        """
        packages_stamp = self.venv / ".packages-stamp"
        project_stamp = self.venv / ".project-stamp"
        packages = self._packages_hash()
        if not (self._venv_works() and _read(packages_stamp) == packages):
            check_disk()
            self._make_venv()
            self._install_packages()
            self._install_mmcv()
            self._install_site_files()
            packages_stamp.write_text(packages, encoding="utf-8")
        project = packages + _hash_files([PROJECT / "pyproject.toml"])
        if _read(project_stamp) != project:
            self._install_project()
            project_stamp.write_text(project, encoding="utf-8")
        self.steps.say(f"{self.environment.folder} is ready")

    def _packages_hash(self) -> str:
        environment = self.environment
        names = (*environment.requirements, environment.constraints, environment.nodeps)
        files = [REQUIREMENTS / name for name in names]
        if environment.site_files:
            files += sorted((PROJECT / environment.site_files).glob("*.p*"))
        tools = sorted(Path(__file__).parent / name for name in ("setup_env.py", "mmcv_wheel.py"))
        # The scripts in a virtual environment hold its absolute path.
        return f"{self.venv}\n{_hash_files([*files, *tools])}\n"

    def _venv_works(self) -> bool:
        return _version_of(str(self.python)) == self.environment.python

    def _make_venv(self) -> None:
        if not self._venv_works():
            shutil.rmtree(self.venv, ignore_errors=True)
            python = find_python(self.environment.python)
            self.steps.run("make the virtual environment", [python, "-m", "venv", str(self.venv)])
        self.steps.run("install uv", [str(self.python), "-m", "pip", "install", UV])

    def _install_packages(self) -> None:
        environment = self.environment
        arguments = ["-c", str(REQUIREMENTS / environment.constraints)]
        for name in environment.requirements:
            arguments += ["-r", str(REQUIREMENTS / name)]
        self._uv_install("install the packages", arguments)
        nodeps = ["--no-deps", "-r", str(REQUIREMENTS / environment.nodeps)]
        self._uv_install("install the packages that come without dependencies", nodeps)

    def _install_mmcv(self) -> None:
        cache = Path(os.environ.get("SETUP_WHEEL_CACHE") or CACHE / "wheels").resolve()
        build = CACHE / f"build{self.environment.folder}"
        wheel = mmcv_wheel(self.steps, self.python, self.environment.mmcv, cache, build)
        self._uv_install("install mmcv", ["--no-deps", str(wheel)])

    def _install_site_files(self) -> None:
        if not self.environment.site_files:
            return
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        target = output_of(self.python, code)
        for file in sorted((PROJECT / self.environment.site_files).glob("*.p*")):
            shutil.copy(file, target)

    def _install_project(self) -> None:
        arguments = ["--no-deps", "--no-build-isolation", "-e", str(PROJECT)]
        self._uv_install("install Loongkit in place", arguments)

    def _uv_install(self, title: str, arguments: list[str]) -> None:
        # Compiled here once: elsewhere every start would pay for it where Python may not write.
        command = [str(self.python), "-m", "uv", "pip", "install", "--compile-bytecode"]
        command += ["--python", str(self.python), *arguments]
        self.steps.run(title, command, uv_variables(str(self.python)))


def check_disk() -> None:
    """Raise SetupError where the environment would not fit."""
    free = shutil.disk_usage(PROJECT).free / 2**30
    if free < DISK_GIB_WANTED:
        raise SetupError(
            f"{free:.1f} GiB are free where {PROJECT} lies; {DISK_GIB_WANTED} GiB are wanted "
            "(10 GiB where torch comes as a CUDA build). Free some space and run this again."
        )


def find_python(version: str) -> str:
    """Path of an interpreter of that version ("3.11"): this one, one on PATH, or one of pyenv's.

    Raises:
        SetupError: there is none.
    """
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates = [sys.executable, f"python{version}"]
    candidates += [str(path) for path in sorted(root.glob(f"versions/{version}.*/bin/python"))]
    for candidate in candidates:
        if _version_of(candidate) == version:
            return candidate
    raise SetupError(
        f"Python {version} was not found (tried: {', '.join(candidates)}). Install it, "
        f"for example with 'pyenv install {version}' or 'apt-get install python{version}-venv'."
    )


def uv_variables(python: str) -> dict[str, str]:
    """Environment variables by which uv takes what is set for pip, its own settings winning."""
    listing = subprocess.run(
        [python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    settings = dict(line.split("=", 1) for line in listing.splitlines() if "=" in line)
    variables: dict[str, str] = {}
    for section in ("global", "install", ":env:"):  # a later one wins, as in pip
        for setting, (variable, separator) in UV_NAMES_OF_PIP_SETTINGS.items():
            value = settings.get(f"{section}.{setting}")
            if value is not None and variable not in os.environ:
                variables[variable] = separator.join(str(ast.literal_eval(value)).split())
    if "UV_INDEX" in variables:
        # pip takes the best version of all indexes, uv by default all versions from the first.
        variables.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    return variables


def _version_of(python: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        answer = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return answer.stdout.strip()


def _hash_files(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


@contextmanager
def only_one_at_a_time() -> Iterator[None]:
    """Hold a lock, so that two commands started together do not both set up."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "setup.lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another set-up to end", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Read the command line, make the environment; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("environment", choices=sorted(ENVIRONMENTS))
    name = parser.parse_args().environment
    try:
        with only_one_at_a_time():
            Setup(name).make()
    except SetupError as error:
        print(f"setup_env: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup_env: interrupted; run it again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
