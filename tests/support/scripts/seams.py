"""Two features and a third party wrap DataLoader's methods; the features go in either order."""

import functools
import json
import sys

import torch
from torch.utils.data import DataLoader

CALLS = []


def noted(original):
    """Somebody else's wrapper, put on top of what stands there."""

    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        CALLS.append("third party")
        return original(*args, **kwargs)

    return wrapper


def wrap_again(name):
    original = getattr(DataLoader, name)
    setattr(DataLoader, name, noted(original))
    return original


def patcher(name):
    module = sys.modules[f"loongkit.features.{name}"]
    module.NOTE = lambda: CALLS.append(name)
    return module.PATCHER


def seen(call):
    """Who was called, and what came out."""
    CALLS.clear()
    value = call()
    return [*CALLS, value]


loader = DataLoader(torch.arange(6.0), batch_size=2)
first, second = patcher("first"), patcher("second")
below = {name: wrap_again(name) for name in ("__iter__", "__len__")}


def state():
    return {
        "iter": seen(lambda: [batch.tolist() for batch in loader]),
        "len": seen(lambda: len(loader)),
        "batches": seen(lambda: sum(1 for _ in loader)),
    }


report = {"both": state()}
(first if sys.argv[1] == "first" else second).give_up("for the test")
report["one"] = state()
(second if sys.argv[1] == "first" else first).give_up("for the test")
report["none"] = state()
for name, original in below.items():
    setattr(DataLoader, name, original)  # the third party takes its wrapper out again
report["bare"] = state()
torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]).step()
print(json.dumps(report), flush=True)
