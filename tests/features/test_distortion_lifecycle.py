"""DISTORTION's exact route, and how it finds classes, steps aside and is taken out again."""

from __future__ import annotations

import sys
import types

import children
import pytest

distorting = pytest.importorskip("distorting")
np, mmcv = pytest.importorskip("numpy"), pytest.importorskip("mmcv")
distortions = distorting.distortions
outcome, results_for = distorting.outcome, distorting.results_for
same_as_original = distorting.same_as_original

from loongkit.activation import logs, states  # noqa: E402
from loongkit.images import distortion_check, variants  # noqa: E402
from loongkit.kernels import photometric, photometric_loops  # noqa: E402

pytestmark = pytest.mark.stacks
EACH = distorting.EACH


@pytest.fixture
def log(tmp_path):
    """A function that returns what was logged, at debug level, since the test began."""
    logs.configure("debug", str(tmp_path))
    yield lambda: children.log_of(tmp_path)
    logs.configure(None, None)


@EACH
def test_the_exact_route_gives_the_same_bits(origin):
    with distorting.applied(exact=True) as feature:
        method, transform = distortions.method_of(origin), distortions.CLASSES[origin]()
        for seed in range(200):
            wanted = outcome(method.__wrapped__, transform, results_for(origin, seed), seed)
            assert outcome(method, transform, results_for(origin, seed), seed) == wanted
        assert feature.marks == 200


@pytest.mark.parametrize("origin", ["mmdet 3", "mmdet3d 1"])
def test_overridden_flags_of_the_usual_kind_are_used(origin):
    class Given(distortions.CLASSES[origin]):
        def _random_flags(self):
            return (2, 1, 1, 1, 1, 1, 5.0, 1.1, 1.2, 3.0, np.array([2, 0, 1]))

    with distorting.applied(exact=True) as feature:
        same_as_original(feature, origin, Given(), lambda: results_for(origin, 1), marks=1)


@EACH
def test_everything_is_put_back(origin):
    before = distortions.method_of(origin)
    with distorting.applied() as feature:
        assert distortions.method_of(origin).__wrapped__ is before
        transform = distortions.CLASSES[origin]()
        transform(results_for(origin))
        bound = transform.__call__
    assert distortions.method_of(origin) is before
    bound(results_for(origin))
    assert feature.marks == 1


@EACH
def test_classes_that_were_registered_before(origin):
    with distorting.applied(distortions.CLASSES[origin], late=True) as feature:
        distortions.CLASSES[origin]()(results_for(origin))
        assert feature.marks == 1
    assert not hasattr(distortions.method_of(origin), "__wrapped__")


def test_a_class_is_replaced_once_however_often_it_is_registered(log):
    before = distortions.method_of("mmdet 2")
    with distorting.applied() as feature:
        distorting.register(distortions.AsDrawn)
        assert distortions.method_of("mmdet 2").__wrapped__ is before
        distortions.AsDrawn()(results_for("mmdet 2"))
        assert feature.marks == 1
    assert "left alone" not in log()


def test_the_base_of_a_registered_class_is_found():
    class Registered(distortions.AsDrawn):
        pass

    with distorting.applied(Registered) as feature:
        Registered()(results_for("mmdet 2"))
        assert feature.marks == 1


def test_unknown_code_under_a_known_name_is_left_alone_with_one_line(log):
    def __call__(self, results):
        return results

    unknown = type("PhotoMetricDistortion", (), {"__call__": __call__})
    other = type("Another", (), {"__call__": __call__})
    with distorting.applied(unknown, other):
        assert vars(unknown)["__call__"] is __call__
    lines = [line for line in log().splitlines() if "left alone" in line]
    assert len(lines) == 1 and "PhotoMetricDistortion.__call__ (" in lines[0], lines


def test_a_wrapped_method_is_not_taken_for_what_it_wraps(log):
    import functools

    @functools.wraps(distortions.AsDrawn.__call__)
    def wrapper(self, results):
        return "wrapped"

    cls = type("PhotoMetricDistortion", (distortions.AsDrawn,), {"__call__": wrapper})
    with distorting.applied(cls):
        assert cls()(results_for("mmdet 2")) == "wrapped"
    assert "left alone" in log()


def test_a_helper_that_differs_makes_the_class_unknown(log):
    class PhotoMetricDistortion(distortions.BytesByCall):
        __call__ = distortions.BytesByCall.__call__

        def convert(self, img, alpha=1, beta=0):
            return img

    with distorting.applied(PhotoMetricDistortion) as feature:
        PhotoMetricDistortion()(results_for("mmseg 0"))
        assert feature.marks == 0
    assert "left alone" in log()


def plugin(monkeypatch, **names):
    """A copy of the mmdet 2 kind in a module with other globals."""
    method = distortions.AsDrawn.__call__
    module = types.ModuleType("plugin_of_the_test")
    vars(module).update({**method.__globals__, **names})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    copy = types.FunctionType(method.__code__, vars(module), "__call__")
    return type("PhotoMetricDistortion", (distortions.AsDrawn,), {"__call__": copy}), copy


class Draws:
    """Stands in for numpy.random; draws nothing but zeros."""

    def randint(self, *_args):
        return 0


