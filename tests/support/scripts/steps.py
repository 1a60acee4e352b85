"""Trains in one forked child for each way to step an optimiser, named on standard output."""

import os
import sys

import torch

model = torch.nn.Linear(3, 2)


def loss():
    return model(torch.ones(4, 3)).square().sum()


def closure():
    model.zero_grad()
    value = loss()
    value.backward()
    return value


def plain():
    closure()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def with_closure():
    torch.optim.SGD(model.parameters(), lr=0.1).step(closure)


def lbfgs():
    torch.optim.LBFGS(model.parameters(), max_iter=2).step(closure)


def own_class():
    class Descent(torch.optim.Optimizer):
        def step(self, closure=None):
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter -= 0.1 * parameter.grad

    closure()
    Descent(model.parameters(), {}).step()


def subclass():
    class Mine(torch.optim.AdamW):
        def step(self, closure=None):
            return super().step(closure)

    closure()
    Mine(model.parameters()).step()


def scaler():
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    with torch.autocast("cpu"):
        value = loss()
    scaler.scale(value).backward()
    scaler.step(optimizer)
    scaler.update()


def scheduler():
    """Schedulers wrap the step of their one optimiser."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    closure()
    optimizer.step()
    schedule.step()


def compiled():
    step = torch.compile(torch.optim.SGD(model.parameters(), lr=0.1).step, backend="eager")
    closure()
    step()


def nothing():
    closure()


def scaler_skips():
    """Every gradient is infinite: the scaler calls no step, so nothing was trained."""
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss() * float("inf")).backward()
    scaler.step(optimizer)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        child = os.fork()
        if child == 0:
            globals()[name]()
            sys.exit(0)
        print(name, child, flush=True)
        assert os.waitpid(child, 0)[1] == 0, name
