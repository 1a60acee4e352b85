"""The transforms that the format stage knows, by what they do with images.

A class counts as known only where every class that it is made of has a body in the table, with the
same methods by their fingerprints, and where the names that these use mean what they are to mean.
The texts are those of mmdet 2.12 to 2.28, mmseg 0.14 to 0.30, mmdet3d 0.15 to 1.0.0rc6, BEVFormer,
UniAD, Sparse4D and SparseDrive.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, NamedTuple

from loongkit.activation import seams
from loongkit.images.fingerprint import class_fingerprint, fingerprint, own_function

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: Reads the images of all cameras, stacks them by ``np.stack`` and hands out views of the stack.
LOAD = "load"
#: Puts new images in the place of the old ones, the same for sources of any strides.
REPLACE = "replace"
#: Does so by ``mmcv.imnormalize`` alone.
NORMALIZE = "normalize"
#: Pads by ``mmcv.impad`` or ``mmcv.impad_to_multiple`` alone.
PAD = "pad"
#: Makes contiguous planes of the images, and leaves none of them behind.
FORMAT = "format"
#: Has nothing to do with images.
ASIDE = "aside"

#: The role of each class, by its name and the fingerprint of its body.
BODIES = {
    ("LoadMultiViewImageFromFiles", "11e788ba73f500f2"): LOAD,
    ("LoadMultiViewImageFromFilesInCeph", "d3802893a0904c1b"): LOAD,
    ("PhotoMetricDistortionMultiViewImage", "60e9e3c611fe02e1"): REPLACE,
    ("RandomScaleImageMultiViewImage", "d84bca833ffe568c"): REPLACE,
    ("ResizeCropFlipImage", "33291e1d10510492"): REPLACE,
    ("Normalize", "70bff28852766a92"): NORMALIZE,  # mmdet
    ("Normalize", "f56d24799bda25db"): NORMALIZE,  # mmseg
    ("NormalizeMultiviewImage", "d13c82560d27033a"): NORMALIZE,
    ("Pad", "422a9d4caa9747cc"): PAD,  # mmdet to 2.14
    ("Pad", "2650cf4a1a027581"): PAD,  # mmdet
    ("Pad", "7866a65c9d34f818"): PAD,  # mmseg
    ("PadMultiViewImage", "86795bad87235d2a"): PAD,
    ("DefaultFormatBundle", "d38529343aa7f5be"): FORMAT,  # mmdet to 2.14
    ("DefaultFormatBundle", "117b42221a10c515"): FORMAT,  # mmdet to 2.19
    ("DefaultFormatBundle", "185fb3746ec0f045"): FORMAT,  # mmdet to 2.26
    ("DefaultFormatBundle", "aeb90e21f4737e6c"): FORMAT,  # mmdet
    ("DefaultFormatBundle", "ae53940a96011c55"): FORMAT,  # mmseg
    ("DefaultFormatBundle", "cf4ffa5ecb4b313c"): FORMAT,  # mmdet3d
    ("DefaultFormatBundle3D", "914244d15260f9a8"): FORMAT,
    ("CustomDefaultFormatBundle3D", "0d815185ae91ba9c"): FORMAT,
    ("NuScenesSparse4DAdaptor", "f43f54045c3bc0f5"): FORMAT,  # Sparse4D
    ("NuScenesSparse4DAdaptor", "32cff8e0668edf81"): FORMAT,  # SparseDrive
    # That of mmdet before 2.19 and of mmseg leaves a tensor that is not contiguous.
    ("ImageToTensor", "4d00c59e99ada7b1"): FORMAT,  # mmdet to 2.26
    ("ImageToTensor", "f1cb0205ef4c4c85"): FORMAT,  # mmdet
    ("CircleObjectRangeFilter", "e82f18ff4e6149dc"): ASIDE,  # Sparse4D
    ("CircleObjectRangeFilter", "df3c3eb1cf3d5eb3"): ASIDE,  # SparseDrive
    ("InstanceNameFilter", "2da95b5174a440c0"): ASIDE,  # Sparse4D
    ("InstanceNameFilter", "9b755817a171385c"): ASIDE,  # SparseDrive
    ("VectorizeMap", "b081d23458715e01"): ASIDE,
}

#: Fingerprints of the method by which a Compose calls its transforms in turn.
COMPOSES = frozenset({"7c9dd8b0421d88ae"})

#: Fingerprints of the function to_tensor.
TO_TENSORS = frozenset({"e692e94acd10a85c"})


class Known(NamedTuple):
    """What a class of transforms does, and all that this was read from.

    ``pins`` are places with what stood there: (a namespace, a name, the value).
    """

    role: str
    call: Any  # types.FunctionType, which mypy would take for a method of ours
    methods: frozenset[str]
    pins: tuple[tuple[Mapping[str, Any], str, Any], ...]

    def still_holds(self) -> bool:
        """Tell whether nothing of the class was replaced since."""
        return all(names.get(name) is value for names, name, value in self.pins)

    def is_plain(self, transform: Any) -> bool:
        """Tell whether an object of the class has none of its methods replaced."""
        return self.methods.isdisjoint(getattr(transform, "__dict__", ()))


def recognise(cls: type) -> Known | None:
    """Return what a class of transforms is known as, else None."""
    role: str | None = None
    call: Any = None
    methods: set[str] = set()
    pins: list[tuple[Mapping[str, Any], str, Any]] = []
    for base in cls.__mro__[:-1]:
        body = class_fingerprint(base)
        if body == "":
            continue
        known = BODIES.get((base.__name__, body or "unknown"))
        if known is None:
            return None
        role = role or known
        call = call or own_function(base, "__call__")
        for name, value in vars(base).items():
            if isinstance(seams.function_of(value), types.FunctionType):
                methods.add(name)
                pins.append((vars(base), name, value))
                pinned = _pinned_globals(own_function(base, name))
                if pinned is None:
                    return None
                pins += pinned
    if role is None or not isinstance(call, types.FunctionType):
        return None
    return Known(role, call, frozenset(methods), tuple(pins))


def _pinned_globals(function: Any) -> list[tuple[Mapping[str, Any], str, Any]] | None:
    """Return the global names that a method relies on; None where one means something else."""
    function = seams.function_of(function)
    names = function.__globals__
    pins = []
    for name in set(function.__code__.co_names) & _MEANT.keys():
        if name in names:
            if not _MEANT[name](names[name]):
                return None
            pins.append((names, name, names[name]))
    return pins


def _is_module(value: Any, name: str) -> bool:
    return value is not None and value is sys.modules.get(name)


def _is_container(value: Any) -> bool:
    home = sys.modules.get("mmcv.parallel.data_container")
    return home is not None and value is getattr(home, "DataContainer", None)


def _is_to_tensor(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and fingerprint(value) in TO_TENSORS


#: What a global name has to be, where a method uses it.
_MEANT = {
    "np": lambda value: _is_module(value, "numpy"),
    "mmcv": lambda value: _is_module(value, "mmcv"),
    "DC": _is_container,
    "to_tensor": _is_to_tensor,
}


def is_compose(cls: type) -> bool:
    """Tell whether a class calls its ``transforms`` in turn, by a method of its own that is known.

    The method hands the results of each to the next, and ends with None where one returns None.
    """
    function = own_function(cls, "__call__")
    return (
        cls.__name__ == "Compose"
        and isinstance(function, types.FunctionType)
        and fingerprint(function) in COMPOSES
    )
