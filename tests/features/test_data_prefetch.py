"""DATA_PREFETCH in trainings by the runners of mmcv 1.x, on a made-up device.

Whatever a user can see is compared with the same training without the feature: batches as hooks see
them, losses, random numbers, errors. Then what the device did is looked at.
"""

from __future__ import annotations

import gc
from typing import Any

import legacy
import pytest

pytestmark = [pytest.mark.legacy, pytest.mark.filterwarnings("ignore::UserWarning")]
legacy.need_mmcv_1()

import prefetch_pairs as pairs  # noqa: E402
import torch  # noqa: E402
from applied import applied  # noqa: E402
from fake_device import CUDA  # noqa: E402
from mmcv.parallel import DataContainer, MMDataParallel, collate, scatter_gather  # noqa: E402
from mmcv.parallel import _functions as scattering  # noqa: E402
from mmcv.runner import (  # noqa: E402
    EpochBasedRunner,
    Hook,
    epoch_based_runner,
    iter_based_runner,
)
from mmcv_runs import Model, on_a_gpu, train  # noqa: E402
from prefetching import device_of, make_patient, without_sleep  # noqa: E402

from loongkit.data import prefetch_loaders  # noqa: E402
from loongkit.features import data_container, data_prefetch  # noqa: E402

#: Tensors of a batch that are copied to the device.
LEAVES = 9


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    without_sleep(monkeypatch, epoch_based_runner, iter_based_runner)
    make_patient(monkeypatch)


said = pairs.said


@pytest.fixture
def both(tmp_path):
    """mmcv needs DATA_CONTAINER on either side."""
    return pairs.Trainings(train, tmp_path, data_prefetch, data_container)


OWN_ROWS = {
    "epochs, resumed": {"epochs": 3, "resume_at": 1},
    "epochs, a subclass": {"runner_class": type("Own", (EpochBasedRunner,), {})},
}


@pytest.mark.parametrize("row", [*pairs.ROWS, *OWN_ROWS])
def test_a_training_sees_no_difference_and_waits_for_no_copy(both, row):
    pairs.check_that_copies_hide(*both(**{**pairs.ROWS, **OWN_ROWS}[row]))


def test_a_long_epoch_exposes_a_tenth_of_what_stock_does(both):
    stock, ours = both(length=60, epochs=1)
    assert ours.exposed <= 0.1 * stock.exposed


def test_one_stream_however_many_epochs(both):
    stock, ours = both(epochs=5)
    # mmcv's own, for batches that came too late, and ours.
    assert ours.device.streams_made == stock.device.streams_made + 1 == 2


def test_without_workers_nothing_is_loaded_early(both):
    _, ours = both(num_workers=0)
    assert ours.device.copies_ahead == 0 and ours.marks == 0


def on_the_cpu(model: Any) -> Any:
    parallel = on_a_gpu(model)
    parallel.device_ids = []
    return parallel


def test_training_on_the_cpu(both, said):
    device = device_of()
    device.in_use = False
    with device, both.applied() as feature:
        outcome = both.train(device, epochs=1, wrap=on_the_cpu)
    assert outcome.error is None and len(outcome.losses) == 6
    assert not said and not feature.marks and not device._pinned and not device.copies


def copying(model: Any, batch: Any, train_mode: bool, **_: Any) -> Any:
    """A batch_processor that takes containers apart by itself."""
    (inputs,), _ = scatter_gather.scatter_kwargs(batch, {}, [-1])
    return model.inner.train_step(inputs, None)


class Bare(torch.nn.Module):
    """A model without a train_step, as a batch_processor needs it."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner


class Video(EpochBasedRunner):  # type: ignore[misc]
    """Makes its own batches of parts of what the loader returned, as BEVFormer's does."""

    def run_iter(self, data_batch: Any, train_mode: bool, **kwargs: Any) -> None:
        def own(container: Any) -> Any:
            parts = [part[:1].contiguous() for part in container.data]
            return type(container)(parts, container.stack, container.padding_value)

        batch = {**data_batch, "img": own(data_batch["img"])}
        batch["weight"] = batch["weight"][:1]
        batch["points"] = DataContainer([[[p + 0 for p in s] for s in batch["points"].data[0]]])
        batch["gt_bboxes"] = DataContainer([[b + 0 for b in batch["gt_bboxes"].data[0]]])
        batch["number"] = batch["number"] + 0
        super().run_iter(batch, train_mode, **kwargs)


NO_USE = {
    "a batch_processor": {"batch_processor": copying, "wrap": Bare},
    "a model on the CPU": {"wrap": on_the_cpu},
    "a runner that makes its own batches": {"runner_class": Video},
}


