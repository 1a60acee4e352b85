"""DISTORTION on classes of the five kinds: results, random draws, inheritance, copies."""

from __future__ import annotations

import copy
import pickle

import pytest

distorting = pytest.importorskip("distorting")
np = pytest.importorskip("numpy")
distortions = distorting.distortions
results_for = distorting.results_for

pytestmark = pytest.mark.stacks
applied, feature, EACH = distorting.applied_once, distorting.feature, distorting.EACH


@EACH
def test_results_and_draws_for_200_seeds(feature, origin):
    method, transform = distortions.method_of(origin), distortions.CLASSES[origin]()
    bound = 1e-3 if origin in distortions.FLOATS else 0
    for seed in range(200):
        kept = results_for(origin, seed)
        given = results_for(origin, seed)
        np.random.seed(seed)
        expected = method.__wrapped__(transform, results_for(origin, seed))
        state = np.random.get_state()
        np.random.seed(seed)
        found = method(transform, given)
        assert found is given and found.keys() == expected.keys()
        for wanted, got in zip(distorting.images(expected), distorting.images(found), strict=True):
            assert (wanted.dtype, wanted.shape) == (got.dtype, got.shape)
            assert np.abs(wanted.astype(float) - got).max() <= bound
        assert np.random.get_state()[1].tobytes() == state[1].tobytes()
        assert np.random.get_state()[2:] == state[2:]
        assert kept.keys() <= found.keys()
    assert feature.marks == 200


@EACH
def test_other_ranges_are_read_at_each_call(feature, origin):
    cls, method = distortions.CLASSES[origin], distortions.method_of(origin)
    transform = cls(delta=1, contrast=(2.0, 2.5), saturation=(0.0, 0.1), hue_delta=100)
    for changes in ({}, {"brightness_delta": 90.5}, {"contrast_lower": -1}, {"hue_delta": 7}):
        vars(transform).update(changes)
        for seed in range(20):
            np.random.seed(seed)
            expected = method.__wrapped__(transform, results_for(origin, seed))
            np.random.seed(seed)
            found = method(transform, results_for(origin, seed))
            for wanted, got in zip(
                distorting.images(expected), distorting.images(found), strict=True
            ):
                assert np.abs(wanted.astype(float) - got).max() <= 1e-3
    assert feature.marks == 80


@pytest.mark.parametrize("origin", ["mmseg 0", "mmseg 1"])
def test_a_draw_that_raises_does_so_after_the_same_draws(feature, origin):
    transform = distortions.CLASSES[origin](hue_delta=0)  # randint(0, 0) raises where hue fires
    method = distortions.method_of(origin)
    kinds = set()
    for seed in range(20):
        wanted = distorting.outcome(method.__wrapped__, transform, results_for(origin), seed)
        assert distorting.outcome(method, transform, results_for(origin), seed) == wanted
        kinds.add(wanted[0][0] is ValueError)
    assert kinds == {True, False}


@EACH
def test_subclasses_inherit_it_and_those_that_override_it_do_not(feature, origin):
    class Inherits(distortions.CLASSES[origin]):
        pass

    class Overrides(distortions.CLASSES[origin]):
        def __call__(self, results):
            return "mine"

        transform = __call__

    assert Overrides()(results_for(origin)) == "mine" and feature.marks == 0
    assert Inherits()(results_for(origin))["img"] is not None and feature.marks == 1


def test_given_parameters_are_used_again(feature):
    transform, method = distortions.ByGivenFlags(), distortions.method_of("mmdet3d 1")
    first = method(transform, results_for("mmdet3d 1"))
    state = np.random.get_state()[2]
    again = {**results_for("mmdet3d 1"), "photometric_param": first["photometric_param"]}
    second = method(transform, again)
    assert np.array_equal(first["img"], second["img"]) and np.random.get_state()[2] == state
    assert feature.marks == 2


def test_camera_views_are_not_edited_as_the_original_does(feature):
    given = [distorting.image(seed, "float32") for seed in range(3)]
    kept = [one.copy() for one in given]
    for seed in range(10):
        np.random.seed(seed)
        distortions.MultiView()({"img": given})
    assert all(map(np.array_equal, given, kept)) and feature.marks == 10


@pytest.mark.parametrize("origin", ["mmseg 0", "mmseg 1"])
def test_bytes_that_are_left_as_they_are_are_the_same_object(feature, origin):
    kept = 0
    for seed in range(200):
        given = results_for(origin)
        pixels = given["img"]
        np.random.seed(seed)
        kept += distortions.CLASSES[origin]()(given)["img"] is pixels
    assert 0 < kept < 50 and feature.marks == 200


@EACH
def test_transforms_can_be_copied_and_pickled(feature, origin):
    transform = distortions.CLASSES[origin](delta=7)
    for made in (copy.deepcopy(transform), pickle.loads(pickle.dumps(transform))):
        assert vars(made) == vars(transform)
        made(results_for(origin))
    assert feature.marks == 2
