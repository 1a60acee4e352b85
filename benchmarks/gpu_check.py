"""What only a GPU can show: run once where one exists, keep the output in docs/measurements.

    LOONGKIT_ALL=1 LOONGKIT_FUSED_ADAMW=1 loongkit-run python benchmarks/gpu_check.py > FILE

Each check prints one JSON object a line with what was found and whether it is as documented; the
first line names the date, the device and the versions. The exit status is 1 when a check fails, 2
when there is no GPU. About two minutes, and two more for each generation of MMCV that is installed:
their prefetch runs in trainings of their own, with the feature and without.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

STEPS = 100
PAIRS = 30
TRAINING = Path(__file__).resolve().with_name("_gpu_training.py")


def say(name: str, passed: bool | None = None, **found: Any) -> bool:
    """Print one line of the protocol."""
    verdict = {} if passed is None else {"passed": passed}
    print(json.dumps({"name": name, **verdict, **found}), flush=True)
    return passed is not False


def armed() -> bool:
    """The prelude has armed Loongkit, and that alone initialised no CUDA."""
    session = sys.modules.get("loongkit.activation.session")
    on = sorted(r.name for r in session.SESSION.records.values() if r.applied) if session else []
    return say("armed", bool(on) and not torch.cuda.is_initialized(), applied=on)


def parameters(seed: int) -> list[torch.nn.Parameter]:
    """About 25 million float32 parameters on the GPU, in the shapes of a ResNet's layers."""
    generator = torch.Generator("cuda").manual_seed(seed)
    shapes = [(512, 512, 3, 3)] * 10 + [(256, 128, 1, 1)] * 40 + [(256,)] * 111
    return [
        torch.nn.Parameter(torch.randn(shape, device="cuda", generator=generator))
        for shape in shapes
    ]


def give_gradients(params: list[torch.nn.Parameter], seed: int) -> None:
    """Give every parameter a fixed gradient."""
    generator = torch.Generator("cuda").manual_seed(seed)
    for param in params:
        param.grad = torch.randn(param.shape, device="cuda", generator=generator)


class StockAdamW(torch.optim.AdamW):  # type: ignore[misc]
    """A subclass, which Loongkit leaves alone: torch's own step."""


def fused_equals_stock() -> bool:
    """AdamW over fixed gradients, 100 steps: rtol 1e-5, atol 1e-7, as on the CPU."""
    worst = 0.0
    for options in ({}, {"amsgrad": True}, {"maximize": True}, {"weight_decay": 0.0}):
        stock, ours = parameters(0), parameters(0)
        optimizers = [StockAdamW(stock, **options), torch.optim.AdamW(ours, **options)]
        for step in range(STEPS):
            for params, optimizer in zip((stock, ours), optimizers, strict=True):
                give_gradients(params, step)
                optimizer.step()
        for one, other in zip(stock, ours, strict=True):
            excess = (one - other).abs() - 1e-7 - 1e-5 * one.abs()
            worst = max(worst, float(excess.max()))
    return say("fused_adamw_equals_stock", worst <= 0, worst_excess=worst, steps=STEPS)


def scaler_steps_are_skipped() -> bool:
    """GradScaler: an infinite gradient skips the step, with and without unscale_."""
    good = True
    for unscale_first in (False, True):
        params = parameters(1)[:4]
        before = [param.detach().clone() for param in params]
        optimizer, scaler = torch.optim.AdamW(params), torch.amp.GradScaler("cuda")
        scaler.scale(torch.ones((), device="cuda"))
        give_gradients(params, 0)
        assert params[0].grad is not None
        params[0].grad.view(-1)[0] = float("inf")
        if unscale_first:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        good &= all(torch.equal(a, b) for a, b in zip(before, params, strict=True))
    return say("grad_scaler_skips_infinite_steps", good)


