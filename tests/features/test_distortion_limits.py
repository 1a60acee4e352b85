"""What DISTORTION leaves to the original, before it has drawn a random number."""

from __future__ import annotations

import pytest

distorting = pytest.importorskip("distorting")
np = pytest.importorskip("numpy")
distortions = distorting.distortions
image, results_for = distorting.image, distorting.results_for
same_as_original = distorting.same_as_original

pytestmark = pytest.mark.stacks
applied, feature, EACH = distorting.applied_once, distorting.feature, distorting.EACH


BAD_IMAGES = {
    "grey": lambda: image(1, "uint8")[..., 0],
    "one channel": lambda: image(1, "uint8")[..., :1],
    "four channels": lambda: np.zeros((4, 5, 4), np.uint8),
    "empty": lambda: image(1, "uint8")[:0],
    "float64": lambda: image(1, "float64"),
    "int16": lambda: image(1, "int16"),
    "other byte order": lambda: image(1, ">f4"),
    "a list": lambda: [[[1, 2, 3]]],
    "nothing": lambda: None,
}


@pytest.mark.parametrize("name", BAD_IMAGES)
@EACH
def test_images_that_are_not_covered_go_to_the_original(feature, origin, name):
    def make():
        bad = BAD_IMAGES[name]()
        return {"img": [image(2, "float32"), bad] if origin == "BEVFormer" else bad}

    same_as_original(feature, origin, distortions.CLASSES[origin](), make, marks=0)


BAD_RESULTS = {
    "no image": dict,
    "no dictionary": lambda: None,
    "several fields": lambda: {"img": image(1, "uint8"), "img_fields": ["img", "img2"]},
    "a tuple of fields": lambda: {"img": image(1, "uint8"), "img_fields": ("img",)},
}


@pytest.mark.parametrize("name", BAD_RESULTS)
def test_results_that_are_not_covered_go_to_the_original(feature, name):
    same_as_original(feature, "mmdet 2", distortions.AsDrawn(), BAD_RESULTS[name], marks=0)
    for origin in distortions.CLASSES:
        if name in ("no image", "no dictionary"):
            transform = distortions.CLASSES[origin]()
            same_as_original(feature, origin, transform, BAD_RESULTS[name], marks=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"brightness_delta": np.float32(3)},
        {"contrast_lower": [0.5]},
        {"saturation_upper": "1.5"},
        {"hue_delta": float("inf")},
        {"brightness_delta": 1e300},
        {"hue_delta": True},
        {"contrast_upper": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("origin", ["mmdet 2", "BEVFormer", "mmseg 0", "mmseg 1"])
def test_unusual_ranges_go_to_the_original(feature, origin, changes):
    transform = distortions.CLASSES[origin]()
    vars(transform).update(changes)
    with np.errstate(all="ignore"):
        same_as_original(feature, origin, transform, lambda: results_for(origin), marks=0)


def test_a_missing_range_goes_to_the_original(feature):
    transform = distortions.AsDrawn()
    del transform.contrast_lower
    same_as_original(feature, "mmdet 2", transform, lambda: results_for("mmdet 2"), marks=0)


@EACH
def test_calls_of_another_form_go_to_the_original(feature, origin):
    method, transform = distortions.method_of(origin), distortions.CLASSES[origin]()
    np.random.seed(0)
    expected = method.__wrapped__(transform, results=results_for(origin))
    np.random.seed(0)
    found = method(transform, results=results_for(origin))
    assert all(map(np.array_equal, distorting.images(found), distorting.images(expected)))
    with pytest.raises(TypeError, match="results"):
        method(transform)
    assert feature.marks == 0


@pytest.mark.parametrize("helper", ["convert", "brightness", "contrast", "saturation", "hue"])
@pytest.mark.parametrize("origin", ["mmseg 0", "mmseg 1"])
def test_overridden_helpers_are_called(feature, origin, helper):
    class Overrides(distortions.CLASSES[origin]):
        pass

    def mine(self, img, *_args, **_options):
        return img // 2

    setattr(Overrides, helper, mine)
    same_as_original(feature, origin, Overrides(), lambda: results_for(origin), marks=0)
    transform = distortions.CLASSES[origin]()
    setattr(transform, helper, mine.__get__(transform))
    same_as_original(feature, origin, transform, lambda: results_for(origin), marks=0)


@pytest.mark.parametrize("origin", ["mmdet 3", "mmdet3d 1"])
@pytest.mark.parametrize(
    "flags",
    [
        [1, 1, 1, 1, 1, 1, 5.0, 1.1, 1.2, 3.0, np.array([2, 0, 1])],
        (True, 1, 1, 1, 1, 1, 5.0, 1.1, 1.2, 3.0, np.array([2, 0, 1])),
        (1, 1, 1, 1, 1, 1, np.float64(5), 1.1, 1.2, 3.0, np.array([2, 0, 1])),
        (1, 1, 1, 1, 1, 1, 5.0, 1.1, 1.2, float("nan"), np.array([2, 0, 1])),
        (1, 1, 1, 1, 1, 1, 5.0, 1.1, 1.2, 3.0, [2, 0, 1]),
        (1, 1, 1, 1, 1, 1, 5.0, 1.1, 1.2, 3.0, np.array([0, 0, 1])),
        (1, 1),
    ],
    ids=str,
)
def test_flags_of_another_kind_go_to_the_original_and_are_drawn_once(feature, origin, flags):
    calls = []

    class Given(distortions.CLASSES[origin]):
        def _random_flags(self):
            calls.append(np.random.randint(2))
            return flags

    same_as_original(feature, origin, Given(), lambda: results_for(origin, 1), marks=0)
    assert len(calls) == 16


def view_cases() -> dict:
    one, other = image(3, "float32"), image(4, "float32")
    read_only = one.copy()
    read_only.setflags(write=False)
    return {
        "the same image twice": lambda: [one.copy()] * 2,
        "a view of the same image": lambda: (lambda kept: [kept, kept[:]])(one.copy()),
        "overlapping crops": lambda: (lambda kept: [kept[:-2], kept[2:]])(one.copy()),
        "read-only": lambda: [other.copy(), read_only],
        "an array of images": lambda: np.stack([one, one + 1]),
        "no images": list,
        "a generator": lambda: (part for part in (one.copy(), other.copy())),
    }


@pytest.mark.parametrize("name", view_cases())
def test_camera_views_that_are_not_covered_go_to_the_original(feature, name):
    make = view_cases()[name]
    method, transform = distortions.method_of("BEVFormer"), distortions.MultiView()
    for seed in range(6):
        outcomes = []
        for function in (method.__wrapped__, method):
            np.random.seed(seed)
            try:
                found = [one.tobytes() for one in function(transform, {"img": make()})["img"]]
            except ValueError as error:
                found = str(error)
            outcomes.append((found, np.random.get_state()[1].tobytes()))
        assert outcomes[0] == outcomes[1]
    assert feature.marks == 0
