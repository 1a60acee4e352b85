"""The normalisation kernels give mmcv's own bits, whatever the image looks like in memory."""

from __future__ import annotations

import pickle
import warnings

import pytest

np = pytest.importorskip("numpy")
photometric = pytest.importorskip("mmcv.image.photometric")
pytest.importorskip("numba")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from loongkit.kernels import normalize as kernels  # noqa: E402

pytestmark = pytest.mark.stacks

MEAN = np.array([123.675, 116.28, 103.53], np.float32)
STD = np.array([58.395, 57.12, 57.375], np.float32)


def image(height: int, width: int, dtype: str, seed: int = 0):
    values = np.random.default_rng(seed).uniform(-60, 320, (height, width, 3))
    return values.clip(0, 255).astype(dtype) if dtype == "uint8" else values.astype(dtype)


def same(found, expected) -> None:
    assert found.dtype == expected.dtype == np.float32
    assert found.shape == expected.shape
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))  # NaNs and -0.0 too


sizes = st.integers(1, 70)
numbers = st.one_of(st.floats(-300, 300, width=32), st.integers(-300, 300).map(float), st.just(0.0))
triples = st.lists(numbers, min_size=3, max_size=3)


@given(
    height=sizes,
    width=sizes,
    dtype=st.sampled_from(["uint8", "float32"]),
    mean=triples,
    std=triples,
    kinds=st.tuples(*[st.sampled_from(["float32", "float64", "int64"])] * 2),
    to_rgb=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_any_size_type_and_statistics(height, width, dtype, mean, std, kinds, to_rgb):
    source = image(height, width, dtype)
    mean, std = np.array(mean).astype(kinds[0]), np.array(std).astype(kinds[1])
    kept = source.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        expected = photometric.imnormalize(source.copy(), mean, std, to_rgb)
        assert kernels.covers(source, mean, std)
        found = kernels.normalize(source, mean, std, to_rgb)
    same(found, expected)
    assert np.array_equal(source, kept)
    assert found.flags.c_contiguous and found.flags.writeable and found.flags.owndata


VIEWS = {
    "interleaved cameras": lambda: image(20, 31 * 6, "float32").reshape(20, 31, 3, 6)[..., 2],
    "flipped": lambda: image(21, 33, "float32")[::-1, ::-1],
    "flipped bytes": lambda: image(21, 33, "uint8")[:, ::-2],
    "cropped": lambda: image(40, 50, "uint8")[3:20, 5:44],
    "channels first": lambda: image(17, 19, "float32").transpose(2, 0, 1).copy().transpose(1, 2, 0),
    "Fortran order": lambda: np.asfortranarray(image(17, 19, "uint8")),
    "reversed channels": lambda: image(17, 19, "float32")[..., ::-1],
    "broadcast": lambda: np.broadcast_to(image(1, 19, "float32"), (17, 19, 3)),
    "one row": lambda: image(1, 500, "uint8"),
    "one pixel": lambda: image(1, 1, "float32"),
    "4k": lambda: image(2160, 3840, "uint8"),
}


@pytest.mark.parametrize("to_rgb", [True, False])
@pytest.mark.parametrize("name", VIEWS)
def test_any_memory_layout(name, to_rgb):
    source = VIEWS[name]()
    expected = photometric.imnormalize(source.copy(), MEAN, STD, to_rgb)
    same(kernels.normalize(source, MEAN, STD, to_rgb), expected)


def test_a_read_only_image_is_taken():
    source = image(9, 7, "uint8")
    source.flags.writeable = False
    same(
        kernels.normalize(source, MEAN, STD, True),
        photometric.imnormalize(source.copy(), MEAN, STD, True),
    )


@pytest.mark.parametrize("to_rgb", [True, False])
def test_nan_infinity_and_the_largest_numbers(to_rgb):
    source = image(16, 48, "float32")
    extremes = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0]
    source.reshape(-1)[::17][: len(extremes)] = extremes
    expected = photometric.imnormalize(source.copy(), MEAN, STD, to_rgb)
    found = kernels.normalize(source, MEAN, STD, to_rgb)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("to_rgb", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (37, 41), (900, 1600)])
def test_in_place(shape, to_rgb):
    source = image(*shape, "float32")
    expected = photometric.imnormalize_(source.copy(), MEAN, STD, to_rgb)
    assert kernels.covers_in_place(source, MEAN, STD)
    assert kernels.normalize_in_place(source, MEAN, STD, to_rgb) is source
    same(source, expected)


def test_a_zero_deviation_warns_as_mmcv_does():
    std = np.array([1.0, 0.0, 1.0])
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        kernels.normalize(image(4, 4, "uint8"), MEAN, std, True)


class Own(np.ndarray):
    pass


NOT_COVERED = {
    "gray": (image(5, 5, "uint8")[..., 0], MEAN, STD),
    "one channel": (image(5, 5, "uint8")[..., :1], MEAN, STD),
    "four channels": (np.zeros((5, 5, 4), np.uint8), MEAN, STD),
    "empty": (np.zeros((0, 5, 3), np.uint8), MEAN, STD),
    "float64": (image(5, 5, "float64"), MEAN, STD),
    "int16": (image(5, 5, "int16"), MEAN, STD),
    "float16": (image(5, 5, "float16"), MEAN, STD),
    "other byte order": (image(5, 5, "float32").astype(">f4"), MEAN, STD),
    "subclass": (image(5, 5, "uint8").view(Own), MEAN, STD),
    "list": (image(5, 5, "uint8").tolist(), MEAN, STD),
    "mean of a list": (image(5, 5, "uint8"), MEAN.tolist(), STD),
    "one mean": (image(5, 5, "uint8"), MEAN[:1], STD),
    "four deviations": (image(5, 5, "uint8"), MEAN, np.ones(4)),
    "complex mean": (image(5, 5, "uint8"), MEAN.astype(complex), STD),
}


@pytest.mark.parametrize("name", NOT_COVERED)
def test_everything_else_is_left_to_the_original(name):
    assert not kernels.covers(*NOT_COVERED[name])


def test_in_place_needs_a_writable_contiguous_float_image():
    float_image = image(6, 6, "float32")
    assert not kernels.covers_in_place(image(6, 6, "uint8"), MEAN, STD)
    assert not kernels.covers_in_place(float_image[:, ::2], MEAN, STD)
    float_image.flags.writeable = False
    assert not kernels.covers_in_place(float_image, MEAN, STD)


def test_nothing_is_compiled_for_an_image_met_later():
    compiled = kernels.kernels()
    before = [len(kernel.signatures) for kernel in compiled]
    for make in VIEWS.values():
        source = make()[:50, :50]
        kernels.normalize(source, MEAN, STD, True)
        kernels.normalize(source, MEAN.astype(np.float64), STD, False)
    assert [len(kernel.signatures) for kernel in compiled] == before


def test_the_result_is_an_ordinary_array():
    found = kernels.normalize(image(3, 4, "uint8"), MEAN, STD, True)
    assert type(found) is np.ndarray
    assert np.array_equal(pickle.loads(pickle.dumps(found)), found)
