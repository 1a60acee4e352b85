"""Several interpreters and several versions in one job: ours by path, nothing else, or nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import children
import copies
import pytest

ANY = children.interpreters()

REPORT = """
import sys
print(sys.modules["loongkit"].__file__ if "loongkit" in sys.modules else None)
print("loongkit.activation.start" in sys.modules)
"""


def set_version(package: Path, version: str) -> None:
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n", encoding="utf-8")


@pytest.mark.parametrize("python", ANY)
def test_another_environment_gets_our_package_alone(python: str, tmp_path: Path) -> None:
    """The launcher's site-packages, full of things for another Python, are not on its path."""
    site = tmp_path / "site-packages"
    package = copies.copy_package(site)
    copies.write(site, {"only_in_the_launchers_environment.py": ""})
    other, _ = copies.virtual_environment(python, tmp_path / "other")
    job = tmp_path / "job.py"
    job.write_text(
        f"{REPORT}\nprint(sys.path)\n"
        "import importlib.util\n"
        "print(importlib.util.find_spec('only_in_the_launchers_environment'))\n"
    )
    plain = children.run(
        job, python=other, env=children.clean_env(PYTHONPATH=str(package / "prelude"))
    )
    launch = (
        f"import sys; sys.path.insert(1, {str(site)!r}); from loongkit.launcher import main; main()"
    )
    ours = children.run(*("-c", launch, other, str(job)), env=children.clean_env(LOONGKIT_ALL="3"))
    assert ours.out == plain.out.replace("None\nFalse", f"{package / '__init__.py'}\nTrue", 1)
    assert (ours.stderr, ours.status) == (b"", 0)
    assert ours.out.endswith("None\n")


@pytest.mark.parametrize("python", ANY)
def test_another_version_in_the_childs_own_environment(python: str, tmp_path: Path) -> None:
    """One job, one version: that of the prelude, also for what the child imports itself."""
    ours = copies.copy_package(tmp_path / "ours")
    other, site_packages = copies.virtual_environment(python, tmp_path / "other")
    theirs = copies.copy_package(site_packages)
    set_version(theirs, "9.9.9")
    log = copies.Log(tmp_path / "log")
    code = f"import loongkit.all, loongkit.launcher\n{REPORT}print(loongkit.__version__)"
    result = children.run(
        "-c", code, python=other, env=copies.with_copy(ours, LOONGKIT_ALL="3", **log.settings)
    )
    assert result.seen_by_user == (f"{ours}/__init__.py\nTrue\n0.1.0\n".encode(), b"", 0)
    assert log.lines("9.9.9") == []
    # Nothing asked for: its own is its own affair.
    result = children.run("-c", code, python=other, env=copies.with_copy(ours))
    assert result.out == f"{theirs}/__init__.py\nTrue\n9.9.9\n"


@pytest.mark.parametrize("python", ANY)
def test_a_child_with_another_version_steps_aside(python: str, tmp_path: Path) -> None:
    """It started with PYTHONPATH pointing at its own, below a job that runs ours."""
    ours = copies.copy_with_feature(tmp_path / "ours")
    theirs = copies.copy_with_feature(tmp_path / "theirs")
    set_version(theirs, "9.9.9")
    copies.write(
        tmp_path, {**copies.FRAMEWORK, "child.py": "import framework; print(framework.work())"}
    )
    (tmp_path / "job.py").write_text(
        "import os, subprocess, sys, framework; print(framework.work(), flush=True)\n"
        f"env = dict(os.environ, PYTHONPATH={str(theirs / 'prelude')!r})\n"
        "subprocess.run([sys.executable, 'child.py'], env=env, check=True)\n"
    )
    log = copies.Log(tmp_path / "log")
    env = copies.with_copy(ours, LOONGKIT_ALL="1", **log.settings)
    result = children.run("job.py", python=python, env=env, cwd=tmp_path)
    assert result.seen_by_user == (b"patched work\nwork\n", b"", 0)
    (line,) = log.lines("steps aside")
    assert "9.9.9" in line and "0.1.0" in line and " DEBUG " in line
    assert len(log.armed) == 1


