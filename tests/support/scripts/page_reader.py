"""A small training on files: ``page_reader.py WAY WORKERS METHOD EPOCHS FOLDER``.

Prints a loss for each step; what was read decides it.
"""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path

if os.environ.get("IMPORT_LATE"):
    import cv2  # noqa: F401
    import torch

    __import__("loongkit.all")

import torch
from torch.utils.data import DataLoader, Dataset

MB = 1 << 20


class Files(Dataset):
    def __init__(self, way, folder):
        self.way = way
        self.paths = sorted(path for path in Path(folder).iterdir() if path.is_file())
        self.handle = None

    def __len__(self):
        if self.way == "lmdb":
            return 120
        if self.way in ("hdf5", "memmap"):
            return self.paths[0].stat().st_size // MB
        return len(self.paths)

    def __getitem__(self, index):
        return torch.tensor(zlib.crc32(self.read(index)) / 2**32)

    def read(self, index):
        if self.way == "plain":
            return self.paths[index].read_bytes()
        if self.way == "imread":
            import cv2

            return cv2.imread(str(self.paths[index])).tobytes()
        if self.way == "episodes":
            import h5py

            with h5py.File(self.paths[index], "r") as file:
                return file["samples"][:].tobytes()
        return self.read_from_one(index)

    def read_from_one(self, index):
        if self.way == "memmap":
            import numpy as np

            if self.handle is None:
                self.handle = np.memmap(self.paths[0], np.uint8, "r")
            return self.handle[index * MB : (index + 1) * MB].tobytes()
        if self.way == "lmdb":
            import lmdb

            if self.handle is None:
                self.handle = lmdb.open(str(self.paths[0]), readonly=True, lock=False, subdir=False)
            with self.handle.begin(buffers=True) as transaction:
                return bytes(transaction.get(str(index).encode()))
        import h5py

        if self.handle is None:
            self.handle = h5py.File(self.paths[0], "r")["samples"]
        return self.handle[index].tobytes()


def main(way, workers, method, epochs, folder):
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(
        Files(way, folder),
        batch_size=4,
        shuffle=True,
        num_workers=int(workers),
        multiprocessing_context=method if int(workers) else None,
    )
    for _ in range(int(epochs)):
        for batch in loader:
            loss = model(batch[:, None]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item())


if __name__ == "__main__":
    main(*sys.argv[1:])
