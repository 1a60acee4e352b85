"""What others see of a wrapped function, and what no wrapper can stand in for."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import toolbox
from toolbox import prefix

from loongkit.activation import seams


@pytest.fixture
def module() -> Iterator[Any]:
    with toolbox.imported() as made:
        yield made


@pytest.mark.parametrize(
    "path", ["work", "fail", "count", "Tool.method", "Tool.fixed", "Tool.made"]
)
def test_it_looks_like_the_original(module: Any, path: str) -> None:
    owner, name = (module.Tool, path[5:]) if "." in path else (module, path)
    before = getattr(owner, name)
    look = [
        (inspect.signature, inspect.getfullargspec, inspect.getdoc)[n](before) for n in range(3)
    ]
    seams.seam_at(owner, name).add("a", lambda original, *a, **k: original(*a, **k))
    after = getattr(owner, name)
    assert after is not before
    assert [inspect.signature(after), inspect.getfullargspec(after), inspect.getdoc(after)] == look
    for attribute in ("__name__", "__qualname__", "__module__", "__annotations__", "__doc__"):
        assert getattr(after, attribute) == getattr(before, attribute)
    assert (
        inspect.unwrap(after) == inspect.unwrap(before) == seams.function_of(before) or "." in path
    )


def test_marks_of_frameworks_come_along_except_those_of_the_compiler(module: Any) -> None:
    """torch wraps an optimiser's step a second time where ``step.hooked`` is missing."""
    seams.seam_at(module, "work")
    assert module.work.hooked
    assert not hasattr(module.work, "_torchdynamo_orig_callable")


def test_a_script_compiler_finds_the_names_of_the_original(module: Any) -> None:
    """torch.jit.script reads the original's source, and looks up names where we say we live."""
    before = module.work
    seams.seam_at(module, "work").add("a", prefix("a"))
    assert module.work is not before
    assert module.work.__globals__ is before.__globals__ is vars(module)


def test_a_function_whose_wrapped_original_is_itself(module: Any) -> None:
    original = module.work
    original.__wrapped__ = original
    seam = seams.seam_at(module, "work")
    seam.add("a", prefix("a"))
    assert seam.reachable and module.work(1) == "a " + original(1)
    seam.remove("a")
    assert module.work is original


def test_a_built_in_function_without_signature(module: Any) -> None:
    module.first = next
    seam = seams.seam_at(module, "first")
    seam.add("a", lambda original, *args: ("a", original(*args)))
    assert module.first(iter([1])) == ("a", 1) and module.first.__name__ == "next"
    seam.remove("a")
    assert module.first is next


def test_errors_pass_through_as_they_are(module: Any) -> None:
    seams.seam_at(module, "fail").add("a", lambda original: original())
    with pytest.raises(ValueError, match="original") as caught:
        module.fail()
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert caught.traceback[-1].name == "fail" and caught.traceback[-1].path != __file__


def test_a_wrong_call_is_told_by_the_original(module: Any) -> None:
    seams.seam_at(module, "fail").add("a", lambda original, *a, **k: original(*a, **k))
    with pytest.raises(TypeError, match=r"fail\(\) takes 0 positional arguments but 1 was given"):
        module.fail(1)


def test_a_generator_function_still_gives_a_generator(module: Any) -> None:
    seams.seam_at(module, "count").add("a", lambda original, limit: original(limit + 1))
    generator = module.count(1)
    assert inspect.isgenerator(generator) and list(generator) == [0, 1]


def test_pickling_and_copying(module: Any) -> None:
    seam = seams.seam_at(module, "work")
    seam.add("a", prefix("a"))
    seams.seam_at(module.Tool, "method").add("a", prefix("a"))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(module.work, protocol)) is module.work
    tool = pickle.loads(pickle.dumps(module.Tool()))
    assert pickle.loads(pickle.dumps(tool.method))(1) == "a method 1"
    assert copy.deepcopy(module.work) is module.work
    assert copy.deepcopy(functools.partial(module.work, 1))() == module.work(1)
    assert copy.deepcopy(tool).method(1) == "a method 1"


def test_reentry(module: Any) -> None:
    def wrapper(original: Callable[..., str], a: Any) -> str:
        return module.work(a - 1) + "." if a else original(a)

    seams.seam_at(module, "work").add("a", wrapper)
    assert module.work(3).endswith("...")


def test_a_wrapper_taken_out_during_its_own_call(module: Any) -> None:
    seam = seams.seam_at(module, "work")
    original = seam.original

    def wrapper(inner: Callable[..., str], *args: Any) -> str:
        seam.remove("a")
        return "a " + inner(*args)

    seam.add("a", wrapper)
    assert module.work(1) == "a " + original(1)
    assert module.work is original


# What can't be wrapped ------------------------------------------------------------------------


class Odd:
    value = 1
    computed = property(lambda self: 1)
    cached = functools.cached_property(lambda self: 1)
    inner = dict
    part = functools.partialmethod(print, 1)
    instance = functools.partial(print)

    @functools.singledispatchmethod
    def single(self, x: Any) -> Any: ...

    @functools.cache  # noqa: B019
    def memoised(self) -> int:
        return 1

    async def later(self) -> None: ...

    async def stream(self) -> Any:
        yield 1

    def plain(self) -> None: ...


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("value", "is no function (found 'int')"),
        ("computed", "is no function (found 'property')"),
        ("cached", "is no function (found 'cached_property')"),
        ("inner", "is no function (found 'type')"),
        ("part", "is no function (found 'partialmethod')"),
        ("instance", "is no function (found 'partial')"),
        ("single", "is no function (found 'singledispatchmethod')"),
        ("memoised", "is no function (found '_lru_cache_wrapper')"),
        ("later", "is an async function"),
        ("stream", "is an async function"),
        ("plain", None),
        ("__init__", None),
        ("__init_subclass__", "is no function (found 'classmethod_descriptor')"),
    ],
)
def test_what_no_wrapper_can_stand_in_for(name: str, reason: str | None) -> None:
    assert seams.unwrappable(seams.found_attribute(Odd, name)) == reason


def test_found_attributes(module: Any) -> None:
    assert seams.found_attribute(module.Special, "inherited") is vars(module.Base)["inherited"]
    assert seams.found_attribute(module.Special, "fixed") is vars(module.Tool)["fixed"]
    assert seams.found_attribute(module.Special, "nothing") is seams.MISSING
    assert seams.found_attribute(module, "nothing") is seams.MISSING
    assert seams.raw_attribute(module.Special, "inherited") is seams.MISSING
    assert repr(seams.MISSING) == "<missing>"
