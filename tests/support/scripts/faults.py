"""Imports torch under features that fail in their hooks, trains, and reports what is left of them.

The feature ``snapshot`` has noted the touched classes and modules before the others came.
"""

import hashlib
import importlib
import json
import sys

import torch
from torch.utils.data import DataLoader

#: Each is imported by nothing else: the hook's exception, if any, comes out of this import.
LAZY = ("torch.utils.mkldnn", "torch.utils.mobile_optimizer")


def attempts():
    """Import each lazy module twice; report what was raised and whether it was left behind."""
    found = {}
    for name in LAZY:
        found[name] = []
        for _ in range(2):
            try:
                importlib.import_module(name)
            except BaseException as error:
                found[name].append([type(error).__name__, name in sys.modules])
            else:
                found[name].append(["", name in sys.modules])
    return found


def changed():
    """Names in the noted places that are not the very objects they were, added ones included.

    torch itself wraps the step of an optimiser class when it makes the first one.
    """
    snapshot = sys.modules.get("loongkit.features.snapshot")
    found = []
    for owner, before in getattr(snapshot, "BEFORE", {}).items():
        now = vars(owner)
        for name in {*before, *now}:
            was, is_now = before.get(name, found), now.get(name, found)
            if name == "step" and getattr(is_now, "hooked", False):
                is_now = is_now.__wrapped__
            if was is not is_now:
                found.append(f"{owner.__name__}.{name}")
    return sorted(found)


def train():
    torch.set_num_threads(1)
    torch.manual_seed(5)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = [(torch.rand(4), index % 3) for index in range(12)]
    losses = []
    for inputs, labels in DataLoader(data, batch_size=4, shuffle=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    parameters = b"".join(value.detach().numpy().tobytes() for value in model.parameters())
    random = torch.get_rng_state().numpy().tobytes()
    return [*losses, hashlib.sha256(parameters + random).hexdigest()]


before_training = changed()
imports = attempts()
report = {"changed": before_training, "imports": imports, "trained": train()}
report["noted"] = len(getattr(sys.modules.get("loongkit.features.snapshot"), "BEFORE", ()))
report["changed at the end"] = changed()
print(json.dumps(report, indent=1), flush=True)
