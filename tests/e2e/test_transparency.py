"""What a user sees of a run that trains nothing is the same, byte for byte, with and without us.

Each program runs without Loongkit, then with the prelude and LOONGKIT_ALL unset, 0 to 3 and
`banana`, with no further setting: the log goes where it goes by default. For 1 to 3 a second run,
with a log of its own at debug level, shows that Loongkit was armed in each process that it should
be armed in.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import zipfile
from pathlib import Path

import children
import copies
import default_logs
import pytest

#: Stands for the interpreter in a command.
PYTHON = "<python>"
#: An interpreter that is not the command itself writes down its number, for its log to be found.
NOTE = "import os, sys; open('pids', 'a').write(f'{os.getpid()}\\n')\n"

FILES = {
    "script.py": (
        "import sys\n"
        "print(__name__, __file__, sys.argv, sys.path[0], sys.flags, sys.stdin.read())\n"
        "print('to stderr', file=sys.stderr)\n"
    ),
    "noting.py": f"{NOTE}print(sys.argv)\n",
    "fails.py": (
        "import json\n"
        "def inner(value):\n"
        "    return json.loads(value)\n"
        "try:\n"
        "    inner('{')\n"
        "except ValueError as error:\n"
        "    raise RuntimeError('outer') from error\n"
    ),
    "package/__init__.py": "",
    "package/__main__.py": "import sys; print(__spec__ and __spec__.name, sys.argv, sys.path[0])\n",
    "broken/torch/__init__.py": (
        "raise OSError('libcudart.so.12: cannot open shared object file: No such file')\n"
    ),
    "half_broken/torch/__init__.py": "import torch.optim.optimizer\n",
    "half_broken/torch/optim/__init__.py": "",
    "half_broken/torch/optim/optimizer.py": "raise ImportError('undefined symbol: cublasLt')\n",
    "job.sh": (
        "#!/bin/bash\n"
        '"$1" noting.py first | cat\n'
        'second=$("$1" noting.py second)\n'
        'echo "$second"; echo done >&2; exit 9\n'
    ),
    "fork.py": (
        "import os, sys\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    print('child'); sys.exit(5)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    ),
    "workers.py": (
        "import multiprocessing, sys\n"
        "def work(number):\n"
        "    return number * number\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context(sys.argv[1])\n"
        "    with context.Pool(2) as pool:\n"
        "        print(pool.map(work, range(5)))\n"
        "    failing = context.Process(target=sys.exit, args=(3,))\n"
        "    failing.start(); failing.join(); print(failing.exitcode)\n"
    ),
    "evaluates.py": (
        "import torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "torch.manual_seed(0)\n"
        "model = torch.nn.Linear(4, 2).eval()\n"
        "data = DataLoader(TensorDataset(torch.randn(12, 4)), batch_size=4, num_workers=2)\n"
        "with torch.no_grad():\n"
        "    for (batch,) in data:\n"
        "        print(model(batch).sum().item(), torch.is_grad_enabled())\n"
    ),
    "project/pyproject.toml": (
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    ),
    "project/backend.py": (
        "import shutil\n"
        "def build_wheel(folder, config_settings=None, metadata_directory=None):\n"
        "    return shutil.copy('../tiny-1.0-py3-none-any.whl', folder).rsplit('/', 1)[1]\n"
    ),
}

WHEEL = {
    "tiny.py": "",
    "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
    "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "tiny-1.0.dist-info/RECORD": (
        "tiny.py,,\ntiny-1.0.dist-info/METADATA,,\ntiny-1.0.dist-info/WHEEL,,\n"
        "tiny-1.0.dist-info/RECORD,,\n"
    ),
}

STDIN = b"print('from stdin', __name__)\n"


class Case:
    """A command; in how many processes Loongkit should be armed, and how many of them warn."""

    def __init__(self, *command: str, armed: int = 1, warn: int = 1, path: str = "") -> None:
        self.command = command
        self.armed = armed
        self.warn = warn
        self.path = path


def _kills_itself(number: int) -> Case:
    return Case(PYTHON, "-c", f"import os, time; os.kill(os.getpid(), {number}); time.sleep(60)")


CASES = {
    "code": Case(PYTHON, "-c", "import sys; print(sys.argv, sys.flags)", "argument"),
    "module": Case(PYTHON, "-m", "package", "argument"),
    "script": Case(PYTHON, "-u", "script.py", "argument"),
    "zip-application": Case(PYTHON, "application.pyz", "argument"),
    "folder": Case(PYTHON, "package", "argument"),
    "program-on-stdin": Case(PYTHON, "-"),
    "failing-script": Case(PYTHON, "fails.py"),
    "missing-script": Case(PYTHON, "there_is_none.py"),
    "syntax-error": Case(PYTHON, "-c", "def broken(:"),
    "exit-status": Case(PYTHON, "-c", "import sys; print('out'); sys.exit(3)"),
    "exit-text": Case(PYTHON, "-c", "import sys; sys.exit('the reason')"),
    "hard-exit": Case(PYTHON, "-c", "import os; print('lost'); os._exit(7)"),
    "sigterm": _kills_itself(signal.SIGTERM),
    "sigint": _kills_itself(signal.SIGINT),
    "sigkill": _kills_itself(signal.SIGKILL),
    "atexit": Case(PYTHON, "-c", "import atexit; atexit.register(print, 'last'); print('first')"),
    "closed-streams": Case("bash", "-c", '"$0" noting.py >&- 2>&-', PYTHON),
    "broken-pipe": Case("bash", "-c", '"$0" noting.py | true; echo ${PIPESTATUS[0]}', PYTHON),
    "full-disk": Case("bash", "-c", '"$0" noting.py > /dev/full', PYTHON),
    "bash-script": Case("bash", "job.sh", PYTHON, armed=2, warn=2),
    "exec": Case(PYTHON, "-c", "import os; os.execvp('bash', ['bash', '-c', 'echo $0; exit 6'])"),
    "fork": Case(PYTHON, "fork.py"),
    "torch-broken": Case(PYTHON, "-c", "import torch", path="broken"),
    "torch-half-broken": Case(PYTHON, "-c", "import torch", path="half_broken"),
    "threads": Case(
        PYTHON, "-c", "import threading as t; [t.Thread(target=print).start() for _ in range(9)]"
    ),
}
WORKERS = {
    "fork": Case(PYTHON, "workers.py", "fork"),
    "spawn": Case(PYTHON, "workers.py", "spawn", armed=4),
    "forkserver": Case(PYTHON, "workers.py", "forkserver", armed=2),
}
PIP = (PYTHON, "-m", "pip", "install", "--no-index", "--target", "target")
PIP_CASES = {
    "wheel": Case(*PIP, "tiny-1.0-py3-none-any.whl"),
    # In an isolated build environment, by a back end in the project itself: its interpreters get
    # pip's own PYTHONPATH, with a sitecustomize of pip's.
    "build-isolation": Case(*PIP, "--quiet", "./project"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all programs lie in and run in."""
    place = copies.write(tmp_path_factory.mktemp("programs"), FILES)
    with zipfile.ZipFile(place / "application.pyz", "w") as archive:
        archive.writestr("__main__.py", "import sys; print(__file__, sys.argv)\n")
    with zipfile.ZipFile(place / "tiny-1.0-py3-none-any.whl", "w") as archive:
        for name, text in WHEEL.items():
            archive.writestr(name, text)
    return place


