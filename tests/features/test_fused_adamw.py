"""Fused Adam and AdamW: the same results as the stock step, and only where that is certain."""

from __future__ import annotations

import functools
import gc
import itertools
import weakref

import pytest
from applied import applied

from loongkit.activation import hardware
from loongkit.features import fused_adam, fused_adamw

torch = pytest.importorskip("torch")
optimisers = pytest.importorskip("optimisers")
Adam, AdamW = torch.optim.Adam, torch.optim.AdamW

KINDS = pytest.mark.parametrize(
    ("kind", "feature"), [(AdamW, fused_adamw), (Adam, fused_adam)], ids=["AdamW", "Adam"]
)


adamw = optimisers.adamw


def stock(kind, *args, **kwargs):
    """An optimiser that torch itself steps by its for-loop, the default on the CPU."""
    return kind(*args, foreach=False, **kwargs)


def unset_foreach(optimizer):
    """Make groups comparable: the stock side names the implementation that it takes anyway."""
    for group in optimizer.param_groups:
        group["foreach"] = None
    return optimizer


@KINDS
@pytest.mark.parametrize(
    ("amsgrad", "maximize", "weight_decay", "tensor_lr"),
    list(itertools.product([False, True], [False, True], [0, 0.01], [False, True])),
)
def test_100_steps_are_within_the_guarantee(
    kind, feature, amsgrad, maximize, weight_decay, tensor_lr
):
    def build(make, **kwargs):
        first, second = optimisers.parameters(), optimisers.parameters([(40, 3), (2,)], seed=1)
        groups = [{"params": first}, {"params": second, "lr": 1e-4, "betas": (0.8, 0.99)}]
        lr = torch.tensor(1e-3) if tensor_lr else 1e-3
        options = {"amsgrad": amsgrad, "maximize": maximize, "weight_decay": weight_decay}
        return make(kind, groups, lr=lr, **options, **kwargs)

    wanted = unset_foreach(optimisers.train(build(stock)))
    with applied(feature) as working:
        found = optimisers.train(build(lambda kind, *args, **kwargs: kind(*args, **kwargs)))
        assert working.marks == 100 * 2
    optimisers.assert_close(found, wanted)


# A fused step in 16 bits rounds once where the stock step rounds after each of its operations, so
# the two part by roundings. (In float16 the default eps of 1e-8 is zero: stock divides by zero.)
@KINDS
@pytest.mark.parametrize(
    ("dtype", "eps", "rtol", "atol"),
    [
        (torch.float64, 1e-8, 1e-12, 1e-14),
        (torch.float16, 1e-3, 2e-2, 1e-2),
        (torch.bfloat16, 1e-8, 2e-2, 2e-2),
    ],
    ids=str,
)
def test_other_floating_types(kind, feature, dtype, eps, rtol, atol):
    wanted = optimisers.train(stock(kind, optimisers.parameters(dtype=dtype), eps=eps))
    with applied(feature) as working:
        found = optimisers.train(kind(optimisers.parameters(dtype=dtype), eps=eps))
        assert working.marks == 100
    optimisers.assert_close(found, unset_foreach(wanted), rtol, atol)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_in_16_bits_the_fused_step_is_no_further_from_the_exact_one(adamw, dtype):
    def run(make, precision):
        values = [param.detach().to(precision) for param in optimisers.parameters(dtype=dtype)]

        def gradients(params, step):
            """The same 16-bit values for every run."""
            optimisers.set_gradients(params, step)
            for param in params:
                param.grad = param.grad.to(dtype).to(precision)

        optimizer = make(list(map(torch.nn.Parameter, values)), lr=0.01, eps=1e-3)
        optimisers.train(optimizer, gradients=gradients)
        return torch.cat(
            [p.detach().double().view(-1) for p in optimisers.all_parameters(optimizer)]
        )

    exact = run(functools.partial(stock, AdamW), torch.float64)
    plain = run(functools.partial(stock, AdamW), dtype)
    assert adamw.marks == 0
    fused = run(AdamW, dtype)
    assert adamw.marks == 100
    assert (fused - exact).abs().sum() <= 1.05 * (plain - exact).abs().sum()


