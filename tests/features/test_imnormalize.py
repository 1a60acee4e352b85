"""IMNORMALIZE on the real mmcv (1.x and 2.x): bits, exceptions, workers, stepping aside."""

from __future__ import annotations

import json

import children
import pytest

pytest.importorskip("mmcv.image.photometric")
pytest.importorskip("numba")
pytest.importorskip("torch")

pytestmark = pytest.mark.stacks

QUIET = "import warnings; warnings.simplefilter('ignore')\n"

STATE = """
def state():
    from loongkit.activation.session import SESSION
    record = SESSION.records["imnormalize"]
    return [record.state, record.reason]
"""

CALLS = """
import numpy as np, mmcv
rng = np.random.default_rng(0)
mean, std = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375])
color = rng.integers(0, 256, (37, 41, 3), dtype=np.uint8)
cases = [
    (color, mean, std), (color, mean, std, False), (color.astype(np.float32), mean, std, True),
    (color.astype(np.float64), mean, std), (color.astype(np.int16), mean, std),
    (color[..., 0], mean[:1], std[:1], False), (color[::2, ::-1], mean, std),
    (np.dstack([color, color[..., :1]]), np.ones(4), np.ones(4), False),
    (color, mean.tolist(), std), (color, mean, std[:2]), (color[:0], mean, std),
    (None, mean, std), (color,), (color, mean, std, True, 5), (color, mean, 0 * std),
]
def outcome(function, arguments):
    arguments = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    try:
        result = function(*arguments)
        same = result is arguments[0]
        return [str(result.dtype), result.shape, result.tobytes().hex()[:4000], same]
    except Exception as error:
        return [type(error).__name__, str(error)]
def outcomes():
    return [
        outcome(f, case) for f in (mmcv.imnormalize, mmcv.imnormalize_) for case in cases
    ] + [outcome(lambda: mmcv.imnormalize(img=color, std=std, mean=mean, to_rgb=False), [])]
"""

PRINT = "import json; print(json.dumps(outcomes()))\n"


def on(**changes: str) -> dict[str, str]:
    return children.with_prelude(LOONGKIT_IMNORMALIZE="1", **changes)


@pytest.fixture(scope="module")
def stock() -> list:
    return json.loads(children.run("-c", QUIET + CALLS + PRINT).out)


def test_every_call_has_the_result_or_the_exception_of_mmcv(stock):
    result = children.run("-c", QUIET + CALLS + STATE + PRINT + "print(state())", env=on())
    first, second = result.out.splitlines()
    assert json.loads(first) == stock
    assert second == "['effective', '']", result


def test_activated_after_mmcv_was_imported_and_bound_by_name(stock):
    code = (
        "from mmcv.image.photometric import imnormalize as bound\nfrom mmcv import imnormalize\n"
        "import os; os.environ['LOONGKIT_IMNORMALIZE'] = '1'\nimport loongkit.all\n"
        "assert bound is imnormalize is mmcv.imnormalize\n"
        "assert bound.__wrapped__.__name__ == 'imnormalize'\n"
    )
    env = children.clean_env(PYTHONPATH=str(children.SOURCE))
    result = children.run("-c", QUIET + CALLS + STATE + code + PRINT + "print(state())", env=env)
    first, second = result.out.splitlines()
    assert json.loads(first) == stock
    assert second == "['effective', '']", result


def test_no_star_and_no_numba_where_nothing_is_normalised():
    code = QUIET + STATE + "import sys, mmcv, torch\nprint(state()[0], 'numba' in sys.modules)"
    assert children.run("-c", code, env=on()).out.split() == ["patched", "False"]


