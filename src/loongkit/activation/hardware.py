"""What the machine is made of, read from files: no driver is called, nothing is initialised.

Every reader takes a root, so that other machines can stand in for this one: a folder that holds
``proc`` and ``sys``, or the record of a machine. Files that are missing, unreadable or full of
nonsense count as hardware that isn't there.
"""

from __future__ import annotations

import os

from loongkit.activation import files, pci
from loongkit.activation.cpu_names import ARM_MODELS, ARM_VENDORS, X86_VENDORS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loongkit.activation.files import Tree

_CPUINFO, _ARCH = "proc/cpuinfo", "proc/sys/kernel/arch"  # the latter since Linux 6.1
_ARCH_LETTERS, _NAME_LETTERS = 32, 128  # more is no name
_MOST_BYTES = 1 << 60
_CPUINFO_BYTES = 8192  # the first CPU's block fits in it on every architecture

# Where /proc/cpuinfo spells out the model: x86 and LoongArch, MIPS, POWER, RISC-V.
_MODEL_FIELDS = ("model name", "cpu model", "cpu", "uarch", "isa")

#: All fields of /proc/cpuinfo that are looked at.
CPUINFO_FIELDS = (
    *("vendor_id", "cpu family", "cpu implementer", "cpu part", "system type"),
    *_MODEL_FIELDS,
)

# PCI class codes: base class 03 is display, 12 processing accelerator, 0b40 co-processor.
_DISPLAY, _PROCESSING, _COPROCESSOR = "0x03", "0x1200", "0x0b40"

# The key of a kind of device in a feature's declaration:
NVIDIA, AMD, INTEL, PPU, CPU = "nvidia", "amd", "intel", "ppu", "cpu"


class AcceleratorRule:
    """Which functions of a PCI vendor are accelerators that train, and what they are called."""

    __slots__ = ("classes", "devices", "kind", "vendor")

    def __init__(
        self,
        vendor: str,
        kind: str,
        classes: tuple[str, ...],
        devices: tuple[int, int] = (0, 0xFFFF),
    ) -> None:
        self.vendor = vendor
        self.kind = kind
        self.classes = classes  # beginnings of the class code
        self.devices = devices  # first and last device id


# PCI vendor id -> rule. Ids and names: pci.ids 2026.08.22, from which nobody's display adapter
# for a console or a virtual machine (ASPEED, Matrox, Cirrus, bochs, virtio, QXL, VMware) is here.
ACCELERATORS = {
    0x10DE: AcceleratorRule("NVIDIA", NVIDIA, (_DISPLAY,)),
    0x1002: AcceleratorRule("AMD", AMD, (_DISPLAY, _PROCESSING)),
    0x8086: AcceleratorRule("Intel", INTEL, (_DISPLAY,)),  # class 12 here: FPGAs, laptop NPUs
    # Huawei's other accelerators (a250, the ZIP engine of Kunpeng CPUs) share Ascend's class, and
    # its management chip is a display; Ascend's ids, as reported by its users, are d100 to d8ff.
    0x19E5: AcceleratorRule("Huawei Ascend", "ascend", (_PROCESSING,), (0xD000, 0xDFFF)),
    0x1D22: AcceleratorRule("Baidu Kunlun", "kunlunxin", (_PROCESSING,)),
    # Hygon's DCUs are displays (Z100) or, as reported for K100_AI and later, co-processors.
    0x1D94: AcceleratorRule("Hygon DCU", "hygon", (_DISPLAY, _COPROCESSOR)),
    0x1DA3: AcceleratorRule("Intel Gaudi", "gaudi", (_PROCESSING,)),
    # T-Head's PPU. pci.ids knows the vendor, Alibaba, and that 8000 to 8004 are parts of its CPU;
    # it doesn't list the PPU, which other tools find by the vendor alone. The classes are a guess:
    # not run on a PPU.
    0x1DED: AcceleratorRule(
        "T-Head PPU", PPU, (_DISPLAY, _PROCESSING, _COPROCESSOR), (0x0000, 0x7FFF)
    ),
    0x1E36: AcceleratorRule("Enflame", "enflame", (_PROCESSING,)),
    0x1E3E: AcceleratorRule("Iluvatar CoreX", "iluvatar", (_DISPLAY, _PROCESSING)),
    0x1ED5: AcceleratorRule("Moore Threads", "moorethreads", (_DISPLAY, _PROCESSING)),
    0x9999: AcceleratorRule("MetaX", "metax", (_DISPLAY, _PROCESSING)),
    0xCABC: AcceleratorRule("Cambricon", "cambricon", (_PROCESSING,)),
}

