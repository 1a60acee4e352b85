"""What is read from /proc and /sys of machines that are not this one."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from loongkit.activation import hardware

X86 = """processor\t: 0
vendor_id\t: {vendor}
cpu family\t: 25
model\t\t: 17
model name\t: {model}
stepping\t: 1

processor\t: 1
vendor_id\t: SomebodyElse
cpu family\t: 25
"""
ARM = """processor\t: 0
BogoMIPS\t: 200.00
Features\t: fp asimd evtstrm aes
CPU implementer\t: {implementer}
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: {part}
CPU revision\t: 0

"""
LOONGARCH = """system type\t\t: generic-loongson-machine

processor\t\t: 0
package\t\t\t: 0
CPU Family\t\t: Loongson-64bit
Model Name\t\t: Loongson-3C5000
CPU Revision\t\t: 0x11
ISA\t\t\t: loongarch32 loongarch64
Features\t\t: cpucfg lam ual fpu lsx lasx
"""
POWER = "processor\t: 0\ncpu\t\t: POWER9, altivec supported\nclock\t\t: 3800.000000MHz\n"
RISCV = (
    "processor\t: 0\nhart\t\t: 1\nisa\t\t: rv64imafdc\nmmu\t\t: sv39\nuarch\t\t: sifive,u74-mc\n"
)
S390 = "vendor_id       : IBM/S390\n# processors    : 4\n"


def cpu(root: Path, text: str | bytes) -> hardware.Cpu:
    folder = root / "proc"
    folder.mkdir(exist_ok=True)
    (folder / "cpuinfo").write_bytes(text if isinstance(text, bytes) else text.encode())
    return hardware.read_cpu(str(root))


def card(
    root: Path,
    pci: str,
    device_class: str,
    vendor: str,
    device: str = "0x1234",
    **files: str,
) -> Path:
    """Make a PCI function as the kernel shows it in /sys."""
    folder = root / "sys/bus/pci/devices" / pci
    folder.mkdir(parents=True)
    for name, text in {"class": device_class, "vendor": vendor, "device": device, **files}.items():
        (folder / name).write_text(text + "\n")
    return folder


def kinds(root: Path) -> list[str]:
    return [accelerator.kind for accelerator in hardware.read_accelerators(str(root))]


@pytest.mark.parametrize(
    ("vendor_id", "vendor"),
    [
        ("GenuineIntel", "intel"),
        ("AuthenticAMD", "amd"),
        ("HygonGenuine", "hygon"),
        ("  Shanghai  ", "zhaoxin"),
        ("CentaurHauls", "zhaoxin"),
        ("TransmetaCPU", "other"),
    ],
)
def test_x86_vendors(tmp_path: Path, vendor_id: str, vendor: str) -> None:
    found = cpu(tmp_path, X86.format(vendor=vendor_id, model="A CPU @ 2.0GHz : fast"))
    assert (found.vendor, found.model) == (vendor, "A CPU @ 2.0GHz : fast")
    assert found.architecture == "x86_64"


@pytest.mark.parametrize(
    ("implementer", "part", "vendor", "model"),
    [
        ("0x41", "0xd0c", "arm", "Neoverse-N1"),
        ("0x41", "0xd4f", "arm", "Neoverse-V2"),
        ("0x48", "0xd01", "hisilicon", "TaiShan-v110"),
        ("0x70", "0x662", "phytium", "FTC662"),
        ("0xc0", "0xac3", "ampere", "Ampere-1"),
        ("0x4e", "0x010", "nvidia", "implementer 0x4e, part 0x10"),
        ("0x6d", "0xd49", "microsoft", "Azure-Cobalt-100"),
        ("0xff", "0x001", "other", "implementer 0xff, part 0x1"),
        ("nonsense", "0x001", "other", ""),
        ("0x41", "nonsense", "arm", ""),
    ],
)
def test_arm_vendors(tmp_path: Path, implementer: str, part: str, vendor: str, model: str) -> None:
    found = cpu(tmp_path, ARM.format(implementer=implementer, part=part))
    assert (found.vendor, found.model, found.architecture) == (vendor, model, "aarch64")


def test_arm_model_that_the_kernel_spells_out_wins(tmp_path: Path) -> None:
    text = "model name\t: Phytium,S2500/64\n" + ARM.format(implementer="0x70", part="0x663")
    assert cpu(tmp_path, text).model == "Phytium,S2500/64"


@pytest.mark.parametrize("spelling", [LOONGARCH, LOONGARCH.lower()])
def test_loongarch_with_both_spellings_of_its_fields(tmp_path: Path, spelling: str) -> None:
    found = cpu(tmp_path, spelling)
    assert (found.vendor, found.architecture) == ("loongson", "loongarch64")
    assert found.model.lower() == "loongson-3c5000"


@pytest.mark.parametrize(
    ("text", "model"),
    [(POWER, "POWER9, altivec supported"), (RISCV, "sifive,u74-mc"), (S390, ""), ("", "")],
)
def test_other_processors_keep_the_model_that_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, model: str
) -> None:
    monkeypatch.setattr(hardware, "_machine", lambda: "this one's")
    found = cpu(tmp_path, text)
    assert (found.vendor, found.model, found.architecture) == ("other", model, "this one's")


def test_loongson_of_the_mips_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_machine", lambda: "mips64")
    text = (
        "system type\t\t: generic-loongson-machine\ncpu model\t\t: ICT Loongson-3 V0.4  FPU V0.1\n"
    )
    found = cpu(tmp_path, text)
    assert (found.vendor, found.architecture) == ("loongson", "mips64")
    assert found.model.startswith("ICT Loongson-3")


def test_only_the_beginning_of_cpuinfo_counts(tmp_path: Path) -> None:
    late = "filler\t: " + "x" * 8192 + "\nvendor_id\t: GenuineIntel\ncpu family\t: 6\n"
    assert cpu(tmp_path, late).vendor == "other"


def test_fields_that_cannot_be_printed_are_missing(tmp_path: Path) -> None:
    found = cpu(tmp_path, X86.format(vendor="GenuineIntel", model="\x1b[31mX\0"))
    assert (found.vendor, found.model) == ("intel", "")


def test_no_cpuinfo(tmp_path: Path) -> None:
    assert hardware.read_cpu(str(tmp_path)).vendor == "other"


@pytest.mark.parametrize(
    ("device_class", "vendor", "device", "kind"),
    [
        ("0x030200", "0x10de", "0x2335", "nvidia"),  # H200
        ("0x030000", "0x10de", "0x2204", "nvidia"),  # GeForce RTX 3090
        ("0x120000", "0x1002", "0x74a1", "amd"),  # Instinct MI300X
        ("0x038000", "0x8086", "0x0bd5", "intel"),  # Data Center GPU Max
        ("0x120000", "0x19e5", "0xd802", "ascend"),
        ("0x120000", "0x1d22", "0x3684", "kunlunxin"),
        ("0x038000", "0x1d94", "0x55b7", "hygon"),  # Z100L
        ("0x0b4000", "0x1d94", "0x6210", "hygon"),  # K100_AI
        ("0x120000", "0x1da3", "0x1020", "gaudi"),  # Gaudi2
        ("0x120000", "0x1ded", "0x6001", "ppu"),
        ("0x120000", "0x1e36", "0xc035", "enflame"),
        ("0x120000", "0x1e3e", "0x0002", "iluvatar"),
        ("0x030200", "0x1ed5", "0x0323", "moorethreads"),  # MTT S4000
        ("0x038000", "0x9999", "0x4000", "metax"),
        ("0x120000", "0xcabc", "0x0370", "cambricon"),
    ],
)
def test_accelerators(
    tmp_path: Path, device_class: str, vendor: str, device: str, kind: str
) -> None:
    card(tmp_path, "0000:3b:00.0", device_class, vendor, device, numa_node="1")
    (found,) = hardware.read_accelerators(str(tmp_path))
    assert (found.kind, found.pci, found.numa_node) == (kind, "0000:3b:00.0", 1)
    assert f"[{vendor[2:]}:{device[2:]}]" in found.name
    assert hardware.summary_kind((found,)) == kind


@pytest.mark.parametrize(
    ("device_class", "vendor", "device"),
    [
        ("0x030000", "0x1a03", "0x2000"),  # ASPEED, the console of most servers
        ("0x030000", "0x102b", "0x0536"),  # Matrox, the same
        ("0x030000", "0x19e5", "0x1711"),  # Huawei's management chip
        ("0x120000", "0x19e5", "0xa250"),  # the ZIP engine in a Kunpeng CPU
        ("0x030000", "0x1013", "0x00b8"),  # Cirrus, emulated
        ("0x030000", "0x1234", "0x1111"),  # bochs, emulated
        ("0x030000", "0x1af4", "0x1050"),  # virtio
        ("0x030000", "0x15ad", "0x0405"),  # VMware
        ("0x030000", "0x0014", "0x7a25"),  # Loongson's bridge chip
        ("0x040300", "0x10de", "0x1aef"),  # the audio function of a GeForce
        ("0x068000", "0x10de", "0x22a3"),  # NVSwitch
        ("0x120000", "0x10ee", "0x5000"),  # an FPGA of Xilinx
        ("0x120000", "0x8086", "0x09c4"),  # an FPGA of Intel
        ("0x020000", "0x1ded", "0x107f"),  # Alibaba's network adapter
        ("0x120000", "0x1ded", "0x8001"),  # a part of Alibaba's CPU
        ("0x108000", "0x1d94", "0x1456"),  # the security processor in a Hygon CPU
        ("0x010802", "0x144d", "0xa808"),  # an SSD
    ],
)
def test_not_accelerators(tmp_path: Path, device_class: str, vendor: str, device: str) -> None:
    card(tmp_path, "0000:3b:00.0", device_class, vendor, device)
    assert kinds(tmp_path) == []
    assert hardware.summary_kind(hardware.read_accelerators(str(tmp_path))) == "cpu"


def test_graphics_of_an_intel_processor_do_not_count(tmp_path: Path) -> None:
    card(tmp_path, "0000:00:02.0", "0x030000", "0x8086", "0x4680")
    card(tmp_path, "10000:00:02.0", "0x038000", "0x8086", "0x4680")
    assert kinds(tmp_path) == []
    card(tmp_path, "0000:03:00.0", "0x030000", "0x8086", "0x56a0")
    assert kinds(tmp_path) == ["intel"]


@pytest.mark.parametrize("device_class", ["0x030000", "0x038000"])
def test_graphics_of_an_amd_processor_do_not_count(tmp_path: Path, device_class: str) -> None:
    card(tmp_path, "0000:c5:00.0", device_class, "0x1002", mem_info_vram_total=str(512 << 20))
    card(tmp_path, "0000:c6:00.0", device_class, "0x1002")  # no driver
    assert kinds(tmp_path) == []
    card(tmp_path, "0000:03:00.0", device_class, "0x1002", mem_info_vram_total=str(24 << 30))
    assert kinds(tmp_path) == ["amd"]


def test_functions_lent_to_virtual_machines_do_not_count(tmp_path: Path) -> None:
    card(tmp_path, "0000:3b:00.0", "0x030200", "0x10de")
    lent = card(tmp_path, "0000:3b:00.4", "0x030200", "0x10de")
    (lent / "physfn").symlink_to("../0000:3b:00.0")
    assert len(kinds(tmp_path)) == 1


def test_name_from_the_driver_of_nvidia(tmp_path: Path) -> None:
    card(tmp_path, "0000:3b:00.0", "0x030200", "0x10de", "0x2335", numa_node="-7")
    folder = tmp_path / "proc/driver/nvidia/gpus/0000:3b:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 203\n")
    (found,) = hardware.read_accelerators(str(tmp_path))
    assert (found.vendor, found.name, found.numa_node) == ("NVIDIA", "NVIDIA H200", -1)


def test_order_is_that_of_the_addresses_and_the_most_numerous_kind_wins(tmp_path: Path) -> None:
    for bus, vendor in (("ba", "0x10de"), ("17", "0x9999"), ("3b", "0x10de")):
        card(tmp_path, f"0000:{bus}:00.0", "0x030200", vendor)
    found = hardware.read_accelerators(str(tmp_path))
    assert [a.pci for a in found] == ["0000:17:00.0", "0000:3b:00.0", "0000:ba:00.0"]
    assert hardware.summary_kind(found) == "nvidia"
    assert hardware.summary_kind(found[:2]) == "metax"


@pytest.mark.parametrize(
    ("name", "device_type", "kind"),
    [
        ("PPU-ZW810E", "cuda", "ppu"),
        (" ppu-zw810e", "cuda", "ppu"),
        ("NVIDIA H200", "cuda", "nvidia"),
        ("NVIDIA H200 MIG 1g.18gb", "cuda", "nvidia"),
        ("Tesla V100-SXM2-32GB", "cuda", "nvidia"),
        ("A100-SXM4-40GB", "cuda", "nvidia"),
        ("", "cuda", "nvidia"),
        ("AMD Instinct MI300X", "cuda", "amd"),
        ("Radeon RX 7900 XTX", "cuda", "amd"),
        ("MetaX C500", "cuda", "metax"),
        ("Iluvatar BI-V150", "cuda", "iluvatar"),
        ("K100_AI", "cuda", "hygon"),
        ("", "cpu", "cpu"),
        ("PPU", "cpu", "cpu"),
        ("Ascend910B3", "npu", "ascend"),
        ("whatever", "privateuseone", "other:privateuseone"),
    ],
)
def test_kind_of_a_live_device(name: str, device_type: str, kind: str) -> None:
    assert hardware.device_kind(name, device_type) == kind


def test_kinds_from_files_and_from_live_devices_are_one_vocabulary() -> None:
    live = {kind for _, kind in hardware.CUDA_NAMES} | set(hardware.DEVICE_TYPES.values())
    assert live - {rule.kind for rule in hardware.ACCELERATORS.values()} == {"cpu"}


def test_nonsense_in_any_file_is_never_an_error(tmp_path: Path) -> None:
    noise = random.Random(20260822)
    scraps = [b"", b"\0", b"0x", b"0x10de", b"-1", b"9" * 5000, b"\xff\xfe", b"0x030200\n", b":"]
    for number in range(150):
        root = tmp_path / str(number)
        pci = f"{noise.choice(['0000:01:00.0', 'x', '..:', '::::'])}{number}"
        folder = card(root, pci, "0x030200", "0x10de")
        for name in ("class", "vendor", "device", "numa_node", "mem_info_vram_total"):
            content = noise.choice([*scraps, noise.randbytes(noise.randrange(200))])
            (folder / name).write_bytes(content)
        cpu(root, noise.choice([X86, ARM, LOONGARCH]).encode()[: noise.randrange(150)])
        cpu(root, b"\n".join(noise.choices([*scraps, b"vendor_id:", b"CPU implementer: 0x"], k=9)))
        for accelerator in hardware.read_accelerators(str(root)):
            assert accelerator.kind in {rule.kind for rule in hardware.ACCELERATORS.values()}
            assert accelerator.numa_node >= -1


def test_folders_pipes_and_dead_links_in_place_of_files(tmp_path: Path) -> None:
    folder = card(tmp_path, "0000:3b:00.0", "0x030200", "0x10de")
    (folder / "device").unlink()
    (folder / "device").mkdir()
    assert kinds(tmp_path) == []
    other = card(tmp_path, "0000:3c:00.0", "0x030200", "0x10de")
    (other / "numa_node").symlink_to("nowhere")
    (other / "class").unlink()
    os.mkfifo(other / "class")
    assert kinds(tmp_path) == []
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").mkdir()
    assert hardware.read_cpu(str(tmp_path)).vendor == "other"
    (tmp_path / "sys/bus/pci/devices/README").write_text("not a device")
    assert kinds(tmp_path) == []


def test_no_pci_at_all(tmp_path: Path) -> None:
    assert hardware.read_accelerators(str(tmp_path)) == ()


def test_this_machine_can_be_read() -> None:
    found = hardware.read_cpu()
    assert found.architecture == os.uname().machine
    assert isinstance(hardware.read_accelerators(), tuple)
