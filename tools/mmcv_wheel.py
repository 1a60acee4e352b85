"""Build mmcv's operators for the CPU, once for each torch and Python, and keep the wheel."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from setup_steps import SetupError, Steps, output_of

OBJECTS = 77  # how many sources mmcv compiles for the CPU, for the progress line


def mmcv_wheel(steps: Steps, python: Path, requirement: str, cache: Path, build: Path) -> Path:
    """Path of a wheel of mmcv with compiled operators; built where the cache has none.

    pip would take a wheel that was built against one torch for every other one too, hence a
    cache of our own, with a folder for each mmcv, torch, Python and kind of machine.

    Args:
        steps: runs the commands.
        python: the interpreter of an environment that holds torch, setuptools and wheel.
        requirement: for example ``mmcv==2.1.0``.
        cache: where wheels are kept.
        build: a folder to build in; emptied before, removed afterwards.

    Raises:
        SetupError: no compiler, no header of Python, or the build failed.
    """
    torch = output_of(python, "import importlib.metadata as m; print(m.version('torch'))")
    tag = output_of(python, "import sys; print('cp%d%d' % sys.version_info[:2])")
    name = f"{requirement.replace('==', '-')}-torch-{torch}-{tag}-{platform.machine()}"
    folder = cache / name
    found = sorted(folder.glob("*.whl"))
    if found:
        steps.say(f"mmcv was built before: {folder}")
        return found[0]
    compiler = find_compiler()
    _check_python_header(python)
    shutil.rmtree(build, ignore_errors=True)
    (build / "tmp").mkdir(parents=True)
    header = _precompiled_header(steps, python, build, compiler)
    _build(steps, python, requirement, build, header)
    wheel = _keep(next(build.glob("*.whl")), folder)
    shutil.rmtree(build)
    return wheel


def find_compiler() -> str:
    """Path of the C++ compiler.

    Raises:
        SetupError: there is none.
    """
    name = os.environ.get("CXX") or "g++"
    found = shutil.which(name)
    if found is None:
        raise SetupError(
            f"{name} was not found; mmcv's operators are compiled here. Install a C++17 compiler "
            "(Debian: apt-get install g++; Fedora: dnf install gcc-c++) or name one in CXX."
        )
    return found


def _check_python_header(python: Path) -> None:
    include = output_of(python, "import sysconfig; print(sysconfig.get_path('include'))")
    if not Path(include, "Python.h").exists():
        raise SetupError(
            f"{include}/Python.h was not found; compiling mmcv's operators needs it. Install "
            "the headers of this Python (Debian: apt-get install python3.11-dev)."
        )


def _precompiled_header(steps: Steps, python: Path, build: Path, compiler: str) -> list[str]:
    """Compiler flags that include torch's headers precompiled; none where that fails.

    Every source of mmcv includes them: precompiled, the build takes a quarter of the time.
    """
    header = build / "torch_types.h"
    header.write_text("#include <torch/types.h>\n", encoding="utf-8")
    includes = output_of(
        python,
        "import sysconfig, torch.utils.cpp_extension as c\n"
        "print('\\n'.join(c.include_paths() + [sysconfig.get_path('include')]))",
    ).splitlines()
    # The same flags as for the sources: g++ passes over a header made with other ones.
    command = [compiler, "-O1", "-g0", "-w", "-fPIC", "-std=c++17"]
    command += ["-DTORCH_API_INCLUDE_EXTENSION_H", "-DTORCH_EXTENSION_NAME=_ext"]
    command += [f"-I{path}" for path in includes]
    command += ["-x", "c++-header", str(header), "-o", f"{header}.gch"]
    try:
        steps.run("precompile torch's headers", command)
    except SetupError as error:
        steps.say(f"going on without precompiled headers, which takes longer ({error})")
        return []
    return ["-include", str(header)]


def _build(steps: Steps, python: Path, requirement: str, build: Path, header: list[str]) -> None:
    def progress() -> str:
        return f", {len(list(build.rglob('*.o')))} of {OBJECTS} objects compiled"

    variables = {
        "MMCV_WITH_OPS": "1",
        "MAX_JOBS": os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1),
        "CUDA_VISIBLE_DEVICES": "",  # operators for the CPU only, on every machine
        "TMPDIR": str(build / "tmp"),
        "CFLAGS": " ".join(["-O1", "-g0", "-w", *header]),
    }
    command = [str(python), "-m", "pip", "wheel", "--no-cache-dir", "--no-deps"]
    command += ["--no-build-isolation", "--no-binary", "mmcv,mmcv-full", "-w", str(build)]
    title = f"build {requirement} (2 to 4 minutes on 2 cores)"
    try:
        steps.run(title, [*command, requirement], variables, progress)
    except SetupError:
        if not header:
            raise
        steps.say("trying again without precompiled headers (about 12 minutes on 2 cores)")
        _build(steps, python, requirement, build, [])


def _keep(wheel: Path, folder: Path) -> Path:
    """Copy the wheel into the cache so that a stopped copy never looks like a whole one."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (wheel.name + ".partial")
    shutil.copyfile(wheel, partial)
    return partial.replace(folder / wheel.name)