@pytest.mark.parametrize("python", ANY)
@pytest.mark.parametrize("method", ["subprocess", "spawn", "forkserver"])
def test_an_upgrade_under_a_running_job(python: str, method: str, tmp_path: Path) -> None:
    """Children that start after it read the new files: they run, without Loongkit, and quietly."""
    package = copies.copy_with_feature(tmp_path / "site")
    job = {
        "child.py": "import framework; print(framework.work(), flush=True)\ndef run(): pass\n",
        "job.py": (
            "import multiprocessing, subprocess, sys\n"
            "from pathlib import Path\n"
            "if __name__ == '__main__':\n"
            f"    Path({str(package / '__init__.py')!r}).write_text('__version__ = \"9.9.9\"')\n"
            "    if sys.argv[1] == 'subprocess':\n"
            "        subprocess.run([sys.executable, 'child.py'], check=True)\n"
            "    else:\n"
            "        context = multiprocessing.get_context(sys.argv[1])\n"
            "        import child\n"
            "        worker = context.Process(target=child.run)\n"
            "        worker.start(); worker.join()\n"
        ),
    }
    copies.write(tmp_path, {**copies.FRAMEWORK, **job})
    log = copies.Log(tmp_path / "log")
    env = copies.with_copy(package, LOONGKIT_ALL="1", **log.settings)
    result = children.run("job.py", method, python=python, env=env, cwd=tmp_path)
    lines = ["work"] if method == "subprocess" else ["patched work", "work"]
    assert (result.out.split("\n")[:-1], result.err, result.status) == (lines, "", 0)
    assert len(log.armed) == 1
    assert len(log.lines("steps aside")) == 1


@pytest.mark.parametrize("python", ANY)
def test_uninstalled_under_a_running_job(python: str, tmp_path: Path) -> None:
    """What the parent still has to load of ours is gone: its imports go on, and so do children."""
    package = copies.copy_with_feature(tmp_path / "site")
    copies.write(tmp_path, copies.FRAMEWORK)
    shutil.copytree(children.ROOT / "tests/support/stub_torch", tmp_path, dirs_exist_ok=True)
    code = (
        "import shutil, subprocess, sys\n"
        f"shutil.rmtree({str(package)!r})\n"
        "import framework, torch; print(framework.work(), flush=True)\n"
        "torch.optim.SGD().step()\n"
        "subprocess.run([sys.executable, '-c', 'print(1)'], check=True)\n"
    )
    log = copies.Log(tmp_path / "log")
    env = copies.with_copy(package, LOONGKIT_ALL="1", **log.settings)
    result = children.run("-c", code, python=python, env=env, cwd=tmp_path)
    assert result.seen_by_user == (b"work\n1\n", b"", 0)
    assert log.lines(" ERROR ") != []


@pytest.mark.parametrize("python", [*ANY, *children.older_interpreters()])
@pytest.mark.parametrize("left", ["nothing", "prelude", "empty-package"])
def test_a_stale_path_after_uninstalling(python: str, left: str, tmp_path: Path) -> None:
    package = copies.copy_package(tmp_path / "site")
    theirs = copies.write(
        tmp_path / "theirs", {"sitecustomize.py": "import sys\nsys.stdout.write('theirs\\n')\n"}
    )
    env = copies.with_copy(package, theirs, LOONGKIT_ALL="3", LOONGKIT_STRICT="1")
    if left == "nothing":
        shutil.rmtree(package)
    else:
        for path in package.iterdir():
            if path.name == "prelude" or (left == "empty-package" and path.name == "__init__.py"):
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    result = children.run("-c", "import sys; sys.stdout.write('job\\n')", python=python, env=env)
    assert result.seen_by_user == (b"theirs\njob\n", b"", 0)


