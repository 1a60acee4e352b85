"""Prefetching on a made-up device: copies that the model waits for, and the memory they take.

There is no GPU in this comparison. The device of tests/support/fake_device.py has a clock of its
own on which the copy of a batch takes as long as the model's step; the runner, the preprocessor or
the scatter on it are the framework's own. The baseline is that code without the feature, with the
same pinned batches. Time on that clock is exact, so one run a side says it all.

Runs under mmcv 2.x with mmengine and under mmcv 1.x, whichever is installed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _pairs import Outcome, arguments, report

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "support")]
warnings.simplefilter("ignore")  # mmcv 1.x announces the next major version

STEPS = 60


def support(name: str) -> Any:
    """Return a module of tests/support."""
    return importlib.import_module(name)


class Side:
    """One training of some epochs: exposed seconds, and the peak of batches on the device."""

    def __init__(self, framework: Framework, feature: bool, epochs: int) -> None:
        prefetching = support("prefetching")
        length = STEPS * prefetching.BATCH_SIZE // epochs
        device = prefetching.device_of()
        with tempfile.TemporaryDirectory() as folder, device, framework.applied(feature):
            outcome = framework.train(
                device, Path(folder), length=length, epochs=epochs, pin_memory=True
            )
        if outcome.error is not None:
            raise outcome.error
        self.losses = outcome.losses
        self.exposed = prefetching.exposed(device)
        self.peak = device.peak / prefetching.IMAGE_BYTES
        self.steady = max(outcome.peaks) / prefetching.IMAGE_BYTES
        gc.collect()
        assert device.alive == 0


class Framework:
    """One generation of MMCV, with the module of its feature."""

    def __init__(self, name: str, train: Callable[..., Any], features: list[Any]) -> None:
        self.name = name
        self.train = train
        self.features = features

    @contextlib.contextmanager
    def applied(self, feature: bool) -> Any:
        """Apply what the feature needs, and the feature itself (the last) or not."""
        with contextlib.ExitStack() as stack:
            for module in self.features if feature else self.features[:-1]:
                stack.enter_context(support("applied").applied(module))
            yield


def installed(patch: pytest.MonkeyPatch) -> Framework:
    """Return the generation of MMCV that is installed."""
    import mmcv

    prefetching = support("prefetching")
    prefetching.make_patient(patch)
    if mmcv.__version__.startswith("1."):
        from mmcv.runner import epoch_based_runner

        from loongkit.features import data_container, data_prefetch

        prefetching.without_sleep(patch, epoch_based_runner)
        return Framework(
            "data_prefetch", support("mmcv_runs").train, [data_container, data_prefetch]
        )
    from mmengine.runner import loops

    from loongkit.features import mmengine_data_prefetch

    prefetching.without_sleep(patch, loops)
    return Framework(
        "mmengine_data_prefetch", support("mmengine_runs").train, [mmengine_data_prefetch]
    )


def figures(framework: Framework) -> list[Outcome]:
    """Compare a training with the feature with one without."""
    found = []
    for epochs in (1, 3):
        stock, ours = Side(framework, False, epochs), Side(framework, True, epochs)
        assert stock.losses == ours.losses
        name = f"{framework.name}_exposed_copies_{epochs}_epochs_of_{STEPS // epochs}"
        found.append(Outcome.of(name, [ours.exposed / stock.exposed]))
        if epochs == 1:
            unit = "batches on the device"
            found.append(Outcome.of(f"{framework.name}_peak_stock", [stock.peak], unit))
            found.append(Outcome.of(f"{framework.name}_peak", [ours.peak], unit))
            found.append(Outcome.of(f"{framework.name}_steady_state", [ours.steady], unit))
    return found


def main() -> None:
    """Compare, with the framework that is installed."""
    options = arguments(__doc__)
    with pytest.MonkeyPatch.context() as patch:
        report(figures(installed(patch)), options)


if __name__ == "__main__":
    main()
