"""Train one example without and with Loongkit, and print both side by side.

    .venv/bin/python examples/compare.py detector

The runs take turns (without, with, with, without …), because a machine is rarely as fast in one
minute as in the next. All have the same seed. One more run, without Loongkit, starts with each
weight moved to the next representable number: by how much its losses move is what rounding alone
does to this training, the yardstick for the difference that Loongkit makes.

Each training has one thread, as under torchrun: with as many as there are cores, one other busy
process on the machine makes all of them wait for the slowest at every step.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parent / "work_dirs"
SUMMARY_TITLE = "Loongkit Feature Summary"
WARM_UP = 5  # first iterations, left out of the speed
SECONDS_BETWEEN_LINES = 5.0


class RunFailed(Exception):
    """A training ended with an error, or without what it should have written."""


@dataclass
class Run:
    """What one training told: a loss and a duration for each iteration, and its whole CPU time."""

    kind: str
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0
    summary: str = ""

    @property
    def iterations_per_second(self) -> float:
        """Speed after the first iterations."""
        timed = self.seconds[WARM_UP:] or self.seconds
        return len(timed) / sum(timed)


class Classifier:
    """The plain PyTorch classifier."""

    name = "classifier"

    def command(self, folder: Path, steps: int | None, one_ulp: bool) -> list[str]:
        """The command line of a training that writes into this folder."""
        command = [sys.executable, str(HERE / "classifier" / "train.py")]
        command += ["--losses", str(folder / "losses.json")]
        command += ["--steps", str(steps)] if steps else []
        return command + (["--init-ulp"] if one_ulp else [])

    def progress(self, line: str) -> str:
        """What to show of a line of output; empty: nothing."""
        return line if line.startswith("step ") else ""

    def read(self, folder: Path, run: Run) -> None:
        """Take losses and durations from what the training wrote."""
        record = json.loads((folder / "losses.json").read_text(encoding="utf-8"))
        run.losses, run.seconds = record["losses"], record["seconds"]


class Detector:
    """The mmdet detector, trained by the script that mmdet ships."""

    name = "detector"
    folder = "detector"
    interpreter = ".venv/bin/python"
    flags: tuple[str, ...] = ()
    steps_option = "train_cfg.max_iters"

    def command(self, folder: Path, steps: int | None, one_ulp: bool) -> list[str]:
        """The command line of a training that writes into this folder."""
        spec = find_spec("mmdet")
        if spec is None or spec.origin is None:
            raise RunFailed(f"mmdet is not installed here; run this with {self.interpreter}")
        train = Path(spec.origin).parent / ".mim" / "tools" / "train.py"
        config = "retinanet_r18_one_ulp.py" if one_ulp else "retinanet_r18_photographs.py"
        command = [sys.executable, str(train), str(HERE / self.folder / config)]
        command += ["--work-dir", str(folder), *self.flags]
        return command + (["--cfg-options", f"{self.steps_option}={steps}"] if steps else [])

    def progress(self, line: str) -> str:
        """What to show of a line of output; empty: nothing."""
        found = re.search(r"Iter\(train\) \[ *(\d+/\d+)\].* (loss: \S+)", line)
        return f"iteration {found[1]}  {found[2]}" if found else ""

    def read(self, folder: Path, run: Run) -> None:
        """Take losses and durations from MMEngine's log."""
        (scalars,) = folder.glob("*/vis_data/scalars.json")
        for line in scalars.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            run.losses.append(record["loss"])
            run.seconds.append(record["time"])
        for checkpoint in folder.glob("*.pth"):
            checkpoint.unlink()  # 150 MB each, and nobody asked for them here


