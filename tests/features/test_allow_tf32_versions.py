"""ALLOW_TF32 on stand-ins for the versions of torch and the devices that are not at hand."""

from __future__ import annotations

import types
import warnings
from typing import NamedTuple

import pytest

from loongkit.features import allow_tf32
from loongkit.features.allow_tf32 import FirstStep, Tf32Switch


def stand_in(*, old=True, new=True, warn=False, disagree=False, drop_old=False):
    """A torch of another version: what Tf32Switch and FirstStep use of it, no more.

    ``old``/``new``: which API it has; ``warn``: old setters warn, as in 2.9; ``disagree``: the
    user has used the new API, so reads of the old one raise; ``drop_old``: it can't be set.
    """

    class Setting:
        def __init__(self, allowed, precision):
            self.values = {"allow_tf32": allowed, "fp32_precision": precision}
            self.raises = disagree

        def __getattr__(self, name):
            if name == "allow_tf32" and self.raises:
                raise RuntimeError("mix of the legacy and new APIs")
            if name in ("allow_tf32", "fp32_precision") and (old if name == "allow_tf32" else new):
                return self.values[name]
            raise AttributeError(name)

        def __setattr__(self, name, value):
            if name not in ("allow_tf32", "fp32_precision"):
                return super().__setattr__(name, value)
            if name == "allow_tf32":
                if drop_old or not old:
                    raise AttributeError(name)
                if warn and (calls["always"] or not calls["warned"]):
                    calls["warned"] = calls["warned"] or not calls["always"]
                    warnings.warn("Please use the new API", UserWarning, stacklevel=2)
                self.raises = False
                self.values["fp32_precision"] = "tf32" if value else "ieee"
            self.values[name] = value
            return None

    calls = {"always": False, "warned": False}
    cudnn = Setting(True, "none")
    if new:
        for name in ("conv", "rnn"):
            object.__setattr__(cudnn, name, Setting(True, "tf32"))
    backends = types.SimpleNamespace(
        cuda=types.SimpleNamespace(matmul=Setting(False, "none")), cudnn=cudnn
    )
    return types.SimpleNamespace(
        backends=backends,
        calls=calls,
        is_warn_always_enabled=lambda: calls["always"],
        set_warn_always=lambda value: calls.update(always=value),
        get_float32_matmul_precision=lambda: "highest",
        version=types.SimpleNamespace(hip=None),
        cuda=types.SimpleNamespace(get_device_capability=lambda device: device.capability),
    )


@pytest.mark.parametrize(
    "version",
    [
        {"new": False},  # 2.0 to 2.8
        {"new": True, "warn": True},  # 2.9
        {"new": True, "disagree": True},  # 2.9 and later, after the user's own new setting
    ],
    ids=["old API", "both, warning", "both, disagreeing"],
)
def test_every_version_ends_with_the_old_flag_set_and_readable(version):
    fake = stand_in(**version)
    switch = Tf32Switch(fake)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        switch.allow()
    assert fake.backends.cuda.matmul.allow_tf32 is True
    assert fake.backends.cudnn.allow_tf32 is True
    assert allow_tf32.tf32_is_allowed(fake)
    switch.restore()
    assert fake.backends.cuda.matmul.allow_tf32 is bool(version.get("disagree"))


def test_the_users_first_call_still_warns():
    fake = stand_in(warn=True)
    Tf32Switch(fake).allow()
    with pytest.warns(UserWarning, match="new API"):
        fake.backends.cuda.matmul.allow_tf32 = True


@pytest.mark.parametrize("old", [True, False], ids=["read-only", "gone"])
def test_a_torch_without_the_old_setters(old):
    fake = stand_in(old=old, drop_old=True)
    switch = Tf32Switch(fake)
    switch.allow()
    assert fake.backends.cuda.matmul.fp32_precision == "tf32"
    assert fake.backends.cudnn.conv.fp32_precision == "tf32"
    assert fake.backends.cudnn.rnn.fp32_precision == "tf32"
    switch.restore()
    assert fake.backends.cuda.matmul.fp32_precision == "none"


class Device(NamedTuple):
    type: str
    capability: tuple[int, int] | None


def optimizer_on(*devices):
    params = [types.SimpleNamespace(device=Device(*device)) for device in devices]
    return types.SimpleNamespace(param_groups=[{"params": params}])


@pytest.mark.parametrize(
    ("devices", "allowed", "hip", "star"),
    [
        ([("cuda", (8, 0))], True, None, True),
        ([("cuda", (9, 0))], True, None, True),
        ([("cpu", None), ("cuda", (8, 6))], True, None, True),
        ([("cuda", (7, 5))], True, None, False),
        ([("cuda", (8, 0))], False, None, False),
        ([("cuda", (9, 4))], True, "6.0", False),
        ([("cpu", None)], True, None, False),
        ([("xpu", None)], True, None, False),
    ],
)
def test_the_star(devices, allowed, hip, star):
    fake = stand_in()
    fake.version.hip = hip
    Tf32Switch(fake).allow()
    if not allowed:
        fake.backends.cuda.matmul.allow_tf32 = False
    marks = []
    watch = FirstStep(fake, lambda: marks.append(1))
    for _ in range(3):
        watch(optimizer_on(*devices), (), {})
    assert bool(marks) is star
    assert len(marks) <= 1


def test_a_setting_written_after_the_first_step_changes_no_star():
    fake = stand_in()
    marks = []
    watch = FirstStep(fake, lambda: marks.append(1))
    watch(optimizer_on(("cuda", (8, 0))), (), {})
    Tf32Switch(fake).allow()
    watch(optimizer_on(("cuda", (8, 0))), (), {})
    assert not marks


def test_a_device_that_cannot_be_asked_fails_no_step():
    fake = stand_in()
    Tf32Switch(fake).allow()

    def broken(device):
        raise RuntimeError("driver")

    fake.cuda.get_device_capability = broken
    marks = []
    FirstStep(fake, lambda: marks.append(1))(optimizer_on(("cuda", (8, 0))), (), {})
    assert not marks
