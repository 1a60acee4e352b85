"""A training on a made-up device, by the runner of the installed generation of MMCV.

Arguments: what to import, in this order, separated by commas ("loongkit.all" among them, or not).
Prints the losses, and how many tensors were copied ahead.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

warnings.simplefilter("ignore")

import prefetching  # noqa: E402


def main() -> None:
    with prefetching.device_of() as device, pytest.MonkeyPatch.context() as patch:
        for name in sys.argv[1].split(","):
            importlib.import_module(name)
        prefetching.make_patient(patch)
        if sys.modules["mmcv"].__version__.startswith("1."):
            runs, places = "mmcv_runs", ["mmcv.runner.epoch_based_runner"]
        else:
            runs, places = "mmengine_runs", ["mmengine.runner.loops"]
        prefetching.without_sleep(patch, *map(importlib.import_module, places))
        with tempfile.TemporaryDirectory() as folder:
            outcome = importlib.import_module(runs).train(device, Path(folder))
    if outcome.error is not None:
        raise outcome.error
    print([loss.hex() for loss in outcome.losses])
    print("copied ahead:", device.copies_ahead > 0, file=sys.stderr)


if __name__ == "__main__":
    main()