@pytest.mark.parametrize("case", list(NO_USE))
def test_where_nobody_asks_for_copies_none_are_made(both, said, case):
    _, ours = both(**NO_USE[case])
    assert ours.device.copies_ahead == 0 and ours.marks == 0
    lines = [line for line in said if "3 batches of a DataLoader" in line]
    assert len(lines) == 1 and lines[0].startswith("info data_prefetch: ")


def test_several_gpus_are_left_to_mmcv(both, monkeypatch):
    """To which mmcv scatters in forward; train_step does not take them."""
    sample = {"img": DataContainer(torch.rand(1, 2, 2), stack=True)}
    batch = collate([sample] * 2, samples_per_gpu=1)
    device = device_of()
    with device, both.applied() as feature:
        found = prefetch_of(feature)
        image = batch["img"].data[0] = device.pin(batch["img"].data[0])
        found.stash.send([image], CUDA)
        asked: list[Any] = []
        monkeypatch.setattr(found, "take", lambda *given: asked.append(given))
        scatter_gather.scatter(batch, [0, 0])
        assert not asked
        scatter_gather.scatter(batch["img"].data[0], [0])
        assert [given[0] is image for given in asked] == [True]


def prefetch_of(feature: Any) -> Any:
    return prefetch_loaders._made[id(feature.patcher)]


class Edit(Hook):  # type: ignore[misc]
    """Changes batches in place, or replaces their image."""

    def __init__(self, every: int, replace: bool) -> None:
        self.every = every
        self.replace = replace

    def before_train_iter(self, runner: Any) -> None:
        if runner.iter % self.every == 0:
            image = runner.data_batch["img"]
            if self.replace:
                image._data = [part * 2 for part in image.data]
            else:
                image.data[0].mul_(2)
                runner.data_batch["weight"].add_(7)


@pytest.mark.parametrize("replace", [False, True])
def test_what_a_hook_changes_reaches_the_model(both, replace):
    _, ours = both(hooks=lambda: (Edit(3, replace),))
    assert ours.marks > 0


def test_a_hook_that_replaces_every_batch_ends_it(both, said):
    _, ours = both(hooks=lambda: (Edit(1, True),), epochs=3)
    lines = [line for line in said if "3 batches copied ahead" in line]
    assert len(lines) == 1 and lines[0].startswith("info data_prefetch: ")
    assert ours.device.copies_ahead < 5 * LEAVES


def test_an_error_in_a_worker(both):
    _, ours = both(length=12, broken=3, epochs=2)
    assert isinstance(ours.outcome.error, LookupError)
    assert "Original Traceback" in str(ours.outcome.error)
    assert ours.device.alive <= pairs.BATCH  # what the frames of the error hold


class Stop(Hook):  # type: ignore[misc]
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def after_train_iter(self, runner: Any) -> None:
        if runner.iter == 4:
            raise self.error


@pytest.mark.parametrize("iters", [0, 12])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), ValueError("a hook's own")], ids=["ctrl-c", "error"]
)
def test_a_training_that_ends_early(both, iters, error):
    _, ours = both(iters=iters, hooks=lambda: (Stop(error),), length=40)
    assert ours.outcome.error is error
    gc.collect()
    assert ours.device.alive == 0 and ours.marks > 0


def test_a_training_with_a_validation_between_epochs(both):
    _, ours = both(workflow=[("train", 1), ("val", 1)])
    assert ours.marks > 0


def test_what_is_wrong_with_the_arguments_is_said_by_mmcv(both, tmp_path):
    runner = EpochBasedRunner(
        Model(), optimizer=None, work_dir=str(tmp_path), logger=__import__("logging").getLogger()
    )
    runner._max_epochs = 1

    def said(*arguments: Any, **named: Any) -> tuple[type, str]:
        with pytest.raises(Exception) as caught:
            runner.run(*arguments, **named)
        return caught.type, str(caught.value)

    cases: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((None, [("train", 1)]), {}),
        (([], [("train", 1)]), {}),
        (([1], [3]), {}),
    ]
    wanted = [said(*given, **named) for given, named in cases]
    with device_of(), both.applied():
        assert [said(*given, **named) for given, named in cases] == wanted


def test_arguments_by_name(both):
    class Odd(EpochBasedRunner):  # type: ignore[misc]
        def run(self, data_loaders: Any, workflow: Any) -> None:
            super().run(data_loaders=data_loaders, workflow=workflow, max_epochs=None)

    _, ours = both(runner_class=Odd)
    assert ours.marks > 0


