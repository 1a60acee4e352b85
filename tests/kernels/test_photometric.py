"""The float kernels compute the chain of OpenCV and NumPy calls, whatever the image looks like."""

from __future__ import annotations

import platform
import re

import pytest

np = pytest.importorskip("numpy")
cv2 = pytest.importorskip("cv2")
pytest.importorskip("numba")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from loongkit.kernels import photometric as kernels  # noqa: E402
from loongkit.kernels import photometric_loops as loops  # noqa: E402
from loongkit.kernels.photometric import Steps  # noqa: E402

pytestmark = pytest.mark.stacks

ALL = Steps(12.3, 1.2, True, 1.3, False, -14.2, (2, 0, 1))
CHAINS = {
    "nothing": Steps(),
    "everything": ALL,
    "contrast first": ALL._replace(contrast_last=False, order=(1, 2, 0)),
    "clipped": ALL._replace(clip=True),
    "less of everything": Steps(-30.0, 0.55, False, 0.5, False, 17.9, (1, 0, 2)),
    "saturation": Steps(saturation=1.5),
    "hue over a turn": Steps(hue=-500.0),
    "no saturation": Steps(saturation=0.0),
    "far too much": Steps(90.0, 9.0, True, 30.0, False, 360.0),
    "order": Steps(order=(2, 1, 0)),
}


def chain(image, steps: Steps):
    """What the float variants do, in whole-image operations."""
    image = image.astype(np.float32)
    if steps.brightness is not None:
        image += steps.brightness
    if steps.contrast is not None and not steps.contrast_last:
        image *= steps.contrast
    hsv = cv2.cvtColor(image, cv2.COLOR_BGR2HSV)
    if steps.saturation is not None:
        hsv[..., 1] *= steps.saturation
        if steps.clip:
            hsv[..., 1] = hsv[..., 1].clip(0, 1)
    if steps.hue is not None:
        hsv[..., 0] += steps.hue
        hsv[..., 0][hsv[..., 0] > 360] -= 360
        hsv[..., 0][hsv[..., 0] < 0] += 360
    image = cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)
    if steps.contrast is not None and steps.contrast_last:
        image *= steps.contrast
    return image if steps.order is None else image[..., list(steps.order)]


