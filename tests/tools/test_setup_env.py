"""The set-up tool: what it takes from pip's configuration, and how it fails."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
setup_env = importlib.import_module("setup_env")
mmcv_wheel = importlib.import_module("mmcv_wheel")
setup_steps = importlib.import_module("setup_steps")
sys.path.remove(str(ROOT / "tools"))


@pytest.fixture
def pip_configuration(monkeypatch, tmp_path):
    """Write the configuration file that pip reads last, with no variable of the machine's set."""
    for pip_name, (uv_name, _) in setup_env.UV_NAMES_OF_PIP_SETTINGS.items():
        monkeypatch.delenv("PIP_" + pip_name.upper().replace("-", "_"), raising=False)
        monkeypatch.delenv(uv_name, raising=False)
    path = tmp_path / "pip.conf"
    monkeypatch.setenv("PIP_CONFIG_FILE", str(path))

    def write(text: str) -> None:
        path.write_text(text, encoding="utf-8")

    return write


def test_uv_takes_what_is_configured_for_pip(pip_configuration):
    pip_configuration("[global]\nfind-links = /a /b\nextra-index-url =\n  file:///c\n  file:///d\n")
    variables = setup_env.uv_variables(sys.executable)
    assert variables["UV_FIND_LINKS"] == "/a,/b"
    assert variables["UV_INDEX"] == "file:///c file:///d"
    assert variables["UV_INDEX_STRATEGY"] == "unsafe-best-match"


def test_environment_wins_over_pips_file_and_uvs_own_over_both(pip_configuration, monkeypatch):
    pip_configuration("[global]\nfind-links = /a\n[install]\nconstraint = /c.txt\n")
    monkeypatch.setenv("PIP_FIND_LINKS", "/b")
    variables = setup_env.uv_variables(sys.executable)
    assert variables["UV_FIND_LINKS"] == "/b"
    assert variables["UV_CONSTRAINT"] == "/c.txt"
    monkeypatch.setenv("UV_FIND_LINKS", "/uv")
    assert "UV_FIND_LINKS" not in setup_env.uv_variables(sys.executable)


def test_a_missing_python_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(setup_steps.SetupError, match=r"Python 3\.99 was not found.*pyenv install"):
        setup_env.find_python("3.99")


def test_a_python_of_pyenv_is_found(monkeypatch, tmp_path):
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = tmp_path / "versions" / f"{version}.99" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    assert setup_env.find_python(version) == str(folder / "python")


def test_a_missing_compiler_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(setup_steps.SetupError, match=r"g\+\+ was not found.*apt-get install g\+\+"):
        mmcv_wheel.find_compiler()


def test_too_little_disk_says_how_much_is_wanted(monkeypatch):
    monkeypatch.setattr(setup_env, "DISK_GIB_WANTED", 10**9)
    with pytest.raises(setup_steps.SetupError, match=r"GiB are free.*1000000000 GiB are wanted"):
        setup_env.check_disk()


def test_a_failed_step_shows_the_end_of_its_output(tmp_path, capsys):
    log = tmp_path / "log.txt"
    steps = setup_steps.Steps(tmp_path, log)
    steps.run("fine", [sys.executable, "-c", "print('before')"])
    code = "import sys; print('the reason'); sys.exit(3)"
    with pytest.raises(setup_steps.SetupError, match="'broken' failed with status 3") as caught:
        steps.run("broken", [sys.executable, "-c", code])
    assert "the reason" in str(caught.value)
    assert "before" not in str(caught.value)
    assert str(log) in str(caught.value)
    assert log.read_text(encoding="utf-8") == "before\nthe reason\n"
    assert [line.split("] ")[1] for line in capsys.readouterr().out.splitlines()] == [
        "fine",
        "broken",
    ]


def test_a_long_step_shows_that_it_lives(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(setup_steps, "HEARTBEAT_SECONDS", 0.1)
    steps = setup_steps.Steps(tmp_path, tmp_path / "log.txt")
    command = [sys.executable, "-c", "import time; time.sleep(1)"]
    steps.run("slow", command, progress=lambda: ", half done")
    assert ", half done" in capsys.readouterr().out


def test_a_wheel_in_the_cache_is_not_built_again(tmp_path, monkeypatch):
    monkeypatch.setattr(
        mmcv_wheel, "output_of", lambda python, code: "1.0" if "torch" in code else "cp39"
    )
    monkeypatch.setattr(mmcv_wheel.platform, "machine", lambda: "riscv")
    folder = tmp_path / "mmcv-9.9-torch-1.0-cp39-riscv"
    folder.mkdir()
    wheel = folder / "mmcv-9.9.whl"
    wheel.touch()
    (folder / "mmcv-9.9.whl.partial").touch()
    steps = setup_steps.Steps(tmp_path, tmp_path / "log.txt")
    build = tmp_path / "build"
    assert mmcv_wheel.mmcv_wheel(steps, Path("python"), "mmcv==9.9", tmp_path, build) == wheel
    assert not build.exists()
