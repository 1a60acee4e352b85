"""Which physical accelerator each local rank of a job computes on.

Before CUDA is initialised there is only a guess, from the environment and the driver's files;
afterwards the device says it itself. Both are functions of what they are given: nothing here
initialises a device. Start-up code of the ranks of a job.
"""

from __future__ import annotations

from loongkit.activation import hardware
from loongkit.numa import visible_devices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from loongkit.numa.records import Machine

#: The first torch whose device properties hold something physical: the uuid; PCI ids from 2.8 on.
IDENTITY_SINCE = (2, 5)

_ALLOW_INDEX = "LOONGKIT_NUMA_AFFINITY_ALLOW_INDEX"


class Identity:
    """The accelerators of a job's local ranks: ``devices`` as a ``Request`` wants them.

    ``visible`` are the addresses of this process's devices in the order of their indices, none
    where that can't be known; ``reasons`` are (code, text) pairs, ``warnings`` those texts that
    the user should hear of.
    """

    __slots__ = ("devices", "reasons", "visible", "warnings")

    def __init__(
        self,
        devices: tuple[str, ...],
        visible: tuple[str, ...] = (),
        reasons: tuple[tuple[str, str], ...] = (),
        warnings: tuple[str, ...] = (),
    ) -> None:
        self.devices = devices
        self.visible = visible
        self.reasons = reasons
        self.warnings = warnings


class Live:
    """What the devices themselves say: the address of each, and the index of the one in use.

    ``current`` is None while none has been chosen: that of the local rank then counts.
    """

    __slots__ = ("addresses", "current")

    def __init__(self, current: int | None, addresses: tuple[str, ...]) -> None:
        self.current = current
        self.addresses = addresses


def guess(
    environ: Mapping[str, str],
    machine: Machine,
    *,
    local_rank: int,
    ranks: int,
    torch: tuple[int, ...] | None,
    allow_index: bool,
) -> Identity:
    """Guess the accelerators before any is initialised.

    ``local_rank`` is -1 where nobody has said it; ``torch`` is its release, None if unknown. Rank
    i is taken to compute on visible device i, as in every launcher's examples; it is the live
    device that confirms it.
    """
    unknown = ("",) * (ranks if local_rank >= 0 else 1)
    if not machine.accelerators:
        return Identity(())
    kind = hardware.summary_kind(machine.accelerators)
    found = visible_devices.read(environ, machine, kind)
    if found.addresses == ():
        return Identity((), (), (("no-gpu", f"{found.source} leaves no accelerator visible"),))
    old = torch is None or torch[: len(IDENTITY_SINCE)] < IDENTITY_SINCE
    doubt = found.doubt
    if old:
        doubt = f"PyTorch says which device is which from 2.5.0 on; {_ALLOW_INDEX}=1 goes by index"
    if found.addresses is None or (doubt and not allow_index):
        return Identity(unknown, (), (("no-device-identity", doubt),))
    said = []
    warnings = []
    if doubt:
        said.append(("by-index", "devices are matched by index, in the order of PCI addresses"))
        if found.restricted:
            text = (
                f"{_ALLOW_INDEX}=1 matches devices by index while {found.source} chooses some of "
                f"them: processes may be bound to the wrong NUMA node; unset {found.source}"
            )
            said.append(("by-index-of-some", text))
            warnings.append(text)
    devices = per_rank(
        found.addresses,
        found.table,
        local_rank,
        ranks,
        shared=_shared(environ, found.addresses, found.table, local_rank),
    )
    distinct = len(set(devices))
    if local_rank >= 0 and len(devices) > distinct and all(devices):
        said.append(("ranks>gpus", f"accelerators are shared: {distinct} for {ranks} local ranks"))
    return Identity(devices, found.addresses, tuple(said), tuple(warnings))


def _shared(
    environ: Mapping[str, str], visible: Sequence[str], table: Sequence[str], local_rank: int
) -> bool:
    """Tell whether all ranks see the same devices: torchrun hands its own environment on.

    Not so with its virtual local ranks, which are all 0, and behind a script that gives each rank
    the device of its number.
    """
    own = tuple(table[local_rank : local_rank + 1])
    return "TORCHELASTIC_RUN_ID" in environ and local_rank > 0 and tuple(visible) != own