@pytest.mark.parametrize("name", ["random", "np", "mmcv"])
def test_a_module_that_means_something_else_by_its_names_is_left_alone(monkeypatch, log, name):
    fakes = {
        "random": Draws(),
        "np": types.SimpleNamespace(float32=np.float64),
        "mmcv": types.SimpleNamespace(bgr2hsv=lambda img: img, hsv2bgr=lambda img: img),
    }
    cls, method = plugin(monkeypatch, **{name: fakes[name]})
    with distorting.applied(cls) as feature:
        for seed in range(3):
            if name != "np":  # OpenCV refuses float64
                wanted = outcome(method, cls(), results_for("mmdet 2"), seed)
                assert outcome(cls.__call__, cls(), results_for("mmdet 2"), seed) == wanted
            else:
                outcome(cls.__call__, cls(), results_for("mmdet 2"), seed)
        assert feature.marks == 0 and not feature.record.out
    assert "left alone" in log()


def test_a_conversion_replaced_later_is_called(monkeypatch):
    calls = []

    def mine(img):
        calls.append(1)
        return img

    with distorting.applied() as feature:
        distortions.AsDrawn()(results_for("mmdet 2"))
        monkeypatch.setattr(mmcv, "bgr2hsv", mine)
        distortions.AsDrawn()(results_for("mmdet 2"))
        assert (feature.marks, len(calls)) == (1, 1)


def broken_values(monkeypatch):
    real = photometric.distort
    monkeypatch.setattr(photometric, "distort", lambda *args: real(*args) + np.float32(0.01))


def broken_nan(monkeypatch):
    real = photometric.distort
    monkeypatch.setattr(photometric, "distort", lambda *args: real(*args) * np.nan)


def broken_type(monkeypatch):
    real = photometric.distort
    monkeypatch.setattr(photometric, "distort", lambda *args: real(*args).astype(float))


def broken_compiler(monkeypatch):
    def njit(*_args, **_options):
        raise RuntimeError("no compiler today")

    photometric_loops.kernels.cache_clear()
    monkeypatch.setattr(photometric_loops.numba, "njit", njit)


def old_numba(monkeypatch):
    monkeypatch.setattr(photometric_loops.numba, "__version__", "0.48.0")


FAULTS = {
    broken_values: "on this OpenCV, accepted is 0.001",
    broken_nan: "differs by nan",
    broken_type: "the result is float64",
    broken_compiler: "no compiler today",
    old_numba: "0.48.0",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_it_steps_aside_with_the_reason_and_the_original_runs(monkeypatch, fault):
    before = distortions.method_of("mmdet 2")
    wanted = outcome(before, distortions.AsDrawn(), results_for("mmdet 2"))
    with distorting.applied() as feature:
        fault(monkeypatch)
        found = outcome(
            distortions.method_of("mmdet 2"), distortions.AsDrawn(), results_for("mmdet 2")
        )
        assert found == wanted and feature.marks == 0
        assert feature.record.state == states.FAILED
        assert FAULTS[fault] in feature.record.reason, feature.record.reason
        assert distortions.method_of("mmdet 2") is before


def test_under_strict_the_fault_is_raised(monkeypatch):
    with distorting.applied() as feature:
        feature.record.strict = True
        broken_values(monkeypatch)
        with pytest.raises(states.StrictError, match=r"differs by 0\.01"):
            distortions.AsDrawn()(results_for("mmdet 2"))


@EACH
def test_the_check_finds_other_draws(monkeypatch, origin):
    known = next(row for row in distortions.known() if row.origin == origin)
    recipe = distortion_check.RECIPES[origin]

    def draws_more(call):
        if origin in ("mmdet 3", "mmdet3d 1"):
            call.transform._random_flags()
        call.random.randint(2)
        return recipe.run(call)

    found = variants.Recognised(
        distortions.CLASSES[origin],
        known,
        distortions.method_of(origin),
        {name: getattr(distortions.CLASSES[origin], name) for name, _ in known.helpers},
    )
    assert distortion_check.difference(found, photometric.distort, exact=False) is None
    monkeypatch.setitem(distortion_check.RECIPES, origin, recipe._replace(run=draws_more))
    assert distortion_check.difference(found, photometric.distort, exact=False) is not None


def test_the_checks_draws_take_every_step_and_leave_every_step_out():
    steps = set()
    for seed in distortion_check.SEEDS:
        flags = distortion_check._flags(np.random.RandomState(seed))
        steps |= set(enumerate(flags[:6]))
    assert len(steps) == 12


def test_the_check_leaves_the_random_numbers_alone():
    with distorting.applied():
        for origin in distortions.CLASSES:
            np.random.seed(0)
            before = np.random.get_state()[1].tobytes(), np.random.get_state()[2]
            with pytest.raises(Exception):  # noqa: B017
                distortions.method_of(origin)(distortions.CLASSES[origin](), {"img": [None]})
            state = np.random.get_state()
            assert origin.startswith("mmseg") or (state[1].tobytes(), state[2]) == before


@EACH
def test_what_wants_to_be_compiled_before_workers_start(origin):
    from loongkit.features import distortion

    with distorting.applied(distortions.CLASSES[origin]) as feature:
        at_work = distortion.at_work(feature.patcher)
        assert at_work.wants(distortions.CLASSES[origin]())
        assert not at_work.wants(distortions.CLASSES) and not at_work.wants(None)
        at_work.compile()
        kernels = distortion_check.RECIPES[origin].compile
        assert kernels.cache_info().currsize == 1
    assert not at_work.wants(distortions.CLASSES[origin]())
