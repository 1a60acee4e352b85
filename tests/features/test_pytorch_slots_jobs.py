"""PYTORCH, slots: whole jobs, by every way in and with workers started in every way."""

from __future__ import annotations

import json
from typing import Any

import children
import jobs
import pytest

pytest.importorskip("torch")

STATE = """
def state():
    from loongkit.activation.session import SESSION
    record = SESSION.records["pytorch"]
    starred = SESSION.marks.is_set(SESSION.positions["pytorch"])
    return [record.state, record.reason, starred]
def in_slots():
    with open("/proc/self/maps") as file:
        return "memfd:loongkit-slots" in file.read()
"""

#: A training whose batches are large; prints its losses, the random state and what was used.
TRAINING = """
import json, sys, warnings
import torch
from torch.utils.data import DataLoader
warnings.simplefilter("ignore")

class Samples:
    def __len__(self):
        return 24
    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, 64, 64, generator=generator) + torch.rand(1)
        return {"image": image, "label": index % 5, "name": str(index)}

def main(method, workers, persistent):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {}
    if workers:
        options = {"multiprocessing_context": method, "persistent_workers": persistent}
    loader = DataLoader(Samples(), batch_size=6, shuffle=True, num_workers=workers, **options)
    losses, names, seen = [], [], False
    for epoch in range(2):
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
            names.append(batch["name"])
            seen = seen or in_slots()
    return [losses, names, torch.rand(1).item()], seen

if __name__ == "__main__":
    method, workers, persistent = json.loads(sys.argv[1])
    print("RESULT" + json.dumps(main(method, workers, persistent)))
"""


def result(job: Any) -> tuple[Any, bool]:
    """What a training prints: losses and the like, and whether a slot was seen."""
    line = next(line for line in job.result.out.splitlines() if line.startswith("RESULT"))
    values, seen = json.loads(line.removeprefix("RESULT"))
    return values, seen


WORKERS = [
    ("fork", 0, False),
    ("fork", 2, True),
    ("fork", 4, False),
    ("spawn", 2, False),
    ("forkserver", 2, True),
]


@pytest.mark.parametrize(("method", "workers", "persistent"), WORKERS)
def test_training_has_the_losses_of_one_without(tmp_path, method, workers, persistent):
    argument = json.dumps([method, workers, persistent])
    code = STATE + TRAINING
    off = jobs.run(tmp_path / "off", code, argument, LOONGKIT_PYTORCH="0")
    on = jobs.run(tmp_path / "on", code, argument, LOONGKIT_PYTORCH="1")
    values, seen = result(on)
    assert result(off) == (values, False)
    assert seen is (workers > 0)
    assert on.rows == {"pytorch": workers > 0}
    assert on.warnings == []
    assert on.result.err == off.result.err == ""


LATE = """
import os
os.environ["LOONGKIT_PYTORCH"] = "1"
import loongkit.all
"""


def test_activated_after_torch_was_imported():
    code = TRAINING.replace("if __name__", STATE + LATE + "if __name__") + "\nprint(state())\n"
    env = children.clean_env(PYTHONPATH=str(children.SOURCE), LOONGKIT_SUMMARY="off")
    done = children.run("-c", code, json.dumps(["fork", 2, False]), env=env)
    plain = children.run("-c", STATE + TRAINING, json.dumps(["fork", 2, False]))
    first, last = done.out.splitlines()
    assert (
        json.loads(first.removeprefix("RESULT"))[0]
        == (json.loads(plain.out.removeprefix("RESULT"))[0])
    )
    assert json.loads(first.removeprefix("RESULT"))[1]
    assert last == "['patched', '', True]"


def test_no_star_where_no_worker_ran(tmp_path):
    code = STATE + "import torch, torch.utils.data\nprint(state())"
    job = jobs.run(tmp_path, code, LOONGKIT_PYTORCH="1")
    assert job.result.out == "['patched', '', False]\n"


