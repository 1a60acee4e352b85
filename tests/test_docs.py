"""The docs say what is: links resolve, generated parts are current, samples are real output."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import children
import pytest

from loongkit.activation import catalog, settings
from loongkit.activation.feature import Feature

ROOT = children.ROOT
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
SECTIONS = (
    "what it does",
    "when it helps",
    "what it guarantees",
    "how it was measured",
    "how to switch it off",
)

#: Hosts that a tracked file may name. A package registry, or a mirror of one, is none of them.
PUBLIC_HOSTS = {
    "www.apache.org",
    "github.com",
    "docs.pytorch.org",
    "pytorch.org",
    "docs.python.org",
    "www.w3.org",
    "peps.python.org",
    "localhost",
    "127.0.0.1",
}

TRAINING = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
"""


def page_names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def outside_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ +(.+)$", outside_code(page.read_text("utf-8")), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=page_names(PAGES))
def test_links_resolve(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", outside_code(page.read_text("utf-8"))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_the_tests_that_the_docs_name_exist() -> None:
    missing = set()
    for page in PAGES:
        for file, test in re.findall(r"`([\w/]+\.py)::(\w+)`", page.read_text("utf-8")):
            path = ROOT / "tests" / file
            if not path.is_file() or f"def {test}(" not in path.read_text("utf-8"):
                missing.add(f"{file}::{test}")
    assert missing == set()


def test_generated_parts_are_current() -> None:
    result = children.run("tools/build_docs.py", "--check", cwd=ROOT)
    assert result.status == 0, result


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what the generators read and write."""
    for folder in ("src", "tools", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "old", "new", "drifted"),
    [
        ("features/uniad.py", "level=1", "level=2", {"_index.py", "README.md", "settings.md"}),
        ("features/uniad.py", 'summary="', 'summary="now ', {"README.md", "settings.md"}),
        ("features/page_cache_limit.py", "the limit in MB", "megabytes", {"settings.md"}),
        ("activation/settings.py", "for CI: raise", "raise", {"settings.md"}),
        ("activation/versions.py", '"mmcv-lite"', '"mmcv-nano"', {"README.md"}),
    ],
)
def test_a_changed_declaration_is_noticed(
    copy: Path, file: str, old: str, new: str, drifted: set[str]
) -> None:
    changed = copy / "src" / "loongkit" / file
    text = changed.read_text("utf-8")
    assert old in text
    changed.write_text(text.replace(old, new), "utf-8")

    result = children.run("tools/build_docs.py", "--check", cwd=copy)
    assert result.status == 1, result
    named = {Path(line.split()[0]).name for line in result.out.splitlines()}
    assert drifted <= named, result

    assert children.run("tools/build_docs.py", cwd=copy).status == 0
    assert children.run("tools/build_docs.py", "--check", cwd=copy).status == 0


def test_the_reference_names_every_variable() -> None:
    reference = (ROOT / "docs" / "settings.md").read_text("utf-8")
    known = {*settings.known_variables(), *settings.INTERNAL}
    assert {name for name in known if f"`{name}`" not in reference} == set()


def test_the_docs_name_no_unknown_variable() -> None:
    known = {*settings.known_variables(), *settings.INTERNAL}
    of_the_example = "LOONGKIT_CLIP_FOREACH"
    unknown = {
        (name, page.name)
        for page in PAGES
        for name in re.findall(r"LOONGKIT_[A-Z0-9_]*[A-Z0-9]\b", page.read_text("utf-8"))
        if name not in known
        and not name.startswith(of_the_example)
        and not settings.is_service_variable(name)
    }
    assert unknown == set()


@pytest.mark.parametrize(
    "feature", [f for f in catalog.load_all() if f.implemented], ids=lambda feature: feature.name
)
def test_every_feature_has_a_page(feature: Feature) -> None:
    names = [name for name in (feature.name, feature.follows) if name]
    pages = [ROOT / "docs" / "features" / f"{name}.md" for name in names]
    page = next((page for page in pages if page.is_file()), None)
    assert page, f"none of {pages} exists"
    text = page.read_text("utf-8")
    assert feature.variable in text
    headings = [line.lstrip("# ").strip().lower() for line in re.findall(r"^##+ .+$", text, re.M)]
    assert [section for section in SECTIONS if section not in headings] == []


def test_the_sample_summary_is_what_a_training_prints(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    env = children.with_prelude(
        LOONGKIT_ALL="1", LOONGKIT_LOGDIR=str(tmp_path), CUDA_VISIBLE_DEVICES=""
    )
    result = children.run("-c", TRAINING, env=env)
    assert "fused_adamw" in result.out, result
    assert f"```\n{result.out}```" in (ROOT / "README.md").read_text("utf-8")


def test_the_example_feature_works(copy: Path) -> None:
    pytest.importorskip("torch")
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    example = page.split("```python\n")[1].split("```")[0]
    name = re.search(r'name="(\w+)"', example).group(1)
    (copy / "src" / "loongkit" / "features" / f"{name}.py").write_text(example, "utf-8")
    assert children.run("tools/build_docs.py", cwd=copy).status == 0

    clipping = TRAINING.replace(
        "    optimizer.step()",
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n    optimizer.step()",
    )
    env = children.clean_env(
        PYTHONPATH=str(copy / "src" / "loongkit" / "prelude"),
        LOONGKIT_CLIP_FOREACH="1",
        LOONGKIT_LOGDIR=str(copy),
    )
    starred = f"{name:<31}* None"
    assert starred in children.run("-c", clipping, env=env).out
    unused = children.run("-c", TRAINING, env=env).out
    assert name in unused and starred not in unused


def tracked_texts() -> dict[str, str]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = [name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]
    return {name: (ROOT / name).read_text("utf-8", "replace") for name in names}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_tracked_files_name_no_machine_and_no_registry() -> None:
    machine = re.compile(r"(?<![\w.~$}])/(?:" + "|".join(("work", "root", "Users")) + r")/[\w.-]+")
    host = re.compile(r"\b(?:https?|git|ssh)://(?:[^\s/@]*@)?([a-z0-9][a-z0-9.-]*)", re.IGNORECASE)
    found = []
    for name, text in tracked_texts().items():
        found += [(name, path) for path in machine.findall(text)]
        found += [(name, url) for url in host.findall(text) if url.lower() not in PUBLIC_HOSTS]
    assert found == []
