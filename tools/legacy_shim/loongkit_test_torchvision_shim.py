"""Lets torchvision import beside a CPU build of torch; for the legacy test environment alone.

mmcv 1.x imports torchvision for its models and transforms. The file on PyPI is compiled against
torch for CUDA: beside the CPU build its operators do not load, and then its import fails, because
it describes an operator (``nms``) that is missing. Declared here without an implementation, that
operator still raises when called, and everything else of torchvision works.

The ``.pth`` file beside this one imports it at every start of the interpreter, so it does nothing
before torchvision is imported.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class TorchvisionShim:
    """A finder that finds nothing: asked for torchvision, it first declares its operators."""

    library: torch.library.Library | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """Leave the search to the finders that follow."""
        if fullname != "torchvision":
            return
        sys.meta_path.remove(self)
        import torch

        if torch.version.cuda is None and _is_built_for_cuda():
            self.library = torch.library.Library("torchvision", "DEF")
            for schema in _SCHEMAS:
                self.library.define(schema)


def _is_built_for_cuda() -> bool:
    """Read that from its version, ``0.28.0+cu130``; a build that fits has its operators."""
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    return "+cu" in Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")


SHIM = TorchvisionShim()
sys.meta_path.insert(0, SHIM)