@pytest.mark.parametrize("python", children.older_interpreters())
def test_an_old_python_below_a_job(python: str) -> None:
    """A Python 2 tool started by the training script: it inherits PYTHONPATH and every setting."""
    code = (
        "import subprocess, sys\n"
        f"done = subprocess.run([{python!r}, '-c', 'print(2)'], stdout=-1, stderr=-1)\n"
        "print(done.returncode, done.stdout, done.stderr)\n"
    )
    result = children.run("-c", code, env=children.with_prelude(LOONGKIT_ALL="3"))
    assert result.seen_by_user == (b"0 b'2\\n' b''\n", b"", 0)


#: How a job may have something else of our name, and how it is started.
THEIRS = {
    "package": ("loongkit/__init__.py", ["job.py"]),
    "module": ("loongkit.py", ["job.py"]),
    "module-run": ("loongkit.py", ["-m", "job"]),
    "code": ("loongkit/__init__.py", ["-c", "import job"]),
    "folder": ("loongkit.py", ["."]),
    "on-pythonpath": ("lib/loongkit.py", ["job.py"]),
}


@pytest.mark.parametrize("python", ANY)
@pytest.mark.parametrize("name", THEIRS)
def test_another_package_of_our_name_is_the_job_s(name: str, python: str, tmp_path: Path) -> None:
    """A job that imports it gets it, as without us: Loongkit says why it stays off, once."""
    file, words = THEIRS[name]
    job = (
        f"{REPORT}import loongkit, subprocess\nprint(loongkit.OWN, sorted(m for m in sys.modules if"
        " 'loongkit' in m), len(sys.meta_path))\n"
        "if not sys.argv[1:]: subprocess.run([sys.executable, *{words!r}, 'child'], check=True)\n"
    ).replace("{words!r}", repr(words))
    copies.write(tmp_path, {file: "OWN = 'theirs'\n", "job.py": job, "__main__.py": "import job\n"})
    lib = str(tmp_path / "lib")
    log = copies.Log(tmp_path / "log")
    env = children.with_prelude(LOONGKIT_ALL="1", PYTHONPATH=lib, **log.settings)
    plain = children.run(
        *words, python=python, env=children.clean_env(PYTHONPATH=lib), cwd=tmp_path
    )
    result = children.run(*words, python=python, env=env, cwd=tmp_path)
    assert plain.status == 0 and "theirs" in plain.out, plain
    assert result.seen_by_user == plain.seen_by_user
    (line,) = log.text.splitlines()
    assert " WARNING " in line and f"called loongkit, {tmp_path / file}, and" in line


def test_a_folder_of_our_name_that_is_no_package_is_in_nobody_s_way(tmp_path: Path) -> None:
    """Such as a checkout of Loongkit in the working directory."""
    copies.write(tmp_path, {"loongkit/README.md": "", "job.py": REPORT})
    result = children.run("job.py", env=children.with_prelude(LOONGKIT_ALL="1"), cwd=tmp_path)
    package = children.PRELUDE.parent
    assert result.seen_by_user == (f"{package}/__init__.py\nTrue\n".encode(), b"", 0)


@pytest.mark.parametrize("python", ANY)
def test_one_that_was_imported_before_the_prelude(python: str, tmp_path: Path) -> None:
    """A .pth file that imports some other loongkit: it stays, and nothing is said or broken."""
    other, site_packages = copies.virtual_environment(python, tmp_path / "other")
    copies.write(site_packages, {"loongkit/__init__.py": "", "early.pth": "import loongkit\n"})
    result = children.run("-c", REPORT, python=other, env=children.with_prelude(LOONGKIT_ALL="1"))
    expected = f"{site_packages}/loongkit/__init__.py\nFalse\n"
    assert result.seen_by_user == (expected.encode(), b"", 0)
