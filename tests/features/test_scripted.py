"""torch.distributed.optim scripts functions of torch.optim that Loongkit wraps."""

from __future__ import annotations

import children
import pytest

pytest.importorskip("torch")

SCRIPT = """
import warnings
warnings.simplefilter("ignore")
import torch
import torch.distributed.optim  # scripts functional Adam and AdamW at import
from torch.distributed.optim.functional_adamw import _FunctionalAdamW

weight = torch.nn.Parameter(torch.ones(3))
functional = torch.jit.script(_FunctionalAdamW([weight]))
functional.step([torch.ones(3)])

print(weight.tolist())
"""


def test_functional_optimisers_are_scripted_and_step_as_without_us(tmp_path):
    stock = children.run("-c", SCRIPT)
    assert stock.status == 0, stock
    ours = children.run(
        "-c", SCRIPT, env=children.with_prelude(LOONGKIT_ALL="1", LOONGKIT_LOGDIR=str(tmp_path))
    )
    assert ours.seen_by_user == stock.seen_by_user, ours
