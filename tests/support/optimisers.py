"""Runs of torch's Adam and AdamW on fixed gradients, and their comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch
from applied import Applied, applied

from loongkit.activation import states
from loongkit.features import fused_adamw

#: A scalar, an empty tensor, odd lengths around the width of vector registers, a convolution.
SHAPES = ((), (0, 3), (5,), (31, 7), (8, 3, 3, 3), (1000,))

#: The guarantee for float32.
RTOL, ATOL = 1e-5, 1e-7


@pytest.fixture
def adamw() -> Iterator[Applied]:
    """Fused AdamW at work, and still so when the test ends."""
    with applied(fused_adamw) as feature:
        yield feature
        assert feature.record.state == states.PATCHED


def parameters(
    shapes: Iterable[Sequence[int]] = SHAPES, dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[torch.nn.Parameter]:
    """Return parameters with fixed values."""
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(shape, generator=generator) for shape in shapes]
    return [torch.nn.Parameter(value.to(dtype)) for value in values]


def set_gradients(params: Iterable[torch.Tensor], step: int) -> None:
    """Give every parameter its fixed gradient of that step."""
    generator = torch.Generator().manual_seed(1000 + step)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)


def train(
    optimizer: torch.optim.Optimizer,
    steps: Iterable[int] = range(100),
    gradients: Callable[[Iterable[torch.Tensor], int], None] = set_gradients,
) -> torch.optim.Optimizer:
    """Step on fixed gradients and return the optimiser."""
    for step in steps:
        gradients(all_parameters(optimizer), step)
        optimizer.step()
    return optimizer


def all_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def assert_close(
    found: torch.optim.Optimizer,
    wanted: torch.optim.Optimizer,
    rtol: float = RTOL,
    atol: float = ATOL,
) -> None:
    """Compare parameters and state; counts, keys, types and devices must be equal."""
    pairs = zip(all_parameters(found), all_parameters(wanted), strict=True)
    for number, (param, other) in enumerate(pairs):
        torch.testing.assert_close(param, other, rtol=rtol, atol=atol, msg=f"parameter {number}")
    assert_same_dictionaries(found.state_dict(), wanted.state_dict(), rtol, atol)


def assert_same_dictionaries(
    found: dict[str, Any], wanted: dict[str, Any], rtol: float = RTOL, atol: float = ATOL
) -> None:
    """Compare state dicts: equal groups, keys, dtypes, devices, strides and step counts."""
    assert found["param_groups"] == wanted["param_groups"]
    assert found["state"].keys() == wanted["state"].keys()
    for number, values in found["state"].items():
        others = wanted["state"][number]
        assert list(values) == list(others)
        for key, value in values.items():
            other = others[key]
            assert (value.dtype, value.device, value.stride()) == (
                other.dtype,
                other.device,
                other.stride(),
            )
            if key == "step":
                assert torch.equal(value, other)
            else:
                torch.testing.assert_close(
                    value, other, rtol=rtol, atol=atol, msg=f"{number} {key}"
                )
