"""The 8-bit kernels give the bytes of the chain of OpenCV and NumPy calls."""

from __future__ import annotations

import itertools

import pytest

np = pytest.importorskip("numpy")
cv2 = pytest.importorskip("cv2")
pytest.importorskip("numba")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from loongkit.kernels import photometric_bytes as kernels  # noqa: E402
from loongkit.kernels.photometric_bytes import Scale, Steps  # noqa: E402

pytestmark = pytest.mark.stacks

BYTES = np.arange(256, dtype=np.uint8)


def table(seed: int, largest: int = 255):
    return np.random.default_rng(seed).integers(0, largest + 1, 256).astype(np.uint8)


def photo(height: int, width: int, seed: int = 0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


def scaled(image, change: Scale):
    """The formula of mmseg, with NumPy's own rounding."""
    image = image.astype(np.float32) * change.factor + change.summand
    return np.clip(image, 0, 255).astype(np.uint8)


def chain(image, steps: Steps):
    """The same in whole-image operations."""
    for change in steps.first:
        image = scaled(image, change)
    for channel, change in ((1, steps.saturation), (0, steps.hue)):
        if change is not None:
            hsv = cv2.cvtColor(image, cv2.COLOR_BGR2HSV)
            hsv[..., channel] = change[hsv[..., channel]]
            image = cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)
    for change in steps.last:
        image = scaled(image, change)
    return image


def check(image, steps: Steps) -> None:
    kept = image.copy()
    found = kernels.distort(image, steps)
    assert found.dtype == np.uint8 and np.array_equal(found, chain(image, steps))
    assert np.array_equal(image, kept)
    if not (steps.first or steps.last) and steps.saturation is None and steps.hue is None:
        assert found is image
    else:
        assert found.flags.c_contiguous and found.flags.writeable
        assert not np.shares_memory(found, image)


BRIGHTER, STRONGER = Scale(1.0, 12.3), Scale(1.37, 0.0)
PARTS = (
    ((), (BRIGHTER,), (BRIGHTER, STRONGER)),
    (None, table(2)),
    (None, table(3, largest=179)),
    ((), (Scale(0.61, 0.0),)),
)
COMBINATIONS = [Steps(*parts) for parts in itertools.product(*PARTS)]


@pytest.mark.parametrize("number", range(len(COMBINATIONS)))
def test_each_combination_of_parts(number):
    check(photo(61, 83), COMBINATIONS[number])
    check(photo(300, 400), COMBINATIONS[number])


@given(
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(0, 99),
    st.integers(0, len(COMBINATIONS) - 1),
)
@settings(max_examples=100, deadline=None)
def test_any_size(height, width, seed, number):
    check(photo(height, width, seed), COMBINATIONS[number])


@given(st.floats(-3, 3), st.floats(-300, 300))
@settings(max_examples=500, deadline=None)
def test_every_byte_is_scaled_as_by_numpy(factor, summand):
    check(np.repeat(BYTES, 3).reshape(16, 16, 3), Steps(first=(Scale(factor, summand),)))


VIEWS = {
    "flipped": lambda: photo(21, 33)[::-1, ::-2],
    "cropped": lambda: photo(40, 50)[3:20, 5:44],
    "channels first": lambda: photo(17, 19).transpose(2, 0, 1).copy().transpose(1, 2, 0),
    "reversed channels": lambda: photo(17, 19)[..., ::-1],
    "interleaved": lambda: photo(20, 31 * 6).reshape(20, 31, 3, 6)[..., 2],
    "broadcast": lambda: np.broadcast_to(photo(1, 19), (17, 19, 3)),
    "one pixel": lambda: photo(1, 1),
    "4k": lambda: photo(2160, 3840),
}


@pytest.mark.parametrize("name", VIEWS)
def test_any_layout_also_read_only(name):
    image = VIEWS[name]()
    image.setflags(write=False)
    for steps in COMBINATIONS if name != "4k" else COMBINATIONS[-1:]:
        check(image, steps)


def test_no_image_makes_numba_compile_again():
    before = [list(kernel.signatures) for kernel in kernels.kernels()]
    for make in VIEWS.values():
        kernels.distort(make(), COMBINATIONS[-1])
    assert [list(kernel.signatures) for kernel in kernels.kernels()] == before


@pytest.mark.parametrize(
    "image",
    [
        photo(4, 5)[..., 0],
        np.dstack([photo(4, 5), photo(4, 5)])[..., :4],
        photo(4, 5)[:0],
        photo(4, 5).astype(np.float32),
        photo(4, 5).astype(np.int8),
        None,
    ],
)
def test_other_images_are_the_originals_business(image):
    assert not kernels.covers(image)