def test_short_memory_of_the_device_costs_the_prefetch_and_not_the_job(both, said):
    pairs.check_that_short_memory_costs_no_job(both, said)


def test_being_taken_out_in_the_middle(both):
    pairs.check_that_it_can_be_taken_out(both, Hook)


# Scatter itself.


@pytest.fixture
def at_work(both):
    with device_of() as device, both.applied() as feature:
        yield device, prefetch_of(feature)


def scattered(value: Any, at_work: Any, send: Any = None) -> tuple[Any, Any, list[int]]:
    """What scatter returns for a value without copies and with them, and how many it copied."""
    device, prefetch = at_work
    copied, found = [], []
    for ahead in ([], send or []):
        prefetch.stash.send(ahead, CUDA)
        before = device.copies
        found.append(scatter_gather.scatter(value, [0]))
        copied.append(device.copies - before)
    return found[0], found[1], copied


def shape_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist(), value.dtype, value.stride()
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [shape_of(item) for item in value]
    return value


def test_nested_containers_keep_their_shape_and_missing_copies_are_made(at_work):
    device, _ = at_work
    one, two, three = (device.pin(torch.rand(2, 2)) for _ in range(3))
    empty, strided = torch.empty(0, 4), torch.rand(4, 4).t()
    values = [
        (DataContainer([one], stack=True), [one]),
        (DataContainer([[one, two]]), [one]),
        (DataContainer([[[one, empty], [strided, two]]]), [one, two]),
        (DataContainer([[one, one]]), [one]),
        (one, [one]),
        ({"a": one, "b": (two, [three, "text"])}, [one, three]),
        (DataContainer([[]]), []),
    ]
    for value, send in values:
        stock, ours, (all_copied, some_copied) = scattered(value, at_work, send)
        assert shape_of(ours) == shape_of(stock)
        assert some_copied == all_copied - len(send)


def test_a_tensor_that_torch_would_refuse_is_refused(at_work):
    device, prefetch = at_work
    scalar = device.pin(torch.tensor(3.0))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            scatter_gather.scatter(scalar, [0])
        prefetch.stash.send([scalar], CUDA)


def test_what_mmcv_would_refuse_is_refused(at_work):
    device, prefetch = at_work
    one = device.pin(torch.rand(2))
    for _ in range(2):
        with pytest.raises(Exception, match="Unknown type"):
            scatter_gather.scatter(DataContainer([[one, "text"]]), [0])
        prefetch.stash.send([one], CUDA)
    assert len(prefetch.stash) == 1


def test_to_the_cpu_nothing_is_taken(at_work):
    device, prefetch = at_work
    one = device.pin(torch.rand(2))
    prefetch.stash.send([one], CUDA)
    assert scatter_gather.scatter(DataContainer([one], stack=True), [-1])[0] is one
    assert len(prefetch.stash) == 1


@pytest.mark.parametrize("late", [False, True])
def test_torchs_own_scatter_is_left_alone(late):
    original = torch.nn.parallel._functions.Scatter
    forward = scattering.Scatter.forward
    with applied(data_container), applied(data_prefetch, late=late):
        assert torch.nn.parallel._functions.Scatter is original
        assert scatter_gather.OrigScatter is not original
        assert issubclass(scatter_gather.OrigScatter, original)
    assert scatter_gather.OrigScatter is original
    assert scattering.Scatter.forward is forward


def test_what_others_put_in_its_place_stays(both):
    original = scatter_gather.OrigScatter
    try:
        with both.applied():
            theirs = scatter_gather.OrigScatter = type("Theirs", (original,), {})
        assert scatter_gather.OrigScatter is theirs
    finally:
        scatter_gather.OrigScatter = original


def test_a_fork_of_mmcv_without_it(both, monkeypatch):
    monkeypatch.delattr(scatter_gather, "OrigScatter")
    with both.applied():
        assert not hasattr(scatter_gather, "OrigScatter")


def test_everything_is_put_back(monkeypatch):
    from torch.utils.data import DataLoader

    places = [
        (EpochBasedRunner, "run"),
        (iter_based_runner.IterBasedRunner, "run"),
        (scattering.Scatter, "forward"),
        (DataLoader, "__iter__"),
        (DataLoader, "_get_iterator"),
    ]
    before = [vars(owner)[name] for owner, name in places]
    with applied(data_prefetch):
        during = [vars(owner)[name] for owner, name in places]
        assert all(one is not other for one, other in zip(before, during, strict=True))
    assert [vars(owner)[name] for owner, name in places] == before
    assert not prefetch_loaders._made
    assert MMDataParallel is not None