SPAWNED_ALONE = """
import os, sys, warnings
warnings.simplefilter("ignore")
if __name__ != "__main__":  # Loongkit in the spawned workers alone
    os.environ["LOONGKIT_PYTORCH"] = "1"
    import loongkit.all
import torch
from torch.utils.data import DataLoader
class Samples:
    def __len__(self): return 4
    def __getitem__(self, index): return torch.full((50_000,), float(index))
if __name__ == "__main__":
    loader = DataLoader(Samples(), batch_size=None, num_workers=1, multiprocessing_context="spawn")
    print([batch[0].item() for batch in loader], "loongkit.data.slots" in sys.modules)
"""


def test_spawned_worker_of_a_process_without_loongkit_has_no_slots(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SPAWNED_ALONE, encoding="utf-8")
    env = children.clean_env(
        PYTHONPATH=str(children.SOURCE), LOONGKIT_LOGLEVEL="debug", LOONGKIT_LOGDIR=str(tmp_path)
    )
    done = children.run(script, env=env)
    assert done.out == "[0.0, 1.0, 2.0, 3.0] False\n", done
    log = children.log_of(tmp_path)
    assert "Loongkit is not at work in the process that started it" in log


FAULTS = {
    "the arena": "import loongkit.data.slots.worker as m; m.Arena = broken",
    "the loop": "import loongkit.data.slots.loop as m; m.why_not = broken",
    "the slots": "import loongkit.data.slots.worker as m; m.WorkerSlots = broken",
    "the budget": "import loongkit.data.slots.budget as m; m.worker_limit = broken",
    "another's reducer": (
        "from multiprocessing.reduction import ForkingPickler as P\n"
        "from torch.multiprocessing.reductions import reduce_storage\n"
        "P.register(torch.UntypedStorage, lambda storage: reduce_storage(storage))"
    ),
    "another's dump": (
        "from multiprocessing.reduction import ForkingPickler as P\n"
        "import pickle; P.dump = lambda self, obj: pickle.Pickler.dump(self, obj)"
    ),
    "no lock of storages": "del torch.storage._share_memory_lock_protected",
    "another queue": (
        "import multiprocessing.queues as q\n"
        "class Other(q.Queue): pass\n"
        "import loongkit.data.slots.outgoing as m; m.Queue = Other"
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_it_steps_aside_and_the_job_runs_on(tmp_path, name):
    fault = f"\ndef broken(*a, **k): raise OSError('no such luck')\nimport torch\n{FAULTS[name]}\n"
    code = STATE + TRAINING.replace("if __name__", fault + "if __name__")
    argument = json.dumps(["fork", 2, False])
    off = jobs.run(tmp_path / "off", STATE + TRAINING, argument, LOONGKIT_PYTORCH="0")
    on = jobs.run(tmp_path / "on", code, argument, LOONGKIT_PYTORCH="1", LOONGKIT_LOGLEVEL="debug")
    assert result(on) == (result(off)[0], False)
    assert on.warnings == []
    assert "has no slots" in on.log


def test_torch_without_the_iterator_is_left_as_it_is(tmp_path):
    code = STATE + TRAINING.replace(
        "if __name__",
        "import torch.utils.data.dataloader as d, torch.utils.data._utils.worker as w\n"
        "before = w._worker_loop\n"
        "hidden = d._MultiProcessingDataLoaderIter._shutdown_workers\n"
        "del d._MultiProcessingDataLoaderIter._shutdown_workers\n"
        "import os; os.environ['LOONGKIT_PYTORCH'] = '1'\n"
        "import loongkit.all\n"
        "assert state()[0] == 'skipped', state()\n"
        "assert w._worker_loop is before\n"
        "d._MultiProcessingDataLoaderIter._shutdown_workers = hidden\n"
        "if __name__",
    )
    env = children.clean_env(PYTHONPATH=str(children.SOURCE), LOONGKIT_SUMMARY="off")
    done = children.run("-c", code, json.dumps(["fork", 2, False]), env=env)
    assert done.status == 0, done
    assert json.loads(done.out.removeprefix("RESULT"))[1] is False
