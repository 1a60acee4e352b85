"""What /proc/cpuinfo calls the vendors and models of CPUs by numbers and marks."""

from __future__ import annotations

# vendor_id of x86 /proc/cpuinfo -> vendor. Zhaoxin's parts say "Shanghai" (padded with blanks);
# older ones carry the name of Centaur, whose designs they continue.
X86_VENDORS = {
    "GenuineIntel": "intel",
    "AuthenticAMD": "amd",
    "HygonGenuine": "hygon",
    "Shanghai": "zhaoxin",
    "CentaurHauls": "zhaoxin",
}

# "CPU implementer" and "CPU part" of aarch64 (the MIDR register) -> vendor, and the model, which
# arm64 kernels don't spell out. The numbers are those that util-linux's lscpu knows.
ARM_VENDORS = {
    0x41: "arm",
    0x46: "fujitsu",
    0x48: "hisilicon",
    0x4E: "nvidia",
    0x6D: "microsoft",
    0x70: "phytium",
    0xC0: "ampere",
}
ARM_MODELS = {
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD84): "Neoverse-V3",
    (0x41, 0xD8E): "Neoverse-N3",
    (0x46, 0x001): "A64FX",
    (0x48, 0xD01): "TaiShan-v110",
    (0x48, 0xD02): "TaiShan-v120",
    (0x6D, 0xD49): "Azure-Cobalt-100",
    (0x70, 0x303): "FTC310",
    (0x70, 0x660): "FTC660",
    (0x70, 0x661): "FTC661",
    (0x70, 0x662): "FTC662",
    (0x70, 0x663): "FTC663",
    (0x70, 0x664): "FTC664",
    (0x70, 0x862): "FTC862",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1a",
}
