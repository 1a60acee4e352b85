"""Which pipelines have their kernels compiled in the parent, before workers are forked."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from loongkit.activation.session import SESSION
from loongkit.images import warmup


class Normalise:
    def __call__(self, results: Any) -> Any:
        return imnormalize(results)  # noqa: F821


class Compose:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, results: Any) -> Any:
        return results


def normalise(results: Any) -> Any:
    return imnormalize(results)  # noqa: F821


def wanted(item: Any) -> bool:
    return warmup.mentions(item, frozenset({"imnormalize"}))


@pytest.mark.parametrize(
    "held",
    [
        Compose(Normalise()),
        Compose(Compose(str), Compose(Normalise())),
        [Compose(str), Normalise()],
        (Compose(), normalise),
        Normalise(),
        normalise,
        functools.partial(normalise, 1),
        Normalise().__call__,
        SimpleNamespace(train_pipeline=[Normalise()]),
    ],
)
@pytest.mark.parametrize("name", ["p", "pipeline", "_ops", "preprocess"])
def test_a_pipeline_is_found_under_any_name(name: str, held: Any) -> None:
    assert warmup.holds(SimpleNamespace(**{name: held}), wanted)


@pytest.mark.parametrize("held", [[1, 2, normalise], {"a": normalise}, "text", None, [], [[]]])
def test_samples_and_settings_are_not_walked(held: Any) -> None:
    assert not warmup.holds(SimpleNamespace(samples=held), wanted)


def test_long_lists_hold_samples() -> None:
    assert not warmup.holds(SimpleNamespace(p=[normalise] * 300), wanted)


class Patched:
    """A patcher that remembers its wrapper, and a DataLoader's worth of attributes."""

    def __init__(self, feature: str) -> None:
        self.record = SimpleNamespace(name=feature)
        self.compiled = 0
        loader = type("DataLoader", (), {"_get_iterator": lambda self: "iterator"})
        warmup.install(self, SimpleNamespace(DataLoader=loader), lambda _: False, self.compile)

    def wrap(self, owner: Any, name: str, wrapper: Any) -> None:
        self.wrapper = wrapper

    def compile(self) -> None:
        self.compiled += 1

    def iterate(self, workers: int = 2, method: str = "fork") -> None:
        context = SimpleNamespace(get_start_method=lambda: method)
        loader = SimpleNamespace(
            num_workers=workers, multiprocessing_context=context, dataset=object()
        )
        assert self.wrapper(lambda _: "iterator", loader) == "iterator"


def test_the_parent_compiles_once_a_worker_had_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SESSION.positions, "imnormalize", 5)
    patched, marks = Patched("imnormalize"), set()
    monkeypatch.setattr(type(SESSION.marks), "is_set", lambda self, at: at in marks)
    patched.iterate()
    assert patched.compiled == 0
    marks.add(5)  # what the worker has left
    patched.iterate(workers=0)
    patched.iterate(method="spawn")
    assert patched.compiled == 0, "nobody would inherit the kernels"
    patched.iterate()
    assert patched.compiled == 1
