"""A fault in any hook leaves torch exactly as it was, the job's numbers too, and is reported."""

from __future__ import annotations

import json
from pathlib import Path

import children
import jobs
import pytest

pytestmark = jobs.needs_torch

SCRIPT = jobs.SCRIPTS / "faults.py"

HEAD = """
from loongkit.activation.feature import Feature

FEATURE = Feature(name="{name}", level=1, group="operators", summary="for tests only",
                  position={position}, requires={requires})
BEFORE = {{}}
"""

#: Notes what stands in the places that the other features touch; its hooks run first.
SNAPSHOT = """
@FEATURE.when_imported("torch.optim.sgd")
def sgd(module, patcher):
    BEFORE[module] = dict(vars(module))
    BEFORE[module.SGD] = dict(vars(module.SGD))

@FEATURE.when_imported("torch.utils.data.dataloader")
def loader(module, patcher):
    BEFORE[module] = dict(vars(module))
    BEFORE[module.DataLoader] = dict(vars(module.DataLoader))

@FEATURE.when_imported("torch.nn.modules.linear")
def linear(module, patcher):
    BEFORE[module] = dict(vars(module))
    BEFORE[module.Linear] = dict(vars(module.Linear))
"""

SGD = """
def through(original, *args, **kwargs):
    return original(*args, **kwargs)

@FEATURE.when_imported("torch.optim.sgd")
def patch(module, patcher):
"""

LOADER = """
def through(original, *args, **kwargs):
    return original(*args, **kwargs)

@FEATURE.when_imported("torch.utils.data.dataloader")
def patch(module, patcher):
    patcher.wrap(module.DataLoader, "__len__", through)
    patcher.set(module.DataLoader, "loongkit_was_here", 1)
"""

LAZY = """
def through(original, *args, **kwargs):
    return original(*args, **kwargs)

@FEATURE.when_imported("torch.utils.{module}")
def patch(module, patcher):
    from torch.nn.modules import linear
    patcher.wrap(linear.Linear, "forward", through)
    patcher.set(linear, "loongkit_was_here", 1)
"""

#: Feature -> (its hooks, its version gates, how the summary's remark goes on).
FAULTS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "gate_low": (SGD + "    1 / 0", ("torch<2.0",), "skipped: found torch 2."),
    "gate_absent": (SGD + "    1 / 0", ("absent>=1",), "skipped: absent is not imported; wanted"),
    "gate_broken": (SGD + "    1 / 0", ("torch>=2,~1",), "failed: ValueError: "),
    "syntax": (SGD + "    pass", (), "failed: SyntaxError: "),
    "missing": (SGD + "    patcher.wrap(module.SGD, 'stride', through)", (), "skipped: "),
    "signature": (
        SGD
        + "    patcher.wrap(module.SGD, 'zero_grad', through)\n"
        + "    patcher.wrap(module.SGD, 'step', through, like=lambda self, other: 0)",
        (),
        "skipped: torch.optim.sgd.SGD.step has no parameter 'other'",
    ),
    "second": (
        SGD
        + "    patcher.wrap(module, 'sgd', through)\n"
        + "    patcher.set(module.SGD, 'step', through)\n"
        + "    raise RuntimeError('out\\nof luck')",
        (),
        "failed: RuntimeError: out of luck",
    ),
    "leaves": (
        SGD + "    patcher.wrap(module, 'sgd', through)\n    raise SystemExit(5)",
        (),
        "failed: SystemExit: 5",
    ),
    "closes": (
        LOADER + "    patcher.set(module, '_utils', None)\n    raise GeneratorExit",
        (),
        "failed: GeneratorExit",
    ),
    "undo": (
        LOADER + "    patcher.on_undo(lambda: 1 / 0)\n    module.DataLoader.absent",
        (),
        "failed: AttributeError: type object 'DataLoader' has no attribute 'absent'",
    ),
    "at_work": (
        """
@FEATURE.when_imported("torch.utils.data.dataloader")
def patch(module, patcher):
    def iterate(original, self):
        patcher.mark()
        patcher.give_up("the batch is not what it was made for")
        return original(self)

    patcher.wrap(module.DataLoader, "__iter__", iterate)
    patcher.set(module.DataLoader, "loongkit_was_here", 1)
""",
        (),
        "failed: the batch is not what it was made for",
    ),
    "interrupted": (
        LAZY.format(module="mkldnn") + "    raise KeyboardInterrupt",
        (),
        "failed: interrupted by KeyboardInterrupt",
    ),
    "lazy": (
        LAZY.format(module="mobile_optimizer") + "    raise RuntimeError('no')",
        (),
        "failed: RuntimeError: no",
    ),
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> jobs.Package:
    sources = {"snapshot": HEAD.format(name="snapshot", position=900, requires=()) + SNAPSHOT}
    for number, (name, (hooks, requires, _)) in enumerate(FAULTS.items()):
        head = HEAD.format(name=name, position=1000 + number, requires=requires)
        sources[name] = head + hooks + "\n"
    made = jobs.Package(tmp_path_factory.mktemp("package"), **sources)
    # Broken only once the index knows it, as by an upgrade that was cut short.
    with (made.site / "loongkit" / "features" / "syntax.py").open("a") as file:
        file.write("1 +\n")
    return made


