"""Fused Adam and AdamW leave no trace: checkpoints, copies, GradScaler and rollback."""

from __future__ import annotations

import copy
import io
import pickle
import sys

import pytest
from applied import applied

from loongkit.features import fused_adam, fused_adamw

torch = pytest.importorskip("torch")
optimisers = pytest.importorskip("optimisers")
AdamW = torch.optim.AdamW


adamw = optimisers.adamw


def saved_and_loaded(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_a_checkpoint_looks_like_one_of_the_stock_optimiser(amsgrad):
    wanted = optimisers.train(AdamW(optimisers.parameters(), amsgrad=amsgrad), range(3))
    with applied(fused_adamw) as feature:
        found = optimisers.train(AdamW(optimisers.parameters(), amsgrad=amsgrad), range(3))
        assert feature.marks == 3
        optimisers.assert_same_dictionaries(found.state_dict(), wanted.state_dict())
        assert vars(found).keys() == vars(wanted).keys()
        assert found.defaults == wanted.defaults
        assert all(value["step"].device.type == "cpu" for value in found.state.values())


@pytest.mark.parametrize(
    "fused", [(True, False), (False, True), (True, True)], ids=["saved", "resumed", "both"]
)
def test_a_run_saved_with_or_without_resumes_with_or_without(fused):
    wanted = optimisers.train(AdamW(optimisers.parameters()), range(20))

    def part(steps, params, state, with_feature):
        optimizer = AdamW(params)
        if state is not None:
            optimizer.load_state_dict(saved_and_loaded(state))
        if not with_feature:
            return optimisers.train(optimizer, steps)
        with applied(fused_adamw) as feature:
            optimisers.train(optimizer, steps)
            assert feature.marks == len(steps)
        return optimizer

    first = part(range(10), optimisers.parameters(), None, fused[0])
    values = [torch.nn.Parameter(p.detach().clone()) for p in optimisers.all_parameters(first)]
    optimisers.assert_close(part(range(10, 20), values, first.state_dict(), fused[1]), wanted)


def test_a_state_dict_shares_the_live_state_as_stock_does(adamw):
    optimizer = optimisers.train(AdamW(optimisers.parameters([(3,)])), range(2))
    packed = optimizer.state_dict()["state"][0]
    live = optimizer.state[optimisers.all_parameters(optimizer)[0]]
    assert packed is live
    optimisers.train(optimizer, range(2, 3))
    assert packed["step"].item() == 3
    assert adamw.marks == 3


def test_a_checkpoint_of_the_users_own_fused_run_stays_his(adamw):
    own = optimisers.train(AdamW(optimisers.parameters(), fused=True), range(3))
    assert adamw.marks == 0
    resumed = AdamW(optimisers.parameters())
    resumed.load_state_dict(saved_and_loaded(own.state_dict()))
    optimisers.train(resumed, range(3, 6))
    assert resumed.param_groups[0]["fused"] is True
    assert adamw.marks == 0


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))], ids=["copy", "dump"]
)
def test_copies_and_pickles(copied):
    before = optimisers.train(AdamW(optimisers.parameters()), range(3))
    plain = pickle.dumps(before)
    wanted = optimisers.train(AdamW(optimisers.parameters()), range(6))
    with applied(fused_adamw) as feature:
        optimizer = optimisers.train(AdamW(optimisers.parameters()), range(3))
        assert b"loongkit" not in pickle.dumps(optimizer)
        for twin in (copied(optimizer), pickle.loads(plain)):
            marks = feature.marks
            optimisers.assert_close(optimisers.train(twin, range(3, 6)), wanted)
            assert feature.marks == marks + 3


def scaled_run(with_feature, *, unscale, infinite=(), resume_at=None):
    """Eight scaled steps in float32, some with an infinite gradient; (optimiser, scale, marks)."""
    params = optimisers.parameters([(31, 7), (5,)])
    optimizer = AdamW(params)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)

    def run():
        nonlocal optimizer
        for step in range(8):
            if step == resume_at:
                state = saved_and_loaded(optimizer.state_dict())
                optimizer = AdamW(params)
                optimizer.load_state_dict(state)
            optimisers.set_gradients(params, step)
            for param in params:
                param.grad *= scaler.scale(torch.ones(())).item()
            if step in infinite:
                params[0].grad[0, 0] = torch.inf
            if unscale:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(params, 1.0)
            scaler.step(optimizer)
            scaler.update()

    if not with_feature:
        run()
        return optimizer, scaler.get_scale(), 0
    with applied(fused_adamw) as feature:
        run()
        return optimizer, scaler.get_scale(), feature.marks


@pytest.mark.parametrize("unscale", [False, True], ids=["ready", "unscaled"])
@pytest.mark.parametrize("infinite", [(), (0,), (3, 4)], ids=["finite", "first", "later"])
@pytest.mark.parametrize("resume_at", [None, 1, 5])
def test_grad_scaler(unscale, infinite, resume_at):
    options = {"unscale": unscale, "infinite": infinite, "resume_at": resume_at}
    wanted, wanted_scale, _ = scaled_run(False, **options)
    found, scale, marks = scaled_run(True, **options)
    assert marks == 8 - len(infinite)
    assert scale == wanted_scale
    optimisers.assert_close(found, wanted)


def test_a_disabled_grad_scaler(adamw):
    params = optimisers.parameters()
    optimisers.set_gradients(params, 0)
    torch.amp.GradScaler("cpu", enabled=False).step(AdamW(params))
    assert adamw.marks == 1


def test_rollback_in_the_middle_of_a_run_leaves_a_stock_optimiser():
    hooks = torch.optim.Optimizer.step.__globals__
    homes = [sys.modules[f"torch.optim.{name}"] for name in ("adam", "adamw")]
    before = [dict(vars(home)) for home in homes]
    counts = [len(hooks[f"_global_optimizer_{when}_hooks"]) for when in ("pre", "post")]
    optimizer = AdamW(optimisers.parameters())
    with applied(fused_adamw) as feature, applied(fused_adam):
        optimisers.train(optimizer, range(5))
        assert feature.marks == 5
    assert [dict(vars(home)) for home in homes] == before
    assert counts == [len(hooks[f"_global_optimizer_{when}_hooks"]) for when in ("pre", "post")]
    optimisers.train(optimizer, range(5, 10))
    assert feature.marks == 5
    optimisers.assert_close(optimizer, optimisers.train(AdamW(optimisers.parameters()), range(10)))