# A graphics unit of an AMD processor sits behind a bridge as a card does; it is told from one by
# the little memory set aside for it.
_AMD_CARD_BYTES = 4 << 30

# The registers of an Intel card take this much; the hundreds of functions that Intel's processors
# show (memory controllers, counters) take less.
_INTEL_CARD_BYTES = 16 << 20

# Beginnings of a live device's name (upper case) -> kind, for vendors whose PyTorch presents the
# device as "cuda". PPU-ZW810E, MetaX C500, Iluvatar BI-V150, K100_AI and BW are names that users
# of those devices have published. Not run on a PPU.
CUDA_NAMES = (
    ("PPU", PPU),
    ("T-HEAD", PPU),
    ("ZW810", PPU),
    ("METAX", "metax"),
    ("ILUVATAR", "iluvatar"),
    ("K100", "hygon"),
    ("Z100", "hygon"),
    ("BW", "hygon"),
    ("AMD", AMD),
    ("RADEON", AMD),
    ("INSTINCT", AMD),
)

# torch.device.type -> kind, where the type alone decides.
DEVICE_TYPES = {
    "cpu": CPU,
    "xpu": INTEL,
    "npu": "ascend",
    "mlu": "cambricon",
    "musa": "moorethreads",
    "gcu": "enflame",
    "hpu": "gaudi",
    "hip": AMD,
}


class Cpu:
    """The processor: ``vendor`` as in the tables above or "other", ``model``, ``architecture``."""

    __slots__ = ("architecture", "model", "vendor")

    def __init__(self, vendor: str, model: str, architecture: str) -> None:
        self.vendor = vendor
        self.model = model
        self.architecture = architecture


class Accelerator:
    """One accelerator: vendor, kind, PCI address, model name, NUMA node (-1 where unknown).

    The address is in small letters, as the kernel writes it; ``uuid`` is the driver's, where it
    tells one.
    """

    __slots__ = ("kind", "name", "numa_node", "pci", "uuid", "vendor")

    def __init__(
        self, vendor: str, kind: str, pci: str, name: str, numa_node: int, uuid: str = ""
    ) -> None:
        self.vendor = vendor
        self.kind = kind
        self.pci = pci.lower()
        self.name = name
        self.numa_node = numa_node
        self.uuid = uuid


def read_cpu(root: str | Tree = "/", notes: list[str] | None = None) -> Cpu:
    """Read the processor from ``/proc/cpuinfo`` below ``root``.

    An unknown vendor is "other", with whatever model was found, an empty one included. ``notes``
    gets what could not be understood.
    """
    tree = files.open_tree(root)
    fields: dict[str, str] = {}
    text = tree.read(_CPUINFO, _CPUINFO_BYTES)
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and value.strip().isprintable():
            fields.setdefault(key.strip().lower(), value.strip())
    if text and fields.keys().isdisjoint(CPUINFO_FIELDS):
        files.note(notes, _CPUINFO, text, "the vendor of the CPU", 'it counts as "other"')
    model = next((fields[key] for key in _MODEL_FIELDS if fields.get(key)), "")
    if "vendor_id" in fields and "cpu family" in fields:
        return Cpu(X86_VENDORS.get(fields["vendor_id"], "other"), model, "x86_64")
    if "cpu implementer" in fields:
        return _arm_cpu(fields, model)
    architecture = _architecture(tree, notes)
    if "loongson" in (model + fields.get("system type", "")).lower():
        isa = fields.get("isa", "")
        return Cpu("loongson", model, "loongarch64" if "loongarch64" in isa else architecture)
    return Cpu("other", model, architecture)


def _architecture(tree: Tree, notes: list[str] | None) -> str:
    text = tree.read(_ARCH)
    name = text.strip()
    if name.replace("_", "").isalnum() and name.isascii() and len(name) < _ARCH_LETTERS:
        return name
    if text:
        files.note(notes, _ARCH, text, "a name such as x86_64", f"{_machine()} is taken instead")
    return _machine()


def _arm_cpu(fields: dict[str, str], model: str) -> Cpu:
    implementer = _register(fields["cpu implementer"])
    part = _register(fields.get("cpu part", ""))
    model = model or ARM_MODELS.get((implementer, part), "")
    if not model and implementer >= 0 and part >= 0:
        model = f"implementer {implementer:#x}, part {part:#x}"
    return Cpu(ARM_VENDORS.get(implementer, "other"), model, "aarch64")


