"""The kernels that write planes give the bits of mmcv's own functions."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")
photometric = pytest.importorskip("mmcv.image.photometric")
pytest.importorskip("numba")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from loongkit.kernels import format as kernels  # noqa: E402

pytestmark = pytest.mark.stacks

UNTOUCHED = np.float32(-12345)


def image(height: int, width: int, dtype: str):
    values = np.random.default_rng(height * 1000 + width).uniform(-60, 320, (height, width, 3))
    return values.clip(0, 255).astype(dtype) if dtype == "uint8" else values.astype(dtype)


def planes(height: int, width: int):
    return np.full((3, height, width), UNTOUCHED, np.float32)


def in_the_corner(found, expected) -> None:
    """The planes hold the image in their upper left corner, and nothing else was written."""
    height, width, _ = expected.shape
    expected = expected.transpose(2, 0, 1)
    assert np.array_equal(found[:, :height, :width].view(np.uint32), expected.view(np.uint32))
    assert (found[:, height:] == UNTOUCHED).all() and (found[:, :, width:] == UNTOUCHED).all()


numbers = st.one_of(st.floats(-300, 300, width=32), st.integers(1, 300).map(float))
triples = st.lists(numbers, min_size=3, max_size=3).filter(all)


@given(
    size=st.tuples(st.integers(1, 70), st.integers(1, 110)),
    more=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    dtype=st.sampled_from(["uint8", "float32"]),
    mean=triples,
    std=triples,
    to_rgb=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_any_size_room_and_statistics(size, more, dtype, mean, std, to_rgb):
    source = image(*size, dtype)
    mean, std = np.array(mean), np.array(std)
    kept, found = source.copy(), planes(size[0] + more[0], size[1] + more[1])
    assert kernels.covers(source)
    kernels.normalize(found, source, mean, std, to_rgb)
    in_the_corner(found, photometric.imnormalize(source.copy(), mean, std, to_rgb))
    assert np.array_equal(source, kept)


VIEWS = {
    "interleaved cameras": lambda d: image(20, 31 * 6, d).reshape(20, 31, 3, 6)[..., 2],
    "flipped": lambda d: image(21, 33, d)[::-1, ::-1],
    "cropped": lambda d: image(40, 50, d)[3:20, 5:44],
    "planes already": lambda d: image(17, 19, d).transpose(2, 0, 1).copy().transpose(1, 2, 0),
    "reversed channels": lambda d: image(17, 19, d)[..., ::-1],
    "one row for all": lambda d: np.broadcast_to(image(1, 19, d), (17, 19, 3)),
    "several tiles": lambda d: image(300, 700, d)[::-1],
    "wider than a tile": lambda d: image(3, 60_000, d)[::-1],
    "read-only": lambda d: np.frombuffer(image(5, 7, d).tobytes(), d).reshape(5, 7, 3),
    "one pixel": lambda d: image(1, 1, d),
}


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("view", VIEWS)
def test_any_strides(view, dtype):
    source = VIEWS[view](dtype)
    mean, std = np.array([1.5, 2, 3]), np.array([0.3, 57, 2])
    assert kernels.covers(source)
    found = planes(source.shape[0] + 2, source.shape[1] + 3)
    kernels.normalize(found, source, mean, std, True)
    in_the_corner(found, photometric.imnormalize(source.copy(), mean, std, True))
    if dtype == "float32":
        found = planes(source.shape[0] + 2, source.shape[1])
        kernels.copy(found, source)
        in_the_corner(found, source)


def test_values_that_are_no_numbers_keep_their_bits():
    source = image(9, 70, "float32")
    source[0, :4, 0] = np.nan, np.inf, -np.inf, -0.0
    source[0, 0, 0:1].view(np.uint32)[0] |= 5  # a NaN of its own
    mean, std = np.zeros(3), np.ones(3)
    found, copied = planes(9, 70), planes(9, 70)
    kernels.normalize(found, source, mean, std, False)
    in_the_corner(found, photometric.imnormalize(source.copy(), mean, std, False))
    kernels.copy(copied, source)
    in_the_corner(copied, source)


class Image(np.ndarray):
    """A subclass, which may mean something else by its operations."""


NOT_COVERED = {
    "gray": lambda: image(9, 9, "uint8")[..., 0],
    "two channels": lambda: image(9, 9, "uint8")[..., :2],
    "no pixel": lambda: image(9, 9, "uint8")[:0],
    "doubles": lambda: image(9, 9, "float64"),
    "other byte order": lambda: image(9, 9, "float32").astype(">f4"),
    "a subclass": lambda: image(9, 9, "uint8").view(Image),
    "a list": lambda: image(9, 9, "uint8").tolist(),
    "unaligned": lambda: np.frombuffer(b"x" + image(9, 9, "float32").tobytes(), "f4", 243, 1),
    "nothing": lambda: None,
}


@pytest.mark.parametrize("what", NOT_COVERED)
def test_what_is_not_covered(what):
    found = NOT_COVERED[what]()
    if what == "unaligned":
        found = found.reshape(9, 9, 3)
        assert not found.flags.aligned
    assert not kernels.covers(found)
