"""PAGE_CACHE_LIMIT's hooks: where they sit, late activation, faults, and the way back."""

from __future__ import annotations

import os
from pathlib import Path

import children
import pytest
from applied import applied

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402
from torch.utils.data._utils import fetch  # noqa: E402

from loongkit.features import page_cache_limit  # noqa: E402
from loongkit.page_cache import limiter as limiter_module  # noqa: E402
from loongkit.page_cache import watch  # noqa: E402

pytest.importorskip("cv2")
pytest.importorskip("h5py")

MB = 1 << 20


@pytest.fixture
def feature():
    with applied(page_cache_limit) as one:
        one.patcher.options.update(size=64, sync=False)
        yield one


def limiter_of(feature) -> limiter_module.Limiter:
    return limiter_module.of(feature.patcher)


def test_hooks_are_taken_out_again():
    import cv2
    import h5py

    def places():
        return (
            DataLoader._get_iterator,
            fetch._BaseDatasetFetcher.__init__,
            cv2.imread,
            h5py.File.__init__,
        )

    before = places()
    with applied(page_cache_limit) as one:
        one.patcher.options.update(size=64, sync=False)
        assert all(new is not old for new, old in zip(places(), before, strict=True))
        assert list(DataLoader(range(4), batch_size=2))[1].tolist() == [2, 3]
        assert watch._running is not None
    assert places() == before
    assert watch._running is None


def test_nothing_runs_before_a_loader_is_read(feature):
    loader = DataLoader(range(4))
    assert limiter_of(feature)._watch is None and watch._running is None
    iter(loader)
    assert watch._running is limiter_of(feature)._watch is not None
    assert feature.marks == 0  # nothing was released


def test_the_trainer_has_no_thread_where_data_workers_read(feature):
    batches = list(DataLoader(range(8), num_workers=2))
    assert len(batches) == 8
    assert limiter_of(feature)._watch is not None and watch._running is None


def test_with_sync_the_trainer_watches_too(feature):
    feature.patcher.options["sync"] = True
    list(DataLoader(range(4), num_workers=1))
    assert watch._running is not None


def test_cv2_and_hdf5_are_noted_with_what_they_open(feature, tmp_path, monkeypatch):
    import cv2
    import h5py
    import numpy as np

    noted: list[tuple[object, bool]] = []
    monkeypatch.setattr(
        limiter_module.Limiter,
        "note",
        lambda self, path, written=False: noted.append((path, written)),
    )
    image, data = str(tmp_path / "a.png"), tmp_path / "b.h5"
    cv2.imwrite(image, np.zeros((4, 5, 3), np.uint8))
    assert cv2.imread(image).shape == (4, 5, 3)
    assert cv2.imread(filename=image, flags=cv2.IMREAD_GRAYSCALE).shape == (4, 5)
    assert cv2.imread(str(tmp_path / "none")) is None
    with h5py.File(data, "w") as file:
        file["x"] = np.arange(3)
    with h5py.File(data) as file, h5py.File(str(data), mode="r") as again:
        assert file["x"][1] == again["x"][1] == 1
    # h5py also makes File objects of handles that are open.
    assert [pair for pair in noted if isinstance(pair[0], (str, Path))] == [
        (image, False),
        (image, False),
        (str(tmp_path / "none"), False),
        (data, True),
        (data, False),
        (str(data), False),
    ]
    with pytest.raises(cv2.error):
        cv2.imread()
    with pytest.raises(FileNotFoundError):
        h5py.File(tmp_path / "none.h5", "r")


@pytest.mark.parametrize("path", [None, 5, object(), "", b"\xff", "a\0b", Path("relative")])
def test_odd_paths_are_nobodys_business(feature, path):
    iter(DataLoader(range(4)))
    limiter_of(feature).note(path)


@pytest.mark.parametrize("step", ["begin", "read"])
def test_a_fault_of_ours_gives_up_and_the_loader_goes_on(feature, monkeypatch, step):
    def fail(self: limiter_module.Limiter) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(limiter_module.Limiter, step, fail)
    assert len(list(DataLoader(range(4)))) == 4
    assert feature.record.state == "failed" and "broken" in feature.record.reason
    assert watch._running is None


def test_an_interrupt_of_the_users_is_not_swallowed(feature, monkeypatch):
    def interrupt(self: limiter_module.Limiter) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(limiter_module.Limiter, "begin", interrupt)
    with pytest.raises(KeyboardInterrupt):
        iter(DataLoader(range(4)))


JOB = """
import torch
from torch.utils.data import DataLoader
import threading
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
optimizer.step()
print(sorted(t.name for t in threading.enumerate()))
list(DataLoader(range(4)))
print(sorted(t.name for t in threading.enumerate()))
"""


def job(folder: Path, **settings: str) -> children.Result:
    settings = {"LOONGKIT_LOGDIR": str(folder), "LOONGKIT_LOGLEVEL": "info", **settings}
    result = children.run("-c", JOB, env=children.with_prelude(**settings))
    assert result.status == 0, result
    return result


def test_a_small_job_has_a_row_and_no_star(tmp_path):
    result = job(tmp_path, LOONGKIT_PAGE_CACHE_LIMIT="1", LOONGKIT_PAGE_CACHE_LIMIT_SIZE="4000")
    assert result.out.splitlines()[:2] == [
        "['MainThread']",
        "['MainThread', 'loongkit-page-cache']",
    ]
    assert f"{'page_cache_limit':<31}  {{'size': 4000}}\n" in result.out
    assert "page_cache_limit: 4000 MB" in children.log_of(tmp_path)


def test_off_by_default_and_below_its_level(tmp_path):
    for settings in (
        {},
        {"LOONGKIT_ALL": "1"},
        {"LOONGKIT_ALL": "2", "LOONGKIT_PAGE_CACHE_LIMIT": "0"},
    ):
        result = job(tmp_path, **settings)
        assert "page_cache_limit" not in result.out and "loongkit-page-cache" not in result.out
    assert "loongkit-page-cache" in job(tmp_path, LOONGKIT_ALL="2").out


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ("many", "LOONGKIT_PAGE_CACHE_LIMIT_SIZE='many'"),
        ("-3", "LOONGKIT_PAGE_CACHE_LIMIT_SIZE='-3'"),
        ("99999999", "LOONGKIT_PAGE_CACHE_LIMIT_SIZE=99999999 is more than there is"),
    ],
)
def test_a_bad_size_is_one_line(tmp_path, size, words):
    job(tmp_path, LOONGKIT_PAGE_CACHE_LIMIT="1", LOONGKIT_PAGE_CACHE_LIMIT_SIZE=size)
    warnings = [line for line in children.log_of(tmp_path).splitlines() if " WARNING " in line]
    assert len(warnings) == 1 and words in warnings[0]


def test_nothing_of_ours_stays_behind(tmp_path):
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    job(tmp_path / "log", LOONGKIT_PAGE_CACHE_LIMIT="1")
    after = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    assert not [name for name in after - before if "loongkit" in name]
