"""MMENGINE_DATA_PREFETCH in trainings by mmengine's own runner, on a made-up device.

Whatever a user can see is compared with the same training without the feature: batches as hooks see
them, losses, random numbers, errors. Then what the device did is looked at.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest

pytestmark = [pytest.mark.modern, pytest.mark.filterwarnings("ignore::UserWarning")]
pytest.importorskip("torch")
pytest.importorskip("mmengine")

import prefetch_pairs as pairs  # noqa: E402
import torch  # noqa: E402
from fake_device import CUDA  # noqa: E402
from mmengine import registry  # noqa: E402
from mmengine.hooks import EarlyStoppingHook, Hook  # noqa: E402
from mmengine.runner import loops  # noqa: E402
from mmengine_runs import Model, train  # noqa: E402
from prefetching import device_of, make_patient, without_sleep  # noqa: E402

from loongkit.features import mmengine_data_prefetch  # noqa: E402


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    without_sleep(monkeypatch, loops)
    make_patient(monkeypatch)


said = pairs.said


@pytest.fixture
def both(tmp_path):
    return pairs.Trainings(train, tmp_path, mmengine_data_prefetch)


OWN_ROWS = {
    "epochs, drop_last": {"length": 13, "drop_last": True},
    "iterations, resumed": {"iters": 12, "resume_at": 7},
}


@pytest.mark.parametrize("row", [*pairs.ROWS, *OWN_ROWS])
def test_a_training_sees_no_difference_and_waits_for_no_copy(both, row):
    stock, ours = both(**{**pairs.ROWS, **OWN_ROWS}[row])
    pairs.check_that_copies_hide(stock, ours)
    assert ours.device.streams_made <= 1


def test_a_long_epoch_exposes_a_tenth_of_what_stock_does(both):
    stock, ours = both(length=60, epochs=1)
    assert ours.exposed <= 0.1 * stock.exposed


def test_without_workers_nothing_is_loaded_early(both):
    _, ours = both(num_workers=0)
    assert ours.device.copies_ahead == 0 and ours.marks == 0


def test_the_cpu_is_left_alone(both, said):
    _, ours = both(on="cpu")
    assert ours.device.copies == ours.marks == 0
    assert not [line for line in said if "3 batches" not in line and "pin_memory" not in line]


def test_no_device_in_use(both, said):
    device = device_of()
    device.in_use = False
    with device, both.applied() as feature:
        outcome = both.train(device, epochs=1, on="cpu")
    assert outcome.error is None and len(outcome.losses) == 6
    assert not said and not feature.marks and not device._pinned


def test_a_resumed_training_copies_nothing_that_it_skips(both):
    stock, ours = both(iters=12, resume_at=8, length=40)
    assert ours.device.steps == 4
    # Eight tensors a batch: of four steps, and of the batch after the last.
    assert stock.device.copies == 4 * 8
    assert ours.device.copies == 5 * 8


class Edit(Hook):  # type: ignore[misc]
    """Changes every third batch in place, or replaces its image."""

    def __init__(self, every: int, replace: bool) -> None:
        self.every = every
        self.replace = replace

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        if batch_idx % self.every == 0:
            if self.replace:
                data_batch["inputs"] = [image * 2 for image in data_batch["inputs"]]
                data_batch["data_samples"][0].gt.labels = torch.tensor([7])
            else:
                data_batch["inputs"][0].mul_(2)
                data_batch["data_samples"][0].gt.labels.add_(7)


@pytest.mark.parametrize("replace", [False, True])
def test_what_a_hook_changes_reaches_the_model(both, replace):
    _, ours = both(hooks=lambda: (Edit(3, replace),))
    assert ours.marks > 0


def test_a_hook_that_replaces_every_batch_ends_it(both, said):
    _, ours = both(hooks=lambda: (Edit(1, True),), epochs=3)
    lines = [line for line in said if "3 batches copied ahead" in line]
    assert len(lines) == 1 and lines[0].startswith("info mmengine_data_prefetch: ")
    assert ours.device.copies_ahead < 5 * 8


def test_an_error_in_a_worker(both):
    # The sampler draws with replacement: with this seed the index comes up.
    _, ours = both(length=12, broken=3, epochs=2)
    assert isinstance(ours.outcome.error, LookupError)
    assert "Original Traceback" in str(ours.outcome.error)
    ours.outcome.error = None  # its frames hold the loop
    gc.collect()
    assert ours.device.alive == 0


class Stop(Hook):  # type: ignore[misc]
    """Ends the training, one way or another, at a step."""

    def __init__(self, step: int, error: BaseException | None) -> None:
        self.step = step
        self.error = error

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if runner.iter == self.step:
            if self.error is not None:
                raise self.error
            runner.train_loop.stop_training = True


@pytest.mark.parametrize("iters", [0, 12])
@pytest.mark.parametrize(
    "error",
    [None, KeyboardInterrupt(), ValueError("a hook's own")],
    ids=["stop", "ctrl-c", "error"],
)
def test_a_training_that_ends_early(both, iters, error):
    _, ours = both(iters=iters, hooks=lambda: (Stop(4, error),), length=40)
    assert ours.outcome.error is error
    assert ours.device.alive == 0 and ours.marks > 0


def test_early_stopping(both):
    def stopping() -> tuple[Any, ...]:
        return (EarlyStoppingHook(monitor="loss"), Stop(5, None))

    both(hooks=stopping)


@registry.LOOPS.register_module()
class OwnLoop(loops.EpochBasedTrainLoop):  # type: ignore[misc]
    """Overrides what users override."""

    def run_epoch(self) -> None:
        self.runner.call_hook("before_train_epoch")
        self.runner.model.train()
        for idx, batch in enumerate(self.dataloader):
            self.run_iter(idx, batch)
            if idx == 3:
                break
        self.runner.call_hook("after_train_epoch")
        self._epoch += 1


def test_a_loop_of_the_users_own_that_breaks_off_each_epoch(both):
    _, ours = both(loop={"type": "OwnLoop", "max_epochs": 3}, persistent_workers=True)
    assert ours.device.steps == 12 and ours.marks > 0
    assert ours.exposed < 5


class Nested(Model):
    """Hands parts of the batch to its preprocessor, and a tuple, as other packages do."""

    def train_step(self, data: Any, optim_wrapper: Any) -> Any:
        inputs = self.data_preprocessor.cast_data(data["inputs"])
        (samples,) = self.data_preprocessor.cast_data((data["data_samples"],))
        losses = self(inputs, samples, mode="loss")
        optim_wrapper.update_params(losses["loss"])
        return losses


def test_a_model_that_casts_parts_of_a_batch(both):
    _, ours = both(model_class=Nested)
    assert ours.exposed < 3.5 and ours.marks > 0


class Twice(Model):
    """Casts each batch twice: the second time there is no copy any more."""

    def train_step(self, data: Any, optim_wrapper: Any) -> Any:
        first = self.data_preprocessor.cast_data(data["inputs"])
        second = self.data_preprocessor.cast_data(data["inputs"])
        assert all(one is not other for one, other in zip(first, second, strict=True))
        return super().train_step(data, optim_wrapper)


def test_a_batch_that_is_cast_again_is_copied_again(both):
    _, ours = both(model_class=Twice)
    assert ours.marks > 0


def test_nothing_is_taken_while_torch_compile_traces(both, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    _, ours = both()
    assert ours.marks == ours.device.copies_ahead == 0


def test_short_memory_of_the_device_costs_the_prefetch_and_not_the_job(both, said):
    pairs.check_that_short_memory_costs_no_job(both, said)


def test_being_taken_out_in_the_middle(both):
    pairs.check_that_it_can_be_taken_out(both, Hook)


def test_the_device_without_a_number_is_the_current_one(both):
    _, ours = both(on="cuda")
    assert ours.marks > 0 and ours.exposed < 3.5
    assert torch.device("cuda") != CUDA
