"""Compiles a model and optimiser steps (no code is generated), and reports what dynamo did."""

import json

import torch
from torch._dynamo.utils import counters

torch.set_num_threads(1)


def problem(name, **options):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    return model, getattr(torch.optim, name)(model.parameters(), lr=1e-2, **options)


def gradients(model):
    model(torch.ones(4, 6)).square().sum().backward()


def counted():
    found = {key: dict(counters[key]) for key in ("stats", "graph_break")}
    counters.clear()
    return found


def bits(model):
    return [value.sum().item().hex() for value in model.state_dict().values()]


def steps(name):
    """Steps compiled; one of another optimiser, eager, in between must not compile them anew."""
    torch._dynamo.reset()
    model, optimizer = problem(name)
    other, eager = problem("RMSprop")
    step = torch.compile(optimizer.step, backend="eager")
    for number in range(4):
        gradients(model)
        step()
        if number == 1:
            gradients(other)
            eager.step()
    return {"bits": bits(model), "dynamo": counted()}


def whole(name):
    """A training step as one function."""
    torch._dynamo.reset()
    model, optimizer = problem(name)

    @torch.compile(backend="eager")
    def train():
        optimizer.zero_grad()
        gradients(model)
        optimizer.step()

    for _ in range(3):
        train()
    return {"bits": bits(model), "dynamo": counted()}


def forward():
    """A forward pass in one graph."""
    torch._dynamo.reset()
    model, _ = problem("SGD")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    losses = [compiled(torch.ones(n, 6)).sum().item().hex() for n in (2, 3, 4)]
    return {"bits": losses, "dynamo": counted()}


report = {"forward": forward()}
for optimizer_name in ("SGD", "AdamW", "Adam"):
    report[f"steps {optimizer_name}"] = steps(optimizer_name)
    report[f"whole {optimizer_name}"] = whole(optimizer_name)
print(json.dumps(report, indent=1))