@pytest.fixture(scope="module", autouse=True)
def usable_log_folder() -> None:
    code = "from loongkit.activation import logs; print(logs.destination())"
    result = children.run("-c", code, env=children.clean_env(PYTHONPATH=str(children.SOURCE)))
    if not result.out.startswith(default_logs.FOLDERS):
        pytest.skip(f"no folder for log files can be made here: {result.out}")


def check(case: Case, folder: Path, log_folder: Path, python: str = sys.executable) -> None:
    """Run a case in all settings and compare what the user sees of it."""

    def run(**settings: str) -> tuple[tuple[bytes, bytes, int], str]:
        shutil.rmtree(folder / "target", ignore_errors=True)
        (folder / "pids").unlink(missing_ok=True)
        own = {"PYTHONPATH": str(folder / case.path)} if case.path else {}
        env = children.with_prelude(**own, **settings) if armed else children.clean_env(**own)
        result, logged = default_logs.run(
            *words, env=env, cwd=folder, pids=folder / "pids", stdin=STDIN
        )
        return result.seen_by_user, logged

    words = [python if word == PYTHON else word for word in case.command]
    armed = False
    plain, _ = run()
    armed = True
    assert run() == (plain, "")
    for level in "0123":
        assert run(LOONGKIT_ALL=level)[0] == plain, f"LOONGKIT_ALL={level}"
    seen, logged = run(LOONGKIT_ALL="banana")
    assert seen == plain
    assert logged.count("LOONGKIT_ALL='banana'") == case.warn
    for level in "123":
        log = copies.Log(log_folder / level)
        assert run(LOONGKIT_ALL=level, **log.settings)[0] == plain
        assert len(log.armed) == len(set(log.armed)) == case.armed


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("python", children.interpreters())
def test_programs(python: str, name: str, folder: Path, tmp_path: Path) -> None:
    check(CASES[name], folder, tmp_path, python)


@pytest.mark.parametrize("method", WORKERS)
@pytest.mark.parametrize("python", sorted({sys.executable, children.interpreters()[-1]}))
def test_multiprocessing(python: str, method: str, folder: Path, tmp_path: Path) -> None:
    check(WORKERS[method], folder, tmp_path, python)


@pytest.fixture(scope="module")
def python_without_torch(tmp_path_factory: pytest.TempPathFactory) -> str:
    return copies.virtual_environment(sys.executable, tmp_path_factory.mktemp("bare"))[0]


def test_torch_absent(python_without_torch: str, folder: Path, tmp_path: Path) -> None:
    check(Case(PYTHON, "-c", "import torch"), folder, tmp_path, python_without_torch)


@pytest.fixture(scope="module")
def python_with_pip(tmp_path_factory: pytest.TempPathFactory) -> str:
    for python in (sys.executable, os.path.realpath(sys.executable), *children.interpreters()):
        if children.run("-m", "pip", "--version", python=python).status == 0:
            return python
    place = tmp_path_factory.mktemp("with_pip")
    assert children.run("-m", "venv", place).status == 0
    return str(place / "bin" / "python")


@pytest.mark.parametrize("name", PIP_CASES)
def test_pip_install(
    name: str, python_with_pip: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    check(PIP_CASES[name], folder, tmp_path, python_with_pip)
    assert (folder / "target" / "tiny.py").is_file()


def test_an_evaluation_with_data_workers(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    check(Case(PYTHON, "evaluates.py"), folder, tmp_path)