def event_time(work: Callable[[], object]) -> float:
    """Milliseconds of GPU time of one call, by events."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def fused_speed() -> bool:
    """GPU time of the stock (foreach) step over the fused one: no promise, a measurement."""
    stock, ours = parameters(0), parameters(0)
    for params in (stock, ours):
        give_gradients(params, 0)
    one, other = StockAdamW(stock), torch.optim.AdamW(ours)
    for _ in range(5):
        one.step()
        other.step()
    ratios = sorted(event_time(one.step) / event_time(other.step) for _ in range(PAIRS))
    low, middle, high = ratios[PAIRS // 10], ratios[PAIRS // 2], ratios[-PAIRS // 10]
    return say("fused_adamw_speed", ratio=middle, low=low, high=high, unit="x baseline")


def tf32_in_force() -> bool:
    """Float32 products use TF32: allowed, and visible in the result (10 bits of mantissa)."""
    generator = torch.Generator("cuda").manual_seed(0)
    left = torch.randn(1024, 1024, device="cuda", generator=generator)
    exact = left.double() @ left.double()
    error = float(((left @ left).double() - exact).abs().max() / exact.abs().max())
    allowed = bool(torch.backends.cuda.matmul.allow_tf32)
    capable = torch.cuda.get_device_capability() >= (8, 0)
    return say(
        "tf32_in_force", allowed and (not capable or 1e-5 < error < 2e-3), relative_error=error
    )


def stars() -> bool:
    """Both features are marked effective by now, so their rows below carry a star."""
    session = sys.modules.get("loongkit.activation.session")
    names = ("fused_adamw", "allow_tf32")
    states = {name: session.SESSION.records[name].state for name in names} if session else {}
    wanted = set(states.values()) == {"effective"}
    return say("stars", wanted, states=states)


def training(framework: str, **settings: str) -> dict[str, Any]:
    """Run one training in a process of its own, with these features alone."""
    env = {name: text for name, text in os.environ.items() if not name.startswith("LOONGKIT_")}
    env |= {f"LOONGKIT_{name}": text for name, text in settings.items()}
    env["LOONGKIT_SUMMARY"] = "off"
    command = [sys.executable, str(TRAINING), framework]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def mmcv_generation() -> int:
    """Return the major version of the installed mmcv; 0 where there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # mmcv 1.x announces the next one
            import mmcv
    except ImportError:
        return 0
    return int(mmcv.__version__.partition(".")[0])


def compare_trainings(name: str, framework: str, feature: str, **both: str) -> bool:
    """Equal losses, pinned leaves, copies beside computation, up to two batches more memory."""
    try:
        stock = training(framework, **both, **{feature: "0"})
        ours = training(framework, **both, **{feature: "1"})
    except (OSError, ValueError, RuntimeError) as error:
        return say(name, False, error=str(error))
    more = (ours["peak_bytes"] - stock["peak_bytes"]) / ours["batch_bytes"]
    passed = (
        ours["losses"] == stock["losses"]
        and ours["pinned"] == len(ours["losses"])
        and ours["copies_ahead"] > len(ours["losses"]) // 2
        and ours["overlap"] > 0.5
        and more <= 2.1
    )
    return say(
        name,
        passed,
        equal_losses=ours["losses"] == stock["losses"],
        pinned_batches=ours["pinned"],
        copies_ahead=ours["copies_ahead"],
        overlap=ours["overlap"],
        more_batches_in_memory=more,
        step=ours["seconds_a_step"] / stock["seconds_a_step"],
        unit="x baseline",
    )


def prefetch_of_mmengine() -> bool:
    """MMENGINE_DATA_PREFETCH in a training by mmengine's runner."""
    if mmcv_generation() < 2:
        return say("mmengine_data_prefetch", skipped="mmcv 2.x is not installed")
    return compare_trainings("mmengine_data_prefetch", "mmengine", "MMENGINE_DATA_PREFETCH")


def prefetch_of_mmcv() -> bool:
    """DATA_PREFETCH in a training by mmcv 1.x, which DATA_CONTAINER lets train at all."""
    if mmcv_generation() != 1:
        return say("data_prefetch", skipped="mmcv 1.x is not installed")
    return compare_trainings("data_prefetch", "mmcv", "DATA_PREFETCH", DATA_CONTAINER="1")


def pinning_of_containers() -> bool:
    """DATA_CONTAINER alone: every batch of a training comes pinned."""
    if mmcv_generation() != 1:
        return say("data_container", skipped="mmcv 1.x is not installed")
    try:
        found = training("mmcv", DATA_CONTAINER="1", DATA_PREFETCH="0")
    except (OSError, ValueError, RuntimeError) as error:
        return say("data_container", False, error=str(error))
    return say(
        "data_container", found["pinned"] == len(found["losses"]), pinned_batches=found["pinned"]
    )


CHECKS = (
    armed,
    fused_equals_stock,
    scaler_steps_are_skipped,
    tf32_in_force,
    stars,
    fused_speed,
    pinning_of_containers,
    prefetch_of_mmcv,
    prefetch_of_mmengine,
)


def main() -> int:
    """Run all checks; return the exit status."""
    first = armed()
    if not torch.cuda.is_available():
        print("no GPU was found: nothing was checked", file=sys.stderr)
        return 2
    say(
        "environment",
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        device=torch.cuda.get_device_name(),
        capability=list(torch.cuda.get_device_capability()),
        torch=torch.__version__,
        cuda=torch.version.cuda,
    )
    results = [first, *(check() for check in CHECKS[1:])]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