def read_accelerators(
    root: str | Tree = "/", notes: list[str] | None = None
) -> tuple[Accelerator, ...]:
    """Read the accelerators below ``root``, in the order of their PCI addresses.

    Not counted: functions that a card lends to virtual machines, when seen from the host; Intel
    graphics on the root bus and AMD graphics with less than 4 GiB of their own, both of which are
    part of the processor. ``notes`` gets what could not be understood, but for nodes.
    """
    tree = files.open_tree(root)
    addresses = pci.addresses(tree, _may_be_one, notes)
    found = (_accelerator(tree, address, notes) for address in addresses)
    return tuple(accelerator for accelerator in found if accelerator)


def _may_be_one(vendor_id: int, device_id: int, largest_region: int) -> bool:
    rule = ACCELERATORS.get(vendor_id)
    if rule is None or not rule.devices[0] <= device_id <= rule.devices[1]:
        return False
    return rule.kind != INTEL or largest_region >= _INTEL_CARD_BYTES


def _accelerator(tree: Tree, address: str, notes: list[str] | None) -> Accelerator | None:
    folder = f"{pci.DEVICES}/{address}"
    if tree.exists(f"{folder}/physfn"):
        return None
    device_class, vendor_id, device_id = pci.identity(tree, folder, notes)
    rule = ACCELERATORS.get(vendor_id)
    if rule is None or not device_class.startswith(rule.classes):
        return None
    if not rule.devices[0] <= device_id <= rule.devices[1]:
        return None
    if _in_processor(tree, rule.kind, folder, device_class, notes):
        return None
    name, uuid = _driver_facts(tree, address, notes) if rule.kind == NVIDIA else ("", "")
    name = name or f"{rule.vendor} [{vendor_id:04x}:{device_id:04x}]"
    numa_node = files.number(tree.read(f"{folder}/numa_node"))
    return Accelerator(rule.vendor, rule.kind, address, name, numa_node, uuid)


def _in_processor(
    tree: Tree, kind: str, folder: str, device_class: str, notes: list[str] | None
) -> bool:
    if kind == INTEL:
        return folder.split(":")[-2:-1] == ["00"]
    if kind == AMD and device_class.startswith(_DISPLAY):
        path = f"{folder}/mem_info_vram_total"
        text = tree.read(path)
        size = files.number(text, _MOST_BYTES)
        if text and size < 0:
            files.note(notes, path, text, "a number of bytes", "it counts as part of the processor")
        return size < _AMD_CARD_BYTES
    return False


def _driver_facts(tree: Tree, address: str, notes: list[str] | None) -> tuple[str, str]:
    """Return the model name and the uuid that NVIDIA's driver reports for the card, or nothing."""
    path = f"proc/driver/nvidia/gpus/{address}/information"
    text = tree.read(path)
    facts = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if value.strip().isprintable() and len(value) < _NAME_LETTERS:
            facts[key.strip()] = value.strip()
    model, uuid = facts.get("Model", ""), facts.get("GPU UUID", "")
    if text and not model:
        files.note(notes, path, text, "the card's Model", "it is called by its PCI id instead")
    # Until the driver has woken the card, question marks stand in place of its digits.
    return model, "" if "?" in uuid else uuid


def summary_kind(accelerators: tuple[Accelerator, ...]) -> str:
    """Return the kind of device that a job here most likely trains on, before any is live.

    That is the most numerous kind, at a tie the one whose card comes first; "cpu" without any.
    """
    kinds = [accelerator.kind for accelerator in accelerators]
    return max(kinds, key=kinds.count) if kinds else CPU


def device_kind(name: str, device_type: str) -> str:
    """Return the kind of a live device: "nvidia", "ppu", "amd", "cpu", ..., or "other:<type>".

    ``device_type`` is that of a ``torch.device``, ``name`` what its backend reports as the name of
    the device. A "cuda" device is NVIDIA's unless its name begins as one in ``CUDA_NAMES``: a
    PPU and several others present themselves as "cuda" too. Not run on a PPU.
    """
    if device_type != "cuda":
        return DEVICE_TYPES.get(device_type) or f"other:{device_type}"
    upper = name.strip().upper()
    return next((kind for start, kind in CUDA_NAMES if upper.startswith(start)), NVIDIA)


def _machine() -> str:
    return os.uname().machine


def _register(text: str) -> int:
    """Return a part of a register as /proc/cpuinfo shows it, with 0x, or -1."""
    try:
        return int(text, 0)
    except ValueError:
        return -1
