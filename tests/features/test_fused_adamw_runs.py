"""Whole training runs with and without the fused step, and a job activated late."""

from __future__ import annotations

import jobs
import pytest
from applied import applied

from loongkit.features import fused_adamw

torch = pytest.importorskip("torch")


def losses(seed, one_ulp_off=False, steps=200):
    """The losses of a small regression trained by AdamW."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(64, 10, generator=generator)
    targets = features[:, :3].sin().sum(1, keepdim=True)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Tanh(),
        torch.nn.Linear(32, 1),
    )  # fmt: skip
    if one_ulp_off:
        with torch.no_grad():
            for param in model.parameters():
                param.copy_(torch.nextafter(param, torch.full_like(param, torch.inf)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for _ in range(steps):
        loss = (model(features) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return torch.tensor(found)


@pytest.mark.parametrize("seed", range(3))
def test_a_run_parts_no_further_than_from_a_start_one_ulp_away(seed):
    stock = losses(seed)
    assert stock[-1] < stock[0] / 10
    allowed = 3 * (losses(seed, one_ulp_off=True) - stock).abs().max()
    with applied(fused_adamw) as feature:
        fused = losses(seed)
        assert feature.marks == 200
    assert not torch.equal(fused, stock)  # another kernel did run
    assert (fused - stock).abs().max() <= allowed


LATE = """
import os
import torch
from torch.optim import Adam, AdamW

def step(optimizer, weight):
    weight.grad = torch.ones_like(weight)
    optimizer.step()

weights = [torch.nn.Parameter(torch.ones(5)) for _ in range(2)]
optimizers = [kind([weight]) for kind, weight in zip((AdamW, Adam), weights)]
step(optimizers[0], weights[0])
os.environ["LOONGKIT_FUSED_ADAMW"] = "1"
os.environ["LOONGKIT_ALLOW_TF32"] = "1"
import loongkit.all
step(optimizers[0], weights[0])
assert torch.backends.cuda.matmul.allow_tf32
assert not torch.cuda.is_initialized()
"""


def test_activation_in_the_middle_of_a_script(tmp_path):
    package_folder = str(jobs.children.SOURCE)
    job = jobs.run(tmp_path, LATE, PYTHONPATH=package_folder, LOONGKIT_LOGLEVEL="info")
    assert job.result.status == 0, job
    assert job.rows == {"allow_tf32": False, "fused_adam": False, "fused_adamw": True}
    assert not job.warnings
