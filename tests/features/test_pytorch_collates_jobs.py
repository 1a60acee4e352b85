"""PYTORCH: whole jobs whose batches are collated into slots, and workers that keep their memory."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path

import jobs
import pytest

pytestmark = jobs.needs_torch

#: Trains on images of several sizes; prints the losses, and whether batches lay in a slot as soon
#: as they were collated.
JOB = """
import sys, warnings
warnings.simplefilter("ignore")
kind, workers, method, late = sys.argv[1:]
import numpy, random, torch
from torch.utils.data import DataLoader
if kind == "mmcv":
    from mmcv.parallel import DataContainer, collate
else:
    from torch.utils.data import default_collate as collate
if late == "late":
    import loongkit.all


def slots_here():
    found = sys.modules.get("loongkit.data.slots.worker")
    return found and found.current()


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        height = 96 + index % 4 * 8 if kind == "mmcv" else 96
        image = torch.randn(3, height, 128) + random.random() + numpy.random.rand()
        if kind == "mmcv":
            image = DataContainer(image, stack=True, padding_value=1)
        name = DataContainer(str(index), cpu_only=True) if kind == "mmcv" else str(index)
        slots = slots_here()
        if kind == "places" and slots:
            array = slots.item(tuple(image.shape), "float32")
            array[...] = image.numpy()
            image = torch.from_numpy(array)
        return {"img": image, "target": float(index % 5), "name": name}


def collated(samples):
    batch = collate(samples, 4) if kind == "mmcv" else collate(samples)
    if kind == "mmcv":
        batch["img"] = batch["img"].data[0]
    slots, image = slots_here(), batch["img"]
    batch["in_slot"] = bool(
        slots and slots._arena
        and slots._arena.extent_at(image.data_ptr(), image.numel() * image.element_size())
    )
    if kind == "places" and slots:
        assert image.data_ptr() == samples[0]["img"].data_ptr()
    return batch


if __name__ == "__main__":
    torch.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(),
        torch.nn.Linear(64, 1),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    context = method if workers != "0" else None
    loader = DataLoader(
        Images(), batch_size=4, shuffle=True, num_workers=int(workers), collate_fn=collated,
        multiprocessing_context=context,
    )
    in_slots = 0
    for epoch in range(2):
        for batch in loader:
            loss = (model(batch["img"])[:, 0] - batch["target"].float()).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            in_slots += batch["in_slot"]
            print(loss.item(), tuple(batch["img"].shape), batch["img"].stride())
            print(batch["name"].data if kind == "mmcv" else batch["name"])
    print(torch.rand(1).item(), random.random(), numpy.random.rand())
    print(in_slots, file=sys.stderr)
"""

LEGACY = pytest.mark.legacy
CASES = [
    ("torch", "0", "fork"),
    ("torch", "2", "fork"),
    ("torch", "2", "spawn"),
    ("torch", "3", "forkserver"),
    ("places", "2", "fork"),
    pytest.param("mmcv", "0", "fork", marks=LEGACY),
    pytest.param("mmcv", "2", "fork", marks=LEGACY),
    pytest.param("mmcv", "2", "spawn", marks=LEGACY),
]


def is_installed(kind: str) -> bool:
    if kind != "mmcv":
        return True
    found = importlib.util.find_spec("mmcv")
    return found is not None and importlib.util.find_spec("mmcv.parallel") is not None


def train(folder: Path, kind: str, workers: str, method: str, late: str, **settings: str):
    if not is_installed(kind):
        pytest.skip("needs mmcv 1.x")
    return jobs.run(folder, JOB, kind, workers, method, late, **settings)


def printed(job: jobs.Job) -> list[str]:
    lines = job.result.out.partition("=" * 20)[0].splitlines()
    assert job.result.status == 0 and len(lines) == 25, job
    return lines


@pytest.mark.parametrize(("kind", "workers", "method"), CASES)
def test_training_has_the_same_losses_and_batches_lie_in_slots(tmp_path, kind, workers, method):
    stock = train(tmp_path / "stock", kind, workers, method, "-")
    ours = train(tmp_path / "ours", kind, workers, method, "-", LOONGKIT_PYTORCH="1")
    assert printed(ours) == printed(stock)
    assert stock.result.err == "0\n"
    assert ours.result.err == ("12\n" if workers != "0" else "0\n")
    # Without workers there is something to gain with mmcv, for samples of one shape or large ones.
    assert ours.rows["pytorch"] is (workers != "0")


@pytest.mark.parametrize("kind", ["torch", pytest.param("mmcv", marks=LEGACY)])
def test_activated_after_the_frameworks(tmp_path, kind):
    stock = train(tmp_path / "stock", kind, "2", "fork", "-")
    ours = train(tmp_path / "ours", kind, "2", "fork", "late", LOONGKIT_PYTORCH="1")
    assert printed(ours) == printed(stock)
    assert ours.result.err == "12\n" and ours.rows["pytorch"]
    assert not ours.warnings


#: Its samples cost many pages; what it sends is next to nothing.
HUNGRY = """
import numpy, torch
from torch.utils.data import DataLoader


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        if FEW:
            return index
        arrays = [numpy.ones(1_000_000, numpy.float32) for _ in range(4)]
        return float(sum(array[-1] for array in arrays))


if __name__ == "__main__":
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    total = 0
    for batch in DataLoader(Samples(), batch_size=None, num_workers=1):
        total += float(batch)
    parameter.sum().backward()
    optimizer.step()
    print(total)
"""


@pytest.mark.parametrize(
    ("few", "settings", "raised"),
    [
        (False, {}, True),
        (True, {}, False),
        (False, {"MALLOC_TOP_PAD_": "131072"}, False),
    ],
)
def test_a_worker_keeps_its_memory_where_that_helps(tmp_path, few, settings, raised):
    pytest.importorskip("numpy")
    settings = {"LOONGKIT_PYTORCH": "1", "LOONGKIT_LOGLEVEL": "debug", **settings}
    job = jobs.run(
        tmp_path,
        textwrap.dedent(HUNGRY).replace("FEW", str(few)),
        NUMPY_MADVISE_HUGEPAGE="0",
        **settings,
    )
    assert job.result.status == 0, job
    assert ("allocator thresholds raised in a data worker" in job.log) is raised, job
    assert job.rows["pytorch"] is raised
    assert job.result.out.startswith("780.0" if few else "160.0")
