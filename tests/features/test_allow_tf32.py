"""ALLOW_TF32 on the real torch: every order of the user's own settings and ours."""

from __future__ import annotations

import itertools
import warnings

import pytest
from applied import applied

from loongkit.features import allow_tf32

torch = pytest.importorskip("torch")
BACKENDS = torch.backends
HAS_NEW_API = hasattr(torch._C, allow_tf32.NEW_API_SETTER)
new_api = pytest.mark.skipif(not HAS_NEW_API, reason="this torch has no fp32_precision")


def read(path):
    """A setting such as "cuda.matmul.allow_tf32", or the name of the error that reading raises."""
    owner = BACKENDS
    try:
        for name in path.split("."):
            owner = getattr(owner, name)
    except (AttributeError, RuntimeError) as error:
        return type(error).__name__
    return owner


def write(path, value):
    owner, _, name = path.rpartition(".")
    setattr(read(owner) if owner else BACKENDS, name, value)


def precision():
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError as error:
        return type(error).__name__


SETTINGS = (
    "cuda.matmul.allow_tf32",
    "cudnn.allow_tf32",
    "fp32_precision",
    "cuda.matmul.fp32_precision",
    "cudnn.fp32_precision",
    "cudnn.conv.fp32_precision",
    "cudnn.rnn.fp32_precision",
    "mkldnn.fp32_precision",
    "mkldnn.matmul.fp32_precision",
)


def everything():
    return {**{path: read(path) for path in SETTINGS}, "precision": precision()}


@pytest.fixture(autouse=True)
def defaults():
    """Every test starts from, and ends with, the settings of a fresh torch."""
    reset()
    yield
    reset()


def reset():
    torch.set_float32_matmul_precision("highest")
    BACKENDS.cuda.matmul.allow_tf32 = False
    BACKENDS.cudnn.allow_tf32 = True
    if HAS_NEW_API:
        for path in ("fp32_precision", "cuda.matmul.fp32_precision", "cudnn.fp32_precision"):
            write(path, "none")
        for path in ("mkldnn.fp32_precision", "mkldnn.matmul.fp32_precision"):
            write(path, "none")
        # Leaves cudnn's own settings as the old API has them.
        BACKENDS.cudnn.allow_tf32 = True


def test_both_settings_are_on_in_every_api_and_the_cpu_is_left_alone():
    before = everything()
    assert before["cuda.matmul.allow_tf32"] is False
    with applied(allow_tf32):
        found = everything()
        assert found["cuda.matmul.allow_tf32"] is True
        assert found["cudnn.allow_tf32"] is True
        assert found["precision"] == "high"
        if HAS_NEW_API:
            assert found["cuda.matmul.fp32_precision"] == "tf32"
            assert found["cudnn.conv.fp32_precision"] == "tf32"
            assert found["cudnn.rnn.fp32_precision"] == "tf32"
        for path in ("mkldnn.fp32_precision", "mkldnn.matmul.fp32_precision"):
            assert found[path] == before[path]
    assert everything() == before


def test_matrix_products_on_the_cpu_keep_their_bits():
    left, right = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(0))
    image = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    kernel = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(2))

    def compute():
        return left @ right, torch.nn.functional.conv2d(image, kernel)

    wanted = compute()
    with applied(allow_tf32):
        assert all(map(torch.equal, compute(), wanted))


@pytest.mark.parametrize("always", [True, False])
def test_no_warning_and_untouched_filters(always):
    filters = list(warnings.filters)
    torch.set_warn_always(always)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with applied(allow_tf32):
            pass
    assert list(warnings.filters) == filters
    assert torch.is_warn_always_enabled() is always
    torch.set_warn_always(False)


def test_cuda_is_not_initialised():
    with applied(allow_tf32) as feature:
        step_once()
        assert not torch.cuda.is_initialized()
        assert feature.marks == 0  # no star for a run on the CPU


def step_once():
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    torch.optim.SGD([weight], lr=0.1).step()