def test_gradients_and_random_numbers_are_untouched(adamw):
    params = optimisers.parameters()
    optimisers.set_gradients(params, 0)
    before = [param.grad.clone() for param in params]
    drawn = torch.get_rng_state()
    AdamW(params, maximize=True, amsgrad=True).step()
    assert adamw.marks == 1
    assert all(map(torch.equal, (param.grad for param in params), before))
    assert torch.equal(torch.get_rng_state(), drawn)


def test_parameters_without_a_gradient_stay_without_state(adamw):
    params = optimisers.parameters([(4,), (5,)])
    optimizer = AdamW(params)
    params[0].grad = torch.ones(4)
    optimizer.step()
    assert adamw.marks == 1
    assert list(optimizer.state) == [params[0]]
    empty = AdamW(optimisers.parameters([(4,)]))
    empty.step()
    assert not empty.state
    assert adamw.marks == 1


def layouts():
    """Parameters and gradients whose elements lie in memory in different orders."""
    value = torch.randn(8, 6, 3, 3, generator=torch.Generator().manual_seed(3))
    last = value.to(memory_format=torch.channels_last)
    wide = torch.zeros(8, 6, 3, 6)
    wide[..., ::2] = value
    return {
        "both row-major": (value, value),
        "both channels-last": (last, last),
        "channels-last gradient": (value, last),
        "channels-last parameter": (last, value),
        "both transposed": (value.transpose(0, 3), value.transpose(0, 3)),
        "holes": (wide[..., ::2], wide[..., ::2]),
        "expanded gradient": (value, value[:1].expand_as(value)),
        "length one": (value[:1].transpose(0, 1), value[:1].transpose(0, 1)),
    }


@pytest.mark.parametrize("name", layouts())
def test_the_layout_in_memory_does_not_matter(adamw, name):
    value, gradient = layouts()[name]

    def build(make):
        weight = torch.nn.Parameter(torch.empty_strided(value.size(), value.stride()))
        weight.data.copy_(value)
        optimizer = make([weight, *optimisers.parameters([(7,)])])

        def gradients(params, step):
            optimisers.set_gradients(params, step)
            weight.grad = torch.empty_strided(gradient.size(), gradient.stride())
            weight.grad = gradient if 0 in gradient.stride() else weight.grad.copy_(gradient + step)

        return optimisers.train(optimizer, range(20), gradients)

    found = build(AdamW)
    assert adamw.marks == 20  # the plain parameter beside it, if nothing else
    optimisers.assert_close(found, unset_foreach(build(lambda params: stock(AdamW, params))))


def test_a_model_that_changes_its_layout_between_steps(adamw):
    def build(make):
        weight = torch.nn.Parameter(torch.ones(8, 6, 3, 3))
        optimizer = make([weight])
        optimisers.train(optimizer, range(3))
        weight.data = weight.data.to(memory_format=torch.channels_last)  # as model.to() does
        return optimisers.train(optimizer, range(3, 6))

    found = build(AdamW)
    assert adamw.marks == 3
    optimisers.assert_close(found, unset_foreach(build(lambda params: stock(AdamW, params))))


def test_mixed_types_in_a_group(adamw):
    def build(make):
        params = optimisers.parameters()
        params += optimisers.parameters(dtype=torch.float64, seed=1)
        return optimisers.train(make(params), range(20))

    found = build(AdamW)
    assert adamw.marks == 20 * 2
    optimisers.assert_close(found, unset_foreach(build(lambda params: stock(AdamW, params))))


def test_adam_with_decoupled_decay():
    options = {"decoupled_weight_decay": True, "weight_decay": 0.1}
    try:
        wanted = optimisers.train(stock(Adam, optimisers.parameters(), **options), range(20))
    except TypeError:
        pytest.skip("this torch's Adam has no such option (2.7 and later)")
    with applied(fused_adam) as feature:
        found = optimisers.train(Adam(optimisers.parameters(), **options), range(20))
        assert feature.marks == 20
    optimisers.assert_close(found, unset_foreach(wanted))