def per_rank(
    visible: Sequence[str], table: Sequence[str], local_rank: int, ranks: int, *, shared: bool
) -> tuple[str, ...]:
    """Return the accelerator of each local rank, "" where it can't be known.

    ``visible`` are this process's devices by index, ``table`` all of the host. Without a local
    rank: all that the process may use. ``shared`` tells that all ranks are known to see the same
    devices; else a process that sees a single one may have been given it alone (Ray, Kubernetes,
    ``torchrun --virtual-local-rank``), and the others have one each of the rest when there are
    as many ranks as accelerators.
    """
    if local_rank < 0:
        return tuple(dict.fromkeys(visible))
    count = len(visible)
    if count >= ranks or shared or set(visible) == set(table):
        return tuple(visible[rank % count] for rank in range(ranks))
    own = visible[local_rank % count]
    if count == 1 and len(table) == ranks and local_rank < ranks:
        rest = [address for address in table if address != own]
        return (*rest[:local_rank], own, *rest[local_rank:])
    return tuple(own if rank == local_rank else "" for rank in range(ranks))


def read_live(module: Any, machine: Machine, index: int | None = None) -> Live | None:
    """Ask a device module (``torch.cuda``) which devices it has; None: not initialised yet.

    Nothing is initialised by asking, which may also be done from a call that waits for the
    initialisation. ``index`` is that of the device in use, where the caller knows it; without
    it the current one counts, except 0, which it is before anything was chosen (``set_device``
    initialises first). A device that does not say who it is has the address "".
    """
    try:
        starting = hasattr(getattr(module, "_tls", None), "is_initializing")
        if not (starting or module.is_initialized()):
            return None
        properties = [module.get_device_properties(i) for i in range(module.device_count())]
        addresses = tuple(_address(each, machine) for each in properties)
        return Live((module.current_device() or None) if index is None else index, addresses)
    except Exception:
        return None


def _address(properties: Any, machine: Machine) -> str:
    """Find a device by its PCI ids (torch 2.8 and later), else by its uuid; "" if neither does."""
    ids = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    numbers = [id for id in ids if isinstance(id, int)]
    if len(numbers) == len(ids):
        start = "{:04x}:{:02x}:{:02x}.".format(*numbers)
        for accelerator in machine.accelerators:
            if accelerator.pci.startswith(start):
                return accelerator.pci
    uuid = str(getattr(properties, "uuid", "")).lower().removeprefix("gpu-")
    for address, known in machine.uuids.items():
        if uuid and known.lower().removeprefix("gpu-") == uuid:
            return address
    return ""


def confirm(
    live: Live, machine: Machine, guessed: Identity, *, local_rank: int, ranks: int
) -> Identity:
    """Return what the live devices say, which is the guess itself where they agree with it.

    A device that can't say who it is counts as the visible one of its index, as guessed.
    """
    visible = live.addresses
    if not all(visible):
        visible = guessed.visible
    index = live.current
    if index is None:
        index = max(local_rank, 0) % max(len(visible), 1)
    own = visible[index] if 0 <= index < len(visible) else ""
    if not own:
        return guessed
    if local_rank < 0:
        devices = tuple(dict.fromkeys(visible))
        return guessed if devices == guessed.devices else Identity(devices, visible)
    before = guessed.devices[local_rank] if local_rank < len(guessed.devices) else ""
    if own.lower() == before.lower():
        return guessed
    kinds = [each.kind for each in machine.accelerators if each.pci == own.lower()]
    table = visible_devices.table(machine, kinds[0]) if kinds else ()
    devices = per_rank(visible, table, local_rank, ranks, shared=False)
    if devices[local_rank : local_rank + 1] != (own,):
        devices = tuple(own if rank == local_rank else "" for rank in range(ranks))
    if not before:
        return Identity(devices, visible)
    text = (
        f"local rank {local_rank} was placed for the accelerator {before} but computes on {own}: "
        "placed anew"
    )
    return Identity(devices, visible, (("device-differs", text),), (text,))
