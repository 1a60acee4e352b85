"""PAGE_CACHE_LIMIT in whole jobs: real interpreters, real data workers, real files on a disk."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import children
import pytest
from page_files import MB, disk, forget, resident, write

pytest.importorskip("torch")
np = pytest.importorskip("numpy")

__all__ = ["disk"]

SCRIPT = Path(children.__file__).parent / "scripts" / "page_reader.py"
LIMIT = 32
#: A page fault reads up to 8 MB ahead: small limits can't be held to then.
MAPPED_LIMIT = 128
TITLE = "Loongkit Feature Summary"


class Run:
    """One run of the script: what it printed, and the highest share of the limit its files had."""

    def __init__(self, folder: Path, *arguments: str, **settings: str) -> None:
        self.limit = MAPPED_LIMIT if arguments[0] in ("memmap", "lmdb") else LIMIT
        self.files = [path for path in folder.iterdir() if path.is_file()]
        self.log = folder.parent / "log"
        path = str(children.SOURCE)
        make = children.clean_env if "IMPORT_LATE" in settings else children.with_prelude
        env = make(
            PYTHONPATH=path,
            OMP_NUM_THREADS="1",
            LOONGKIT_LOGDIR=str(self.log),
            LOONGKIT_LOGLEVEL="info",
            LOONGKIT_PAGE_CACHE_LIMIT_SIZE=str(self.limit),
            **settings,
        )
        forget(self.files)
        self.peak, self._done = 0.0, threading.Event()
        watching = threading.Thread(target=self._watch)
        watching.start()
        try:
            done = subprocess.run(
                [sys.executable, str(SCRIPT), *arguments, str(folder)],
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=240,
                check=False,
            )
        finally:
            self._done.set()
            watching.join()
        assert done.returncode == 0, done.stderr.decode()
        self.err = done.stderr.decode()
        self.losses, _, self.summary = done.stdout.decode().partition("=")

    def _watch(self) -> None:
        while not self._done.wait(0.01):
            self.peak = max(self.peak, resident(*self.files) / (self.limit * MB))

    @property
    def text(self) -> str:
        return children.log_of(self.log)

    @property
    def star(self) -> bool:
        return "\npage_cache_limit               * " in self.summary


def limited(folder: Path, *arguments: str, **settings: str) -> Run:
    return Run(folder, *arguments, LOONGKIT_PAGE_CACHE_LIMIT="1", **settings)


def plain_files(folder: Path) -> None:
    for number in range(3 * LIMIT):
        write(folder / f"{number:03}.bin", MB)


def small_files(folder: Path) -> None:
    for number in range(3 * LIMIT * 8):
        write(folder / f"{number:03}.bin", MB // 8)


def image_files(folder: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    rng, total = np.random.default_rng(0), 0
    while total < 3 * LIMIT * MB:
        path = folder / f"{total:010}.bmp"
        cv2.imwrite(str(path), rng.integers(0, 256, (500, 700, 3), np.uint8))
        total += path.stat().st_size
    forget(folder.iterdir())


def hdf5_file(folder: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "all.h5", "w") as file:
        samples = file.create_dataset("samples", (3 * LIMIT, MB), np.uint8, chunks=(1, MB))
        for number in range(3 * LIMIT):
            samples[number] = np.frombuffer(os.urandom(MB), np.uint8)
    forget(folder.iterdir())


def hdf5_episodes(folder: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for number in range(3 * LIMIT // 2):
        with h5py.File(folder / f"{number:03}.h5", "w") as file:
            file["samples"] = np.frombuffer(os.urandom(2 * MB), np.uint8)
    forget(folder.iterdir())


def mapped_file(folder: Path) -> None:
    write(folder / "all.bin", 3 * MAPPED_LIMIT * MB)


def lmdb_file(folder: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    path = folder / "all.mdb"
    with lmdb.open(
        str(path), subdir=False, map_size=8 * MAPPED_LIMIT * MB, lock=False
    ) as environment:
        with environment.begin(write=True) as transaction:
            for number in range(120):
                transaction.put(str(number).encode(), os.urandom(MAPPED_LIMIT * MB // 40))
        environment.sync(True)
    forget([path])


FILES = {
    "plain": plain_files,
    "small": small_files,
    "imread": image_files,
    "hdf5": hdf5_file,
    "episodes": hdf5_episodes,
    "memmap": mapped_file,
    "lmdb": lmdb_file,
}


@pytest.fixture
def folder(disk: Path) -> Path:
    made = disk / "files"
    made.mkdir()
    return made


@pytest.mark.parametrize("way", list(FILES))
def test_reading_three_times_the_limit_stays_below_it(folder: Path, way: str) -> None:
    FILES[way](folder)
    script = "plain" if way == "small" else way
    without = Run(folder, script, "0", "-", "1")
    with_it = limited(folder, script, "0", "-", "1")
    assert without.peak > 2.5 and "page_cache_limit" not in without.summary
    # Pages of a mapping come without a call that we see, megabytes at a fault: on a busy machine
    # the thread that releases them is late.
    assert with_it.peak <= (2.0 if way in ("memmap", "lmdb") else 1.2) and with_it.star
    assert with_it.losses == without.losses and with_it.losses.count("\n") >= 8
    assert with_it.err == without.err


@pytest.mark.parametrize(
    ("method", "workers"), [("fork", "2"), ("fork", "4"), ("spawn", "2"), ("forkserver", "2")]
)
def test_data_workers_share_the_limit_over_epochs(folder: Path, method: str, workers: str) -> None:
    plain_files(folder)
    run = limited(folder, "plain", workers, method, "2")
    assert run.peak <= 1.2 and run.star
    assert run.losses.count("\n") == 2 * 24
    assert " WARNING " not in run.text and " ERROR " not in run.text


def test_activated_after_the_frameworks(folder: Path) -> None:
    image_files(folder)
    without = Run(folder, "imread", "2", "fork", "1")
    run = limited(folder, "imread", "2", "fork", "1", IMPORT_LATE="1", LOONGKIT_STRICT="1")
    assert run.peak <= 1.2 and run.star
    assert run.losses == without.losses
    assert " WARNING " not in run.text
