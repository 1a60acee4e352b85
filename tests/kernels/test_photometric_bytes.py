"""The tables give the bytes of the chain that they were made from."""

from __future__ import annotations

import itertools

import pytest

np = pytest.importorskip("numpy")
cv2 = pytest.importorskip("cv2")
pytest.importorskip("numba")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from loongkit.kernels import photometric_bytes as kernels  # noqa: E402
from loongkit.kernels.photometric_bytes import Tables  # noqa: E402

pytestmark = pytest.mark.stacks

BYTES = np.arange(256, dtype=np.uint8)


def table(seed: int, largest: int = 255):
    return np.random.default_rng(seed).integers(0, largest + 1, 256).astype(np.uint8)


def photo(height: int, width: int, seed: int = 0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


def chain(image, tables: Tables):
    """The same in whole-image operations."""
    if tables.first is not None:
        image = tables.first[image]
    for channel, change in ((1, tables.saturation), (0, tables.hue)):
        if change is not None:
            hsv = cv2.cvtColor(image, cv2.COLOR_BGR2HSV)
            hsv[..., channel] = change[hsv[..., channel]]
            image = cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)
    return image if tables.last is None else tables.last[image]


def check(image, tables: Tables) -> None:
    kept = image.copy()
    found = kernels.distort(image, tables)
    assert found.dtype == np.uint8 and np.array_equal(found, chain(image, tables))
    assert np.array_equal(image, kept)
    if any(part is not None for part in tables):
        assert found.flags.c_contiguous and found.flags.writeable
        assert not np.shares_memory(found, image)
    else:
        assert found is image


PARTS = (table(1), table(2), table(3, largest=179), table(4))
COMBINATIONS = [
    Tables(*(part if used else None for part, used in zip(PARTS, uses, strict=True)))
    for uses in itertools.product((False, True), repeat=4)
]


@pytest.mark.parametrize("tables", COMBINATIONS, ids=range(16))
def test_each_combination_of_parts(tables):
    check(photo(61, 83), tables)
    check(photo(300, 400), tables)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 99), st.sampled_from(COMBINATIONS))
@settings(max_examples=100, deadline=None)
def test_any_size(height, width, seed, tables):
    check(photo(height, width, seed), tables)


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
    for tables in COMBINATIONS:
        if name != "4k" or all(part is not None for part in tables):
            check(image, tables)


def test_tables_one_behind_the_other():
    first, second = table(5), table(6)
    image = photo(5, 7)
    both = kernels.composed(first, second)
    assert np.array_equal(both[image], second[first[image]])
    assert kernels.composed(None, second) is second
    assert kernels.composed(first, None) is first
    assert kernels.composed(None, None) is None


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