def photo(height: int, width: int, dtype: str = "float32", seed: int = 0):
    """Random pixels, grey ones, black ones and the primary colours."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (height, width, 3))
    kind = rng.integers(0, 8, (height, width))
    image[kind == 1] = image[kind == 1][:, :1]
    image[kind == 2] = 0
    image[kind == 3] = image[kind == 3] // 128 * 255
    return image.astype(dtype)


def same(found, expected) -> None:
    assert found.shape == expected.shape
    assert np.array_equal(found, expected, equal_nan=True)


def close(found, expected) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= kernels.BOUND


def check(image, steps: Steps) -> None:
    """Both routes, and what they leave as it was."""
    kept = image.copy()
    expected = chain(image, steps)
    assert kernels.covers(image)
    close(kernels.distort(image, steps), expected)
    same(kernels.distort_exactly(image, steps), expected)
    same(image, kept)
    for found in (kernels.distort(image, steps), kernels.distort_exactly(image, steps)):
        assert found.dtype == np.float32 and found.flags.c_contiguous and found.flags.writeable
        assert not np.shares_memory(found, image)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("name", CHAINS)
def test_each_step(name, dtype):
    check(photo(61, 83, dtype), CHAINS[name])


def test_an_image_of_several_tiles_and_whole_vectors():
    check(photo(900, 1600), ALL)


def optional(values):
    return st.one_of(st.none(), values)


@given(
    height=st.integers(1, 50),
    width=st.integers(1, 50),
    dtype=st.sampled_from(["float32", "uint8"]),
    seed=st.integers(0, 1000),
    steps=st.builds(
        Steps,
        brightness=optional(st.floats(-32, 32)),
        contrast=optional(st.floats(0.5, 1.5)),
        contrast_last=st.booleans(),
        saturation=optional(st.floats(0.5, 1.5)),
        hue=optional(st.floats(-18, 18)),
        order=optional(st.permutations(range(3)).map(tuple)),
    ),
    clips=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_any_size_and_draw(height, width, dtype, seed, steps, clips):
    clip = bool(clips and steps.saturation is not None and steps.saturation > 1)
    check(photo(height, width, dtype, seed), steps._replace(clip=clip))


VIEWS = {
    "interleaved cameras": lambda: photo(20, 31 * 6).reshape(20, 31, 3, 6)[..., 2],
    "flipped": lambda: photo(21, 33)[::-1, ::-1],
    "flipped bytes": lambda: photo(21, 33, "uint8")[:, ::-2],
    "cropped": lambda: photo(40, 50, "uint8")[3:20, 5:44],
    "channels first": lambda: photo(17, 19).transpose(2, 0, 1).copy().transpose(1, 2, 0),
    "Fortran order": lambda: np.asfortranarray(photo(17, 19, "uint8")),
    "reversed channels": lambda: photo(17, 19)[..., ::-1],
    "broadcast": lambda: np.broadcast_to(photo(1, 19), (17, 19, 3)),
    "one row": lambda: photo(1, 500, "uint8"),
    "one column": lambda: photo(500, 1),
    "one pixel": lambda: photo(1, 1),
    "wider than a tile": lambda: photo(3, 60_000, "uint8"),
    "4k": lambda: photo(2160, 3840),
}


@pytest.mark.parametrize("name", VIEWS)
def test_any_layout(name):
    check(VIEWS[name](), ALL)


def test_read_only_images_of_any_layout():
    for image in (photo(9, 11), photo(9, 11, "uint8"), photo(9, 22)[:, ::2]):
        image.setflags(write=False)
        check(image, ALL)


def test_values_below_zero_and_above_255():
    image = np.random.default_rng(0).uniform(-60, 320, (64, 96, 3)).astype(np.float32)
    for steps in CHAINS.values():
        check(image, steps)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e5])
def test_what_the_bound_was_not_measured_for_takes_the_exact_route(value):
    for where in ((0, 0, 0), (30, 40, 1), (60, 82, 2)):
        for image in (photo(61, 83), photo(61, 83)[::-1]):
            image[where] = value
            with np.errstate(all="ignore"):
                expected = chain(image, ALL)
            same(kernels.distort(image, ALL), expected)
            same(kernels.distort_exactly(image, ALL), expected)


def test_most_results_are_equal_to_the_last_bit_with_fused_multiply_add():
    if not loops._has_multiply_add() or "AVX2" not in cv2.getBuildInformation():
        pytest.skip("OpenCV's own vector code is compiled in another way here")
    image = photo(64, 128)
    assert np.array_equal(kernels.distort(image, ALL), chain(image, ALL))


def test_a_processor_without_fused_multiply_add(monkeypatch):
    monkeypatch.setattr(loops, "_has_multiply_add", lambda: False)
    loops.kernels.cache_clear()
    try:
        for seed in range(20):
            image = photo(64, 67, seed=seed)
            for steps in CHAINS.values():
                close(kernels.distort(image, steps), chain(image, steps))
    finally:
        loops.kernels.cache_clear()


def test_no_image_makes_numba_compile_again():
    before = [list(kernel.signatures) for kernel in loops.kernels()]
    for make in VIEWS.values():
        kernels.distort(make(), ALL)
        kernels.distort_exactly(make(), ALL)
    assert [list(kernel.signatures) for kernel in loops.kernels()] == before
    assert all(len(signatures) == 1 for signatures in before)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86-64 instructions")
@pytest.mark.parametrize("name", ["fused", "fused_same_hue", "adjust"])
def test_the_loops_are_vector_code(name):
    kernel = getattr(loops.kernels(), name)
    code = kernel.inspect_asm(kernel.signatures[0])
    assert re.search(r"\bv?(div|mul)ps\b", code)


class Subclass(np.ndarray):
    pass


@pytest.mark.parametrize(
    "image",
    [
        photo(4, 5)[..., 0],
        photo(4, 5)[..., :1],
        np.dstack([photo(4, 5), photo(4, 5)])[..., :4],
        photo(4, 5)[:0],
        photo(4, 5, "float64"),
        photo(4, 5, "float16"),
        photo(4, 5, "int32"),
        photo(4, 5, ">f4"),
        photo(4, 5).view(Subclass),
        photo(4, 5).tolist(),
        None,
    ],
    ids=lambda image: f"{type(image).__name__} {getattr(image, 'dtype', '')}",
)
def test_other_images_are_the_originals_business(image):
    assert not kernels.covers(image)


def test_unaligned_images_are_the_originals_business():
    raw = np.zeros(4 * 5 * 3 * 4 + 1, np.uint8)[1:]
    image = raw.view(np.float32).reshape(4, 5, 3)
    assert image.flags.aligned or not kernels.covers(image)
    assert kernels.covers(image.copy())
