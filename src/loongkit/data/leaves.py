"""The tensors of a batch, as the frameworks find them that copy batches to a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class Leaves:
    """Yields the tensors in tensors, mappings, lists and tuples, and in objects of one class.

    Args:
        kind: the framework's class of objects that hold tensors; ``of_object`` opens them.

    """

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __call__(self, value: Any) -> Iterator[torch.Tensor]:
        """Yield the tensors in a batch or in a part of one."""
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, self.kind):
            yield from self.of_object(value)
        elif isinstance(value, Mapping):
            for item in value.values():
                yield from self(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                yield from self(item)

    def of_object(self, value: Any) -> Iterator[torch.Tensor]:
        """Yield the tensors in an object of the framework's class."""
        raise NotImplementedError