STEP_ASIDE = {
    "numba is absent": (
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'numba' else find(name, *a)\n",
        ["skipped", "numba is not installed"],
    ),
    "numba is too old": (
        "import numba\nnumba.__version__ = '0.48.0'\n",
        ["failed", "found numba 0.48.0, wanted >=0.59"],
    ),
    "numba can't compile": (
        "import numba\ndef broken(*a, **k): raise RuntimeError('no compiler today')\n"
        "numba.njit = broken\n",
        ["failed", "no compiler today"],
    ),
    "numba's compiler is off": (
        "import os; os.environ['NUMBA_DISABLE_JIT'] = '1'\n",
        ["failed", "NUMBA_DISABLE_JIT is set"],
    ),
    "another OpenCV": (
        "import loongkit.kernels.normalize as k\nreal = k.normalize\n"
        "k.normalize = lambda *a: real(*a) + np.float32(1e-6)\n",
        ["failed", "do not give the same bits"],
    ),
}


@pytest.mark.parametrize("name", STEP_ASIDE)
def test_it_steps_aside_with_the_reason_and_the_original_runs(name, stock):
    fault, (state, reason) = STEP_ASIDE[name]
    code = QUIET + "import numpy as np\n" + fault + CALLS + STATE + PRINT + "print(state())\n"
    code += "print(mmcv.image.photometric.imnormalize.__code__.co_filename.endswith('metric.py'))"
    result = children.run("-c", code, env=on(LOONGKIT_LOGDIR="/nonexistent/no"))
    outcomes, found, restored = result.out.splitlines()
    assert json.loads(outcomes) == stock
    assert state in found and reason in found, result
    assert restored == "True"


def test_strict_raises_where_it_is_asked_for_by_name():
    fault = STEP_ASIDE["numba is absent"][0]
    result = children.run("-c", QUIET + fault + "import mmcv", env=on(LOONGKIT_STRICT="1"))
    assert result.status == 1 and "StrictError" in result.err and "numba" in result.err


TRAINING = """
import sys, numpy as np, torch, mmcv
from torch.utils.data import DataLoader, Dataset

MEAN, STD = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375])

class Normalize:
    def __call__(self, image):
        return mmcv.imnormalize(image, MEAN, STD, True)

class Photos(Dataset):
    def __init__(self):
        self.pipeline = [Normalize()]
    def __len__(self):
        return 24
    def __getitem__(self, index):
        image = np.random.default_rng(index).integers(0, 256, (32, 40, 3), dtype=np.uint8)
        for transform in self.pipeline:
            image = transform(image)
        return torch.from_numpy(image.transpose(2, 0, 1).copy()), index % 2

def compiled_here():
    kernels = sys.modules.get("loongkit.kernels.normalize")
    return bool(kernels) and kernels.kernels.cache_info().currsize == 1

def first(worker):
    if torch.utils.data.get_worker_info() is not None and sys.argv[2] == "fork":
        print("compiled before the fork:", compiled_here(), flush=True)

if __name__ == "__main__":
    torch.manual_seed(0); torch.set_num_threads(1)
    workers = int(sys.argv[1])
    kinds = {"multiprocessing_context": sys.argv[2], "worker_init_fn": first} if workers else {}
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, 2), torch.nn.Flatten(),
                                torch.nn.LazyLinear(2))
    loader = DataLoader(Photos(), 4, num_workers=workers, **kinds)
    model(next(iter(DataLoader(Photos(), 1)))[0] * 0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        print(loss.item().hex(), flush=True)
"""


@pytest.mark.parametrize(("workers", "method"), [("0", "none"), ("2", "fork"), ("2", "spawn")])
def test_a_training_has_the_same_losses_and_the_star_of_its_workers(tmp_path, workers, method):
    script = tmp_path / "train.py"
    script.write_text(QUIET + TRAINING)
    env = on(LOONGKIT_LOGDIR=str(tmp_path / "logs"))
    ours = children.run(script, workers, method, env=env)
    stock = children.run(script, workers, method)

    def losses(result):
        return [line for line in result.out.splitlines() if line.startswith(("0x", "-0x"))]

    assert losses(ours) == losses(stock) and len(losses(ours)) == 6, ours
    assert "imnormalize                    * None" in ours.out, ours
    if method == "fork":
        assert ours.out.count("compiled before the fork: True") == 2, ours