def user_writes(path, value):
    """One write of the user's; ``path`` "precision" stands for set_float32_matmul_precision."""
    if path == "precision":
        torch.set_float32_matmul_precision(value)
    else:
        write(path, value)


OLD_WRITES = [
    *(("precision", value) for value in ("highest", "high", "medium")),
    *itertools.product(("cuda.matmul.allow_tf32", "cudnn.allow_tf32"), (False, True)),
]
NEW_WRITES = list(
    itertools.product(
        (
            "cuda.matmul.fp32_precision",
            "fp32_precision",
            "cudnn.fp32_precision",
            "cudnn.conv.fp32_precision",
        ),
        ("ieee", "tf32", "none"),
    )
)
each_write = pytest.mark.parametrize(
    ("path", "value"), [*OLD_WRITES, *(pytest.param(*pair, marks=new_api) for pair in NEW_WRITES)]
)


def tf32_for_products():
    found = read("cuda.matmul.allow_tf32")
    return found if isinstance(found, bool) else read("cuda.matmul.fp32_precision") == "tf32"


@each_write
def test_what_the_user_wrote_before_is_overruled_and_put_back(path, value):
    user_writes(path, value)
    before = everything()
    with applied(allow_tf32):
        assert tf32_for_products()
        assert read("cuda.matmul.allow_tf32") is True
        assert read("cudnn.allow_tf32") is True
        assert precision() in ("high", "medium")
    assert everything() == before


def says_what_we_said(path, value):
    """A write that changes nothing after ours can't be told from none."""
    return (path, value) == ("cuda.matmul.allow_tf32", True) or (
        (path, value) == ("precision", "high") and not HAS_NEW_API
    )


@each_write
def test_what_the_user_writes_later_holds(path, value):
    user_writes(path, value)
    without = everything()
    reset()
    with applied(allow_tf32):
        ours = everything()
        user_writes(path, value)
        found = everything()
    for setting, now in found.items():
        # As without us, or still ours where the user wrote something else.
        assert now in (without[setting], ours[setting]), setting
    if path != "cudnn.allow_tf32":
        assert found[path] == without[path]
    if not says_what_we_said(path, value):
        assert everything()[path] == found[path]  # also once the feature is taken out
    assert "Error" not in str(found["cuda.matmul.allow_tf32"])
    assert "Error" not in found["precision"]


@new_api
@pytest.mark.parametrize(
    "path", ["cuda.matmul.fp32_precision", "fp32_precision", "cudnn.fp32_precision"]
)
def test_full_precision_asked_for_later_holds_and_stays_readable(path):
    with applied(allow_tf32):
        write(path, "ieee")
        assert tf32_for_products() is False
        assert read("cuda.matmul.fp32_precision") == "ieee"
        assert precision() == "highest"
    assert tf32_for_products() is False


@new_api
def test_a_value_saved_and_written_back():
    with applied(allow_tf32):
        saved = read("cuda.matmul.fp32_precision")
        write("cuda.matmul.fp32_precision", "ieee")
        write("cuda.matmul.fp32_precision", saved)
        assert tf32_for_products()
        assert precision() == "high"
        with BACKENDS.cudnn.flags(enabled=False):
            assert tf32_for_products()
        assert tf32_for_products()
        write("cuda.matmul.fp32_precision", "none")
        assert (tf32_for_products(), precision()) == (False, "highest")


@pytest.mark.parametrize("first", [("precision", "medium"), *NEW_WRITES[:3]], ids=str)
@pytest.mark.parametrize(
    "second", [("precision", "highest"), ("cuda.matmul.allow_tf32", False)], ids=str
)
def test_after_two_writes_of_the_user_nothing_of_ours_is_left(first, second):
    if first[0] != "precision" and not HAS_NEW_API:
        pytest.skip("this torch has no fp32_precision")
    user_writes(*first)
    user_writes(*second)
    without = everything()
    reset()
    with applied(allow_tf32):
        user_writes(*first)
        user_writes(*second)
        assert everything() == without