def test_float64_as_default_type(adamw):
    torch.set_default_dtype(torch.float64)
    try:
        found = optimisers.train(AdamW(optimisers.parameters()), range(20))
        wanted = optimisers.train(stock(AdamW, optimisers.parameters()), range(20))
    finally:
        torch.set_default_dtype(torch.float32)
    assert adamw.marks == 20
    optimisers.assert_close(found, unset_foreach(wanted))


def test_a_closure_is_called_once_and_its_loss_returned(adamw):
    params = optimisers.parameters([(3,)])
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        optimisers.set_gradients(params, 0)
        return torch.tensor(7.0)

    assert AdamW(params).step(closure).item() == 7.0
    assert calls == [True]
    assert adamw.marks == 1


def test_a_second_backward_pass_over_changed_weights_still_raises(adamw):
    weight = torch.nn.Parameter(torch.eye(3))
    optimizer = AdamW([weight])
    loss = (torch.ones(2, 3) @ weight @ weight).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    assert adamw.marks == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_groups_added_later_are_judged_on_their_own(adamw):
    def build(make):
        optimizer = optimisers.train(make(optimisers.parameters()), range(5))
        optimizer.add_param_group({"params": optimisers.parameters([(6,)], seed=2), "lr": 0.1})
        twisted = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
        optimizer.add_param_group({"params": [twisted]})
        return optimisers.train(optimizer, range(5, 10))

    found = build(AdamW)
    assert adamw.marks == 5 + 5 * 2
    wanted = build(lambda params: AdamW(params, foreach=False))
    for group in found.param_groups[1:]:
        assert group["fused"] is None
    for group in found.param_groups:
        group["foreach"] = False
    optimisers.assert_close(found, wanted)


def test_errors_are_torchs_own(adamw):
    with pytest.raises(ValueError, match="Invalid learning rate: -1"):
        AdamW(optimisers.parameters(), lr=-1)
    params = optimisers.parameters([(3,)])
    optimizer = AdamW(params)
    params[0].grad = torch.ones(3).to_sparse()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        optimizer.step()
    assert adamw.marks == 0
    params[0].grad = torch.ones(3)
    optimizer.step()
    assert adamw.marks == 1


def test_a_step_that_raises_keeps_no_memory(adamw):
    params = optimisers.parameters([(3,)])
    optimizer = AdamW(params)
    params[0].grad = torch.ones(3).to_sparse()
    with pytest.raises(RuntimeError):
        optimizer.step()
    gone = weakref.ref(optimizer)
    del optimizer, params
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("asked", "kind", "fused"),
    [
        ("level", "cpu", True),
        ("level", "ppu", True),
        ("level", "nvidia", False),
        ("level", "amd", False),
        ("level", "other:abc", False),
        ("implied", "nvidia", True),
        ("own", "nvidia", True),
        ("own", "other:abc", True),
    ],
)
def test_a_level_decides_by_the_kind_of_device(monkeypatch, asked, kind, fused):
    monkeypatch.setattr(hardware, "device_kind", lambda name, device_type: kind)
    with applied(fused_adamw, asked) as feature:
        optimisers.train(AdamW(optimisers.parameters()), range(2))
        assert feature.marks == 2 * fused


def test_both_features_at_work_and_either_taken_out():
    with applied(fused_adamw) as adamw, applied(fused_adam) as adam:
        optimisers.train(AdamW(optimisers.parameters()), range(3))
        assert (adamw.marks, adam.marks) == (3, 0)
        optimisers.train(Adam(optimisers.parameters()), range(3))
        assert (adamw.marks, adam.marks) == (3, 3)
        adamw.patcher.undo()
        optimisers.train(AdamW(optimisers.parameters()), range(3))
        optimisers.train(Adam(optimisers.parameters()), range(3))
        assert (adamw.marks, adam.marks) == (3, 6)


def test_late_activation_reaches_optimisers_that_have_stepped():
    optimizer = optimisers.train(AdamW(optimisers.parameters()), range(5))
    with applied(fused_adamw, late=True) as feature:
        optimisers.train(optimizer, range(5, 10))
        assert feature.marks == 5
    wanted = optimisers.train(stock(AdamW, optimisers.parameters()), range(10))
    optimisers.assert_close(optimizer, unset_foreach(wanted))
