"""The format stage in jobs of their own: trainings, workers, slots, and Loongkit coming late."""

from __future__ import annotations

import children
import jobs
import legacy
import pytest

pytestmark = pytest.mark.legacy
legacy.need_mmcv_1()
pytest.importorskip("numba")
pytest.importorskip("mmdet.datasets.pipelines")

QUIET = "import warnings; warnings.simplefilter('ignore')\n"

TRAINING = """
import sys, numpy as np, torch
from functools import partial
from mmcv.parallel import collate
from mmdet.datasets.pipelines import Compose
from torch.utils.data import DataLoader, Dataset

NORM = {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]}

class Photos(Dataset):
    def __init__(self):
        self.pipeline = Compose([
            {"type": "Normalize", **NORM}, {"type": "Pad", "size_divisor": 32},
            {"type": "DefaultFormatBundle"},
            {"type": "Collect", "keys": ["img", "gt_labels"], "meta_keys": ["pad_shape"]},
        ])
    def __len__(self):
        return 24
    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        image = rng.integers(0, 256, (150 + index % 3, 201, 3), dtype=np.uint8)
        return self.pipeline({"img": image, "gt_labels": np.array([index % 2])})

def first(worker):
    kernels = sys.modules.get("loongkit.kernels.format")
    print("compiled:", bool(kernels) and kernels.kernels.cache_info().currsize, flush=True)

if __name__ == "__main__":
    torch.manual_seed(0); torch.set_num_threads(1)
    workers = int(sys.argv[1])
    kinds = {"worker_init_fn": first} if workers else {}
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, 2), torch.nn.AdaptiveAvgPool2d(4),
                                torch.nn.Flatten(), torch.nn.Linear(64, 2))
    loader = DataLoader(Photos(), 4, num_workers=workers, collate_fn=partial(collate,
                        samples_per_gpu=4), **kinds)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range(2):
        for batch in loader:
            (images,), (labels,) = batch["img"].data, batch["gt_labels"].data
            loss = torch.nn.functional.cross_entropy(model(images), torch.cat(labels))
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            print(loss.item().hex(), images.stride(), batch["img_metas"].data)
"""

DATA = {"LOONGKIT_IMNORMALIZE": "1", "LOONGKIT_DISTORTION": "1"}


def steps(result: children.Result) -> list[str]:
    return [line for line in result.out.splitlines() if line.startswith(("0x", "-0x"))]


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    script = folder / "train.py"
    script.write_text(QUIET + TRAINING)
    return script


@pytest.fixture(scope="module")
def stock(training):
    found = steps(children.run(training, "0"))
    assert len(found) == 12
    return found


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("others", [{}, {"LOONGKIT_PYTORCH": "1"}], ids=["alone", "with slots"])
def test_a_training_has_the_same_losses_to_the_last_bit(training, stock, tmp_path, workers, others):
    env = children.with_prelude(**DATA, **others, LOONGKIT_LOGDIR=str(tmp_path / "logs"))
    result = children.run(training, workers, env=env)
    assert steps(result) == stock, result
    assert jobs.rows(result.out)["imnormalize"], result
    if workers == "2":
        assert result.out.count("compiled: 1") == 4, result


def test_without_the_feature_nothing_is_compiled(training, stock, tmp_path):
    env = children.with_prelude(LOONGKIT_LOGDIR=str(tmp_path / "logs"))
    result = children.run(training, "2", env=env)
    assert steps(result) == stock and result.out.count("compiled: False") == 4, result


STATE = """
def state():
    from loongkit.activation.session import SESSION
    record = SESSION.records["imnormalize"]
    return record.state, record.reason
"""

PIPELINE = """
import numpy as np
from mmdet.datasets import pipelines
from mmdet.datasets.pipelines import Compose
from mmcv import impad as early_name
pipeline = Compose([
    pipelines.Normalize([1, 2, 3], [4, 5, 6]), pipelines.Pad(size_divisor=32),
    pipelines.DefaultFormatBundle(),
])
image = np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)
def formatted():
    found = pipeline({"img": image.copy()})
    tensor = found.pop("img").data
    return tensor.numpy().tobytes(), tensor.shape, repr(found)
def views():
    from loongkit.images import planar
    counted, view = [], planar.Stage._view
    planar.Stage._view = lambda *args: counted.append(1) or view(*args)
    formatted()
    planar.Stage._view = view
    return len(counted)
"""


def test_activated_after_the_pipeline_was_made():
    code = (
        QUIET + PIPELINE + "wanted = formatted()\n"
        "import os; os.environ['LOONGKIT_IMNORMALIZE'] = '1'\nimport loongkit.all\n"
        + STATE
        + "assert formatted() == wanted\nprint(state(), views())"
    )
    result = children.run("-c", code, env=children.clean_env(PYTHONPATH=str(children.SOURCE)))
    assert result.out.splitlines()[-1] == "('effective', '') 1", result


def test_no_star_where_a_pipeline_was_only_made(tmp_path):
    env = children.with_prelude(**DATA, LOONGKIT_LOGDIR=str(tmp_path))
    code = QUIET + PIPELINE + STATE + "import sys; print(state()[0], 'numba' in sys.modules)"
    assert children.run("-c", code, env=env).out.split() == ["patched", "False"]


def test_mmcv_is_left_alone_without_numba(tmp_path):
    env = children.with_prelude(**DATA, LOONGKIT_LOGDIR=str(tmp_path))
    absent = (
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'numba' else find(name, *a)\n"
    )
    code = QUIET + absent + PIPELINE + STATE
    code += "formatted(); print(state(), hasattr(Compose.__call__, '__wrapped__'))"
    found = children.run("-c", code, env=env)
    assert "numba is not installed" in found.out and found.out.endswith("False\n"), found


SLOTS = """
import sys, types

class Worker:
    def __init__(self):
        self.asked, self.full = [], False
    def item(self, shape, dtype):
        self.asked.append((shape, np.dtype(dtype)))
        self.given = None if self.full else np.full(shape, 7, dtype)
        return self.given

worker = Worker()
slots = sys.modules["loongkit.data.slots"] = types.ModuleType("slots")
slots.current = lambda: worker
"""


def test_planes_lie_in_a_slot_where_there_is_one(tmp_path):
    env = children.with_prelude(**DATA, LOONGKIT_LOGDIR=str(tmp_path))
    code = (
        QUIET + PIPELINE + SLOTS + "wanted = Compose.__call__.__wrapped__\n"
        "def tensor(size=37):\n"
        "    return pipeline({'img': image[:size].copy()})['img'].data\n"
        "def in_slot(found): return found.data_ptr() == worker.given.ctypes.data\n"
        "stock = wanted(pipeline, {'img': image.copy()})['img'].data\n"
        "first, second = tensor(), tensor()\n"
        "assert (first == stock).all() and (second == stock).all()\n"
        "assert worker.asked == [((3, 64, 64), np.float32)] and in_slot(second)\n"
        "tensor(20)\n"
        "assert len(worker.asked) == 1, 'slots are for samples of one shape'\n"
        "worker.full = True\n"
        "for _ in range(2): assert (tensor() == stock).all()\n"
        "assert len(worker.asked) == 2\n"
        "slots.current = lambda: None\n"
        "assert (tensor() == stock).all() and len(worker.asked) == 2\n"
        "print('done')"
    )
    result = children.run("-c", code, env=env)
    assert result.out.splitlines()[-1:] == ["done"], result