class LegacyDetector(Detector):
    """The same detector with mmdet 2, trained by MMCV 1.x's runner."""

    name = "legacy"
    folder = "legacy_detector"
    interpreter = ".venv-legacy/bin/python"
    flags = ("--seed", "0", "--no-validate")
    steps_option = "runner.max_iters"

    def progress(self, line: str) -> str:
        """What to show of a line of output; empty: nothing."""
        found = re.search(r"Iter \[(\d+/\d+)\].*[ \t](loss: [^ ,]+)", line)
        return f"iteration {found[1]}  {found[2]}" if found else ""

    def read(self, folder: Path, run: Run) -> None:
        """Take losses and durations from what the example's own hook wrote."""
        for line in (folder / "losses.json").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            run.losses.append(record["loss"])
            run.seconds.append(record["time"])
        for checkpoint in folder.glob("*.pth"):
            checkpoint.unlink()


EXAMPLES: dict[str, Classifier | Detector] = {
    example.name: example for example in (Classifier(), Detector(), LegacyDetector())
}


def environment(device: str, threads: int) -> dict[str, str]:
    """The environment of every run: nothing of Loongkit's, and the CPU unless asked otherwise."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("LOONGKIT_")}
    if device == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    if threads:  # 0: as many as torch likes
        variables["OMP_NUM_THREADS"] = str(threads)
    variables["PYTHONUNBUFFERED"] = "1"  # progress as it happens
    # For the hook that moves the weights; every run has it, so that all are alike.
    paths = [str(HERE / "detector"), variables.get("PYTHONPATH", "")]
    variables["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return variables


def train(run: Run, command: list[str], variables: dict[str, str], show: str, folder: Path) -> None:
    """Run one training, show how far it is, and take its CPU time and summary.

    Raises:
        RunFailed: it ended with an error.
    """
    example = EXAMPLES[folder.parent.name]
    shown, lines = 0.0, []
    with (folder / "stderr.txt").open("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            text = example.progress(line.rstrip())
            if text and time.monotonic() - shown >= SECONDS_BETWEEN_LINES:
                shown = time.monotonic()
                print(f"  {show}  {text}", flush=True)
        # Counts the data workers too, which the training has waited for.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        tail = "".join((lines + errors.readlines())[-30:])
    if process.returncode:
        raise RunFailed(f"{shlex.join(command)} ended with {process.returncode}:\n{tail}")
    run.cpu_seconds = usage.ru_utime + usage.ru_stime
    output = "".join(lines)
    if SUMMARY_TITLE in output:
        run.summary = output[output.rfind("\n", 0, output.index(SUMMARY_TITLE)) + 1 :].rstrip()


def carry_out(arguments: argparse.Namespace) -> list[Run]:
    """Do all runs, one after another."""
    example = EXAMPLES[arguments.example]
    kinds = [
        ("without", "with") if i % 2 == 0 else ("with", "without") for i in range(arguments.pairs)
    ]
    order = [kind for pair in kinds for kind in pair]
    order += ["one ulp away"] if arguments.yardstick else []
    output = OUTPUT / example.name
    shutil.rmtree(output, ignore_errors=True)
    print(
        f"{len(order)} trainings from the same seed, one after another: without and with Loongkit"
        + (", and one from weights one ulp away (what rounding alone does)" * arguments.yardstick),
        flush=True,
    )
    runs = []
    for number, kind in enumerate(order, 1):
        folder = output / f"{number}-{kind.replace(' ', '-')}"
        folder.mkdir(parents=True)
        run = Run(kind)
        command = example.command(folder, arguments.steps, kind == "one ulp away")
        variables = environment(arguments.device, arguments.threads)
        if kind == "with":
            variables["LOONGKIT_LOGDIR"] = str(output / "log")
            variables.update(arguments.loongkit)
            command = [str(Path(sys.executable).parent / "loongkit-run"), *command]
        settings = " ".join(f"{k}={v}" for k, v in arguments.loongkit.items())
        how = {"with": f"{settings} loongkit-run", "without": "without Loongkit"}.get(kind, kind)
        print(f"[{number}/{len(order)}] {example.name}, {how}", flush=True)
        train(run, command, variables, f"[{number}/{len(order)}]", folder)
        example.read(folder, run)
        runs.append(run)
    return runs


def difference(one: Run, other: Run) -> float:
    """The largest difference between the losses of two runs."""
    return max(abs(a - b) for a, b in zip(one.losses, other.losses, strict=True))


def compare(runs: list[Run]) -> dict[str, Any]:
    """Speeds, CPU times and differences, as plain values.

    Raises:
        RunFailed: a run with Loongkit printed no summary.
    """
    by_kind = {kind: [run for run in runs if run.kind == kind] for kind in {r.kind for r in runs}}
    base, changed = by_kind["without"], by_kind["with"]
    if not all(run.summary for run in changed):
        raise RunFailed("a run with Loongkit printed no summary; see its log in work_dirs")
    result: dict[str, Any] = {"iterations": len(base[0].losses)}
    for name, group in (("without", base), ("with", changed)):
        result[name] = {
            "iterations_per_second": statistics.median(r.iterations_per_second for r in group),
            "cpu_seconds": statistics.median(r.cpu_seconds for r in group),
        }
    result["difference"] = max(difference(base[0], run) for run in changed)
    if len(base) > 1:
        result["difference_same_again"] = max(difference(base[0], run) for run in base[1:])
    if "one ulp away" in by_kind:
        result["difference_one_ulp_away"] = difference(base[0], by_kind["one ulp away"][0])
    result["summary"] = changed[0].summary
    result["runs"] = [asdict(run) for run in runs]
    return result


def show(result: dict[str, Any]) -> None:
    """Print the result for a reader."""
    base, changed = result["without"], result["with"]
    print(f"\n{result['iterations']} iterations; median of the runs of each kind\n")
    print(f"{'':28}{'without':>12}{'with Loongkit':>16}{'with/without':>15}")
    for title, key in (
        ("iterations per second", "iterations_per_second"),
        ("CPU seconds, whole run", "cpu_seconds"),
    ):
        ratio = changed[key] / base[key]
        print(f"{title:28}{base[key]:12.2f}{changed[key]:16.2f}{ratio:15.3f}")
    print("\nlargest difference of the losses from those of the first run without Loongkit")
    for title, key in (
        ("with Loongkit", "difference"),
        ("without, weights one ulp away", "difference_one_ulp_away"),
        ("without, the same again", "difference_same_again"),
    ):
        if key in result:
            print(f"{title:34}{result[key]:10.3g}")
    if "difference_one_ulp_away" in result:
        print(
            "(of the same size: rounding, carried on by the training; 0: the same to the last bit)"
        )
    print("\nWhat Loongkit printed at the end of its run:\n")
    print(result["summary"])


def parse_settings(text: str) -> dict[str, str]:
    """Read ``"LOONGKIT_ALL=1 LOONGKIT_FUSED_ADAMW=0"``."""
    pairs = [word.partition("=") for word in shlex.split(text)]
    if not all(name and equals for name, equals, _ in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 'NAME=VALUE …'")
    return {name: value for name, _, value in pairs}


def main() -> int:
    """Read the command line, do the runs, print the result; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("example", choices=sorted(EXAMPLES))
    parser.add_argument(
        "--loongkit",
        type=parse_settings,
        default={"LOONGKIT_ALL": "1"},
        metavar="SETTINGS",
        help="settings of the runs with Loongkit (default: LOONGKIT_ALL=1)",
    )
    parser.add_argument("--pairs", type=int, default=2, help="runs of each kind (default: 2)")
    parser.add_argument("--steps", type=int, help="iterations (default: the example's own)")
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="threads of a training (default: 1, as torchrun sets it; 0: torch's own number)",
    )
    parser.add_argument("--device", choices=("cpu", "any"), default="cpu")
    parser.add_argument(
        "--no-yardstick", dest="yardstick", action="store_false", help="no run one ulp away"
    )
    parser.add_argument("--json", type=Path, help="write everything to this file as well")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    if load > 0.5 * (os.cpu_count() or 1):
        print(
            f"The machine is busy (load {load:.1f}): the speeds below will say little.", flush=True
        )
    try:
        result = compare(carry_out(arguments))
    except RunFailed as error:
        print(f"compare: {error}", file=sys.stderr)
        return 1
    show(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
