"""CPU time of one AdamW step: torch's default against the same step under Loongkit.

Two child processes build the same optimiser: one is plain, the other is started with Loongkit's
prelude and LOONGKIT_FUSED_ADAMW=1, as a user's job is. They step in turn on the same gradients,
with one thread. Afterwards both must have come to the same parameters, within the feature's bound,
and the feature must have taken effect in one and not be there in the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from _pairs import Outcome, arguments, compare, cpu_seconds, report

PRELUDE = Path(__file__).resolve().parent.parent / "src" / "loongkit" / "prelude"
#: Steps in one measurement, so that it lasts long enough for the clock.
STEPS = {"resnet50": 2, "small400": 10}
RTOL, ATOL = 1e-5, 1e-7


def resnet50() -> list[tuple[int, ...]]:
    """Return the shapes of ResNet-50's 161 parameters, 25.6 million elements in all."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            kernels = [(width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            if block == 0:
                kernels.append((4 * width, channels, 1, 1))
            for kernel in kernels:
                shapes += [kernel, kernel[:1], kernel[:1]]  # convolution, batch norm's two
            channels = 4 * width
    return [*shapes, (1000, channels), (1000,)]


def small400() -> list[tuple[int, ...]]:
    """Return 400 shapes of 256 to 4096 elements."""
    return [(256 << index % 5,) for index in range(400)]


SHAPES = {"resnet50": resnet50, "small400": small400}


def work(name: str) -> None:
    """Be one side: step when told to, answer with the CPU seconds of a step.

    At "end" answer with the feature's state and the parameters' sums and samples.
    """
    import torch

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    params = []
    for shape in SHAPES[name]():
        param = torch.nn.Parameter(torch.randn(shape, generator=generator) * 0.02)
        param.grad = torch.randn(shape, generator=generator) * 0.01
        params.append(param)
    optimizer = torch.optim.AdamW(params, lr=1e-4, weight_decay=0.01)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        print(cpu_seconds(optimizer.step, STEPS[name]), flush=True)
    session = sys.modules.get("loongkit.activation.session")
    state = session.SESSION.records["fused_adamw"].state if session else "absent"
    samples = [param.detach().view(-1)[:: max(1, param.numel() // 97)].tolist() for param in params]
    print(json.dumps({"state": state, "samples": samples}), flush=True)


class Side:
    """One child process of the comparison."""

    def __init__(self, name: str, environment: dict[str, str]) -> None:
        command = [sys.executable, __file__, "--side", name]
        self._child = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self) -> float:
        """Have the child step and return its CPU seconds for a step."""
        return float(self._ask("step"))

    def end(self) -> dict[str, Any]:
        """End the child and return what it reports."""
        found: dict[str, Any] = json.loads(self._ask("end"))
        self._child.communicate(timeout=60)
        return found

    def _ask(self, word: str) -> str:
        assert self._child.stdin and self._child.stdout
        self._child.stdin.write(word + "\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        if not answer:
            raise RuntimeError(f"the child ended with status {self._child.wait()}, see above")
        return answer


def check(plain: dict[str, Any], loongkit: dict[str, Any]) -> None:
    """Make sure that the right things were compared, and that they did the same.

    Raises:
        RuntimeError: the feature was not at work on the one side alone, or the results differ.

    """
    states = plain["state"], loongkit["state"]
    if states != ("absent", "effective"):
        raise RuntimeError(f"fused_adamw is {states}; wanted absent in one, effective in the other")
    for ours, theirs in zip(loongkit["samples"], plain["samples"], strict=True):
        for found, wanted in zip(ours, theirs, strict=True):
            if abs(found - wanted) > ATOL + RTOL * abs(wanted):
                raise RuntimeError(f"a parameter became {found}; wanted {wanted}")


def measure(name: str, pairs: int) -> Outcome:
    """Return how many times faster the step is under Loongkit."""
    dropped = ("LOONGKIT_", "PYTHON")
    bare = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    activated = {
        **bare,
        "PYTHONPATH": str(PRELUDE),
        "LOONGKIT_FUSED_ADAMW": "1",
        "LOONGKIT_SUMMARY": "off",
    }
    plain, loongkit = Side(name, bare), Side(name, activated)
    for side in (plain, loongkit):
        side()  # the first step also makes the state
    outcome = compare(f"fused_adamw_{name}", plain, loongkit, pairs=pairs, unit="x baseline")
    check(plain.end(), loongkit.end())
    return outcome


def main() -> None:
    """Measure both lists and print the figures."""
    if sys.argv[1:2] == ["--side"]:
        work(sys.argv[2])
        return
    options = arguments(__doc__)
    pairs = 20 if options.quick else 60
    report([measure(name, pairs) for name in SHAPES], options)


if __name__ == "__main__":
    main()
