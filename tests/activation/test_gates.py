"""Every declared version gate, on each side of each of its edges."""

from __future__ import annotations

import sys
import types

import pytest

from loongkit.activation import catalog, versions

#: Written by hand from the contract, so that a drift of a declaration shows.
GATES = {
    "data_container": ("mmcv>=1.7.0,<=1.8.0",),
    "data_prefetch": ("mmcv>=1.7.0,<=1.8.0",),
    "mmengine_data_prefetch": ("mmcv>=2.0", "mmengine>=0.8.0"),
    "allow_tf32": ("torch>=2.0.0",),
    "compile_resnet": ("torch>=2.6.0", "mmdet>=1.0.0,<=3.3.0"),
    "fused_adam": ("torch>=2.4.0",),
    "fused_adamw": ("torch>=2.4.0",),
    "mmdet_modules": ("torch>=2.6.0", "mmdet>=2.12.0,<=2.28.3"),
    "dice_loss": ("mmseg>=0.12.0,<=1.0.0",),
    "hf_acc_compile": ("torch==2.10.*",),
    "dynamic_shape_fix": ("torch==2.9.*",),
    "compile_pi0pytorch": ("torch>=2.6.0",),
    "config_guards": ("torch>=2.1.0",),
}

#: Requirement -> versions just inside and just outside of each edge. Vendors add suffixes to the
#: release that they build from, and those builds pass its gate.
EDGES = {
    "mmcv>=1.7.0,<=1.8.0": (
        "1.7.0 1.7.0rc1 1.7.1 1.7.2 1.8.0 1.8.0.post1 1.8.0+torch2.4",
        "1.6.2 1.6.99 1.8.1 1.8.0.1 1.9.0 1.10.0 2.0.0rc4 2.2.0",
    ),
    "mmcv>=2.0": ("2.0.0 2.0.0rc1 2.0.1 2.2.0", "1.7.2 1.8.0 1.99.9"),
    "mmengine>=0.8.0": ("0.8.0 0.8.0rc1 0.8.1 0.10.7 1.0", "0.7.4 0.7.99 0.1"),
    "torch>=2.0.0": ("2.0.0 2.0.0a0+git1 2.0.1+cu118 2.13.0", "1.13.1 1.99.0 1.14.0a0+44dac51"),
    "torch>=2.1.0": ("2.1.0 2.1.0a0+29c30b1 2.1.2 2.10.0", "2.0.1 2.0.99 1.13.1"),
    "torch>=2.4.0": ("2.4.0 2.4.0a0+f70bd71 2.4.1+ppu1.3 2.10.0", "2.3.1 2.3.99+cu121 1.13.1"),
    "torch>=2.6.0": ("2.6.0 2.6.0a0+df5bbc0 2.6.1 2.10.0", "2.5.1 2.5.99 2.5.0a0+e000cf0"),
    "torch==2.9.*": (
        "2.9.0 2.9.0a0+git 2.9.1+cu130 2.9.99",
        "2.8.0 2.8.99 2.10.0 2.10.0rc1 2.90.0",
    ),
    "torch==2.10.*": (
        "2.10.0 2.10.0rc1 2.10.0a0+git1 2.10.2",
        "2.9.1 2.9.99 2.11.0 2.11.0a0 2.1.0",
    ),
    "mmdet>=1.0.0,<=3.3.0": (
        "1.0.0 1.0rc1 1.2.0 2.28.2 3.3.0 3.3",
        "0.6.0 0.99 3.3.1 3.4.0 3.10.0",
    ),
    "mmdet>=2.12.0,<=2.28.3": (
        "2.12.0 2.14.0 2.28.2 2.28.3",
        "2.11.0 2.11.9 2.2.0 2.28.4 2.29.0 3.0",
    ),
    "mmseg>=0.12.0,<=1.0.0": (
        "0.12.0 0.14.1 0.30.0 1.0.0 1.0.0rc6",
        "0.11.0 0.9.1 1.0.1 1.1.0 1.2.2",
    ),
}

CASES = [(name, gates, at) for name, gates in GATES.items() for at in range(len(gates))]


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Put a module of a name and a version in the place of the framework."""

    def put(name: str, version: object) -> None:
        module = types.ModuleType(name)
        if version is not None:
            module.__version__ = version  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)

    for edges in EDGES:
        monkeypatch.delitem(sys.modules, versions.package(edges), raising=False)
        monkeypatch.delitem(sys.modules, versions.package(edges) + ".version", raising=False)
    return put


def test_the_declared_gates_are_those_of_the_contract() -> None:
    declared = {
        feature.name: feature.requires for feature in catalog.load_all() if feature.requires
    }
    assert declared == GATES
    assert {gate for gates in GATES.values() for gate in gates} == set(EDGES)


@pytest.mark.parametrize(("name", "gates", "at"), CASES, ids=lambda value: str(value))
def test_each_edge_of_each_gate(imported, name: str, gates: tuple[str, ...], at: int) -> None:  # type: ignore[no-untyped-def]
    requires = catalog.load(name).requires
    for other in gates:
        imported(versions.package(other), EDGES[other][0].split()[0])
    package = versions.package(gates[at])
    inside, outside = EDGES[gates[at]]
    for version in inside.split():
        imported(package, version)
        assert versions.unmet(requires) is None, version
    wanted = gates[at][len(package) :]
    for version in outside.split():
        imported(package, version)
        assert versions.unmet(requires) == f"found {package} {version}, wanted {wanted}"
    imported(package, "unknown")
    assert versions.unmet(requires) == (
        f"{package} calls its version 'unknown', which has no number; wanted {gates[at]}"
    )
    imported(package, None)
    assert (
        versions.unmet(requires) == f"the version of {package} cannot be read; wanted {gates[at]}"
    )


@pytest.mark.parametrize(("name", "gates", "at"), CASES, ids=lambda value: str(value))
def test_a_package_that_is_not_there(imported, name: str, gates: tuple[str, ...], at: int) -> None:  # type: ignore[no-untyped-def]
    for other in gates:
        if other != gates[at]:
            imported(versions.package(other), EDGES[other][0].split()[0])
    package = versions.package(gates[at])
    reason = f"{package} is not imported; wanted {gates[at]}"
    assert versions.unmet(catalog.load(name).requires) == reason


def test_distributions_that_provide_a_package_of_another_name() -> None:
    assert set(versions.DISTRIBUTIONS["mmcv"]) == {"mmcv", "mmcv-full", "mmcv-lite"}
    assert versions.DISTRIBUTIONS["mmseg"] == ("mmsegmentation",)