@pytest.fixture(scope="module")
def plain() -> dict[str, object]:
    """The script's report without Loongkit."""
    result = children.run(SCRIPT, env=children.clean_env(OMP_NUM_THREADS="1"))
    assert result.status == 0 and result.err == "", result
    report: dict[str, object] = json.loads(result.out)
    return report


def own(*names: str) -> dict[str, str]:
    return {f"LOONGKIT_{name.upper()}": "1" for name in names}


def run(package: jobs.Package, folder: Path, **settings: str) -> jobs.Job:
    env = jobs.environment(folder, package, {"LOONGKIT_LOGLEVEL": "info", **settings})
    return jobs.Job(children.run(SCRIPT, env=env, cwd=folder), folder / "log")


def report_of(found: jobs.Job) -> dict[str, object]:
    assert found.result.status == 0 and found.result.err == "", found
    report: dict[str, object] = json.loads(found.result.out.partition("=" * 28)[0])
    return report


def test_a_fault_in_a_hook_leaves_torch_as_it_was(
    package: jobs.Package, tmp_path: Path, plain: dict[str, object]
) -> None:
    found = run(package, tmp_path, **own("snapshot", *FAULTS))
    report = report_of(found)
    assert report["noted"] == 6
    # Only the feature that has not failed yet is still there before the training.
    at_work = ["DataLoader.__iter__", "DataLoader.loongkit_was_here"]
    assert report["changed"] == at_work
    assert report["changed at the end"] == []
    assert report["trained"] == plain["trained"]
    # The user's Ctrl-C goes through, once; every other import succeeds at once.
    assert report["imports"] == {
        "torch.utils.mkldnn": [["KeyboardInterrupt", False], ["", True]],
        "torch.utils.mobile_optimizer": [["", True], ["", True]],
    }
    remarks = found.summary.rpartition("=" * 82 + "\n")[2].splitlines()
    assert len(remarks) == len(FAULTS)
    for (name, (_, _, reason)), remark in zip(FAULTS.items(), remarks, strict=True):
        assert remark.startswith(f"{name}: {reason}"), remark
        (change,) = [
            line
            for line in found.log.splitlines()
            if f" {name}: " in line and " -> " + reason.split(":")[0] in line
        ]
        assert " INFO " in change
    assert {name for name, star in found.rows.items() if star} == {"at_work"}
    assert set(found.rows) == {"snapshot", *FAULTS}
    # A failure is a warning, a skip is not; the broken undo is an error, and did not stop the rest.
    failures = [name for name, fault in FAULTS.items() if fault[2].startswith("failed")]
    failures.remove("interrupted")
    told = [line for line in found.warnings if " has failed and was " in line]
    assert len(told) == len(failures)
    assert [line for line in found.warnings if line not in told] == [
        line for line in found.warnings if "undo: could not put something back: ZeroDiv" in line
    ]


def test_by_level_the_reasons_stand_in_the_log_alone(
    package: jobs.Package, tmp_path: Path, plain: dict[str, object]
) -> None:
    """Under LOONGKIT_STRICT too: it is for features asked for by their own variable."""
    named = {"LOONGKIT_FUSED_ADAMW": "0", "LOONGKIT_INTERRUPTED": "0", **own("lazy")}
    found = run(package, tmp_path, LOONGKIT_ALL="1", LOONGKIT_STRICT="1", **named)
    report = report_of(found)
    assert report["changed at the end"] == [] and report["noted"] == 6
    assert report["trained"] == plain["trained"]
    # The named one raises into its import; the next import of that module runs without it.
    assert report["imports"] == {
        "torch.utils.mkldnn": [["", True], ["", True]],
        "torch.utils.mobile_optimizer": [["StrictError", False], ["", True]],
    }
    assert found.summary.rpartition("=" * 82 + "\n")[2] == "lazy: failed: RuntimeError: no\n"
    assert "second: armed -> failed (RuntimeError: out\\nof luck)" in found.log


def test_strict_stops_the_job_at_a_named_feature(package: jobs.Package, tmp_path: Path) -> None:
    found = run(package, tmp_path, LOONGKIT_STRICT="1", **own("gate_low"))
    assert found.result.status == 1 and found.result.out == ""
    assert found.result.err.splitlines()[-1].startswith(
        "loongkit.activation.states.StrictError: loongkit: gate_low was asked for by "
        "LOONGKIT_GATE_LOW and is skipped: found torch 2."
    )
    late = run(package, tmp_path, LOONGKIT_STRICT="1", **own("at_work"))
    assert late.result.status == 1
    assert "StrictError: loongkit: at_work was asked for" in late.result.err
    assert late.summaries == 0, "no step was taken"
