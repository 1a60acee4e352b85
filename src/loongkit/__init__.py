"""Loongkit makes PyTorch and OpenMMLab training jobs faster without touching their code.

Importing this package does nothing; ``import loongkit.all``, ``loongkit-run`` or the prelude
folder on PYTHONPATH activate it, as the ``LOONGKIT_*`` environment variables say.
"""

__version__ = "0.1.0"
