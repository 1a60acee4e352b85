"""What fused Adam and AdamW leave alone, and what happens when the kernel refuses."""

from __future__ import annotations

import sys
import types

import pytest
from applied import applied

from loongkit.activation import states
from loongkit.features import fused_adamw

torch = pytest.importorskip("torch")
optimisers = pytest.importorskip("optimisers")
distributed = torch.distributed
AdamW = torch.optim.AdamW


adamw = optimisers.adamw


def wanted(steps=10, **options):
    """The stock run; call it outside the feature."""
    return optimisers.train(AdamW(optimisers.parameters(), **options), range(steps))


@pytest.mark.parametrize(
    "choice",
    [
        {"fused": True},
        {"fused": False},
        {"foreach": True},
        {"foreach": False},
    ],
    ids=str,
)
def test_the_users_choice_wins(adamw, choice):
    optimizer = wanted(**choice)
    assert adamw.marks == 0
    assert {key: optimizer.param_groups[0][key] for key in choice} == choice


def test_a_choice_made_in_a_group_later_wins(adamw):
    optimizer = wanted()
    optimizer.param_groups[0]["foreach"] = False
    optimisers.train(optimizer, range(10, 20))
    assert adamw.marks == 10


def test_capturable_is_the_users(adamw):
    params = optimisers.parameters()
    optimizer = AdamW(params, capturable=True)
    optimisers.set_gradients(params, 0)
    try:
        optimizer.step()
    except AssertionError:
        pass  # torch has no capturable step on the CPU
    assert adamw.marks == 0


def test_differentiable_is_the_users(adamw):
    weight = torch.ones(3, requires_grad=True)
    copy = weight.clone()
    optimizer = AdamW([copy], differentiable=True)
    copy.grad = torch.ones(3)
    optimizer.step()
    assert adamw.marks == 0
    copy.sum().backward()
    assert weight.grad is not None


def test_subclasses_are_left_alone(adamw):
    class Plain(AdamW):
        pass

    class Own(AdamW):
        def step(self, closure=None):
            self.stepped = True
            return super().step(closure)

    for kind in (Plain, Own):
        optimizer = optimisers.train(kind(optimisers.parameters()), range(2))
        assert adamw.marks == 0
    assert optimizer.stepped
    optimisers.train(torch.optim.Adam(optimisers.parameters()), range(2))
    assert adamw.marks == 0


def test_the_function_that_steps_use_is_left_alone_elsewhere(adamw):
    stepped = optimisers.train(AdamW(optimisers.parameters([(3,)])), range(1))
    assert adamw.marks == 1
    value, gradient, average, square = (torch.ones(3) for _ in range(4))
    home = sys.modules[AdamW.step.__module__]  # of Adam too, from torch 2.7 on
    getattr(home, home.__name__.rpartition(".")[2])(
        [value], [gradient], [average], [square], [], [torch.tensor(0.0)],
        amsgrad=False, beta1=0.9, beta2=0.999, lr=0.1, weight_decay=0.0, eps=1e-8, maximize=False,
    )  # fmt: skip
    assert value[0] < 1
    assert adamw.marks == len(stepped.param_groups)


def test_complex_parameters(adamw):
    optimizer = AdamW([torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))])
    optimisers.train(optimizer, range(2))
    assert adamw.marks == 0


def test_tensor_subclasses(adamw):
    class Quantised(torch.nn.Parameter):
        pass

    optimisers.train(AdamW([Quantised(torch.ones(3)), *optimisers.parameters()]), range(2))
    assert adamw.marks == 0


def test_a_step_taken_inside_deepspeed(adamw):
    engine = types.ModuleType("deepspeed.runtime.engine")
    exec("def step(optimizer):\n    optimizer.step()", vars(engine))
    params = optimisers.parameters()
    optimizer = AdamW(params)
    for step in range(2):
        optimisers.set_gradients(params, step)
        engine.step(optimizer)
    assert adamw.marks == 0


@pytest.fixture
def process_group(tmp_path):
    if not distributed.is_available():
        pytest.skip("this torch has no distributed package")
    store = f"file://{tmp_path / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_zero_redundancy_optimizer(process_group, adamw):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    params = optimisers.parameters([(5, 3), (4,)])
    optimizer = ZeroRedundancyOptimizer(params, optimizer_class=AdamW, lr=1e-3)
    for step in range(3):
        optimisers.set_gradients(params, step)
        optimizer.step()
    assert type(optimizer.optim) is AdamW
    assert adamw.marks == 0
    plain = optimisers.train(AdamW(optimisers.parameters([(5, 3), (4,)]), lr=1e-3), range(3))
    assert adamw.marks == 3
    pairs = zip(params, optimisers.all_parameters(plain), strict=True)
    assert all(torch.allclose(param, other) for param, other in pairs)


@pytest.mark.parametrize("use_orig_params", [False, True])
def test_fully_sharded_data_parallel(process_group, adamw, use_orig_params):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    device = torch.device("cpu")
    sharded = FullyShardedDataParallel(model, use_orig_params=use_orig_params, device_id=device)
    optimizer = AdamW(sharded.parameters())
    sharded(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert adamw.marks == 0


def test_dtensor_parameters(process_group, adamw):
    tensor = pytest.importorskip("torch.distributed.tensor")
    if not hasattr(tensor, "distribute_tensor"):
        tensor = pytest.importorskip("torch.distributed._tensor")  # its name before torch 2.5
    mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
    whole = torch.ones(4, 3)
    param = torch.nn.Parameter(tensor.distribute_tensor(whole, mesh, [tensor.Shard(0)]))
    optimizer = AdamW([param])
    param.grad = tensor.distribute_tensor(whole, mesh, [tensor.Shard(0)])
    optimizer.step()
    assert adamw.marks == 0


def compiled_run(with_raw_step):
    """Two eager steps, three compiled ones, two eager ones; (optimiser, what was compiled)."""
    graphs = []

    def backend(graph, _inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes if "call" in node.op])
        return graph.forward

    torch.compiler.reset()
    optimizer = optimisers.train(AdamW(optimisers.parameters([(7,), (3, 2)])), range(2))
    step = optimizer.step
    if with_raw_step:
        # Below torch's wrappers, which break the graph themselves.
        raw = AdamW.step.__wrapped__.__wrapped__
        step = torch.no_grad()(lambda: raw(optimizer))
    compiled = torch.compile(step, backend=backend, fullgraph=with_raw_step)
    for number in range(2, 5):
        optimisers.set_gradients(optimisers.all_parameters(optimizer), number)
        compiled()
    optimisers.train(optimizer, range(5, 7))
    return optimizer, graphs


@pytest.mark.parametrize("with_raw_step", [False, True], ids=["step", "fullgraph"])
def test_a_compiled_step_is_left_alone(with_raw_step):
    plain, wanted_graphs = compiled_run(with_raw_step)
    with applied(fused_adamw) as feature:
        found, graphs = compiled_run(with_raw_step)
        assert feature.marks == 2 + 2
    assert wanted_graphs
    assert graphs == wanted_graphs
    for param, other in zip(
        optimisers.all_parameters(found), optimisers.all_parameters(plain), strict=True
    ):
        torch.testing.assert_close(param, other, rtol=1e-5, atol=1e-7)


def test_a_step_compiled_inside_an_eager_one_is_left_alone(adamw):
    params = optimisers.parameters([(7,)])
    optimizer = optimisers.train(AdamW(params), range(1))
    raw = AdamW.step.__wrapped__.__wrapped__
    torch.compiler.reset()
    inner = torch.compile(torch.no_grad()(lambda: raw(optimizer)), backend="eager", fullgraph=True)
    inner_marks = []

    def closure():
        optimisers.set_gradients(params, 1)
        inner()
        inner_marks.append(adamw.marks)

    optimizer.step(closure)
    assert inner_marks == [1]


def refusing(dtype, kernel=torch._fused_adamw_):
    """A fused kernel that a vendor has built for fewer types: checks first, writes afterwards."""

    def fused(params, *args, **kwargs):
        if params[0].dtype == dtype:
            raise NotImplementedError(f"no kernel for {dtype}")
        return kernel(params, *args, **kwargs)

    return fused


def test_a_kernel_that_refuses_costs_nothing_but_the_feature(monkeypatch):
    plain = wanted()
    with applied(fused_adamw) as feature:
        optimizer = optimisers.train(AdamW(optimisers.parameters()), range(5))
        monkeypatch.setattr(torch, "_fused_adamw_", refusing(torch.float32))
        optimisers.train(optimizer, range(5, 10))
        assert feature.marks == 5
        assert feature.record.state == states.FAILED
        assert "fused kernel refused parameters on cpu: no kernel" in feature.record.reason
    optimisers.assert_close(optimizer, plain)


@pytest.mark.parametrize("refused", [torch.float32, torch.float64], ids=str)
def test_a_kernel_that_refuses_one_of_two_types(monkeypatch, refused):
    def run():
        mixed = optimisers.parameters() + optimisers.parameters(dtype=torch.float64, seed=1)
        return optimisers.train(AdamW(mixed), range(3))

    plain = run()
    monkeypatch.setattr(torch, "_fused_adamw_", refusing(refused))
    with applied(fused_adamw) as feature:
        optimisers.assert_close(run(), plain)
        assert feature.record.state == states.FAILED


def test_a_fault_of_our_own_costs_nothing_but_the_feature(monkeypatch):
    from loongkit.optim import tensors

    plain = wanted()
    with applied(fused_adamw) as feature:
        monkeypatch.setattr(tensors, "differing_layouts", lambda *_args, **_kwargs: 1 / 0)
        optimisers.assert_close(wanted(), plain)
        assert feature.marks == 0
        assert feature.record.state == states.FAILED
        assert "ZeroDivisionError" in feature.record.reason


def test_step_counts_of_an_accelerator_stay_on_the_host(adamw, monkeypatch):
    """On an accelerator the kernel gets copies of the counts; "meta" stands in for one here."""
    from loongkit.optim.fused import FusedStep

    params, gradients, average, square = ([torch.ones(2, device="meta")] * 3 for _ in range(4))
    counts = [torch.tensor(value) for value in (4.0, 9.0, 4.0)]
    seen = []

    def kernel(*lists, **_options):
        seen.extend(lists[5])

    monkeypatch.setattr(torch, "_fused_adamw_", kernel)
    options = dict.fromkeys(("amsgrad", "lr", "beta1", "beta2", "weight_decay", "eps", "maximize"))
    step = FusedStep(AdamW, fused_adamw.DEFAULT_ON, adamw.patcher)
    lists = [params, gradients, average, square, [], counts]
    assert step._run_fused(lists, options) == ""
    assert {(each.device.type, each.dtype, each.dim()) for each in seen} == {
        ("meta", torch.float32, 0)
    }
    assert len(seen) == 3
    assert [count.item() for count in counts] == [5.0, 10.0, 5.0]
    assert adamw.marks == 1


def test_dense_tensors():
    from loongkit.optim import tensors

    cube = torch.zeros(2, 3, 4)
    dense = [cube, cube.permute(2, 0, 1), cube[:1], cube.mT, torch.zeros(()), torch.zeros(0, 3)]
    assert all(map(tensors.is_dense, dense))
    sparse = [cube[..., ::2], cube[:, :2], torch.zeros(1).expand(5), cube.mT[:, ::2]]
    assert not any(map(tensors.is_dense, sparse))


def test_copied_step_counts_keep_their_order():
    from loongkit.optim import tensors

    copies = tensors.device_steps([torch.ones(1)] * 4, [7.0, 2.0, 7.0, 1.0])
    assert [copy.item() for copy in copies] == [7.0, 2.0, 7.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("has_descent", [True, False])
def test_counting(monkeypatch, dtype, has_descent):
    from loongkit.optim import tensors

    assert tensors._descent_counts()
    monkeypatch.setattr(tensors, "_descent_counts", lambda: has_descent)
    steps = [torch.tensor(float(value), dtype=dtype) for value in (0, 1, 2**23)]
    tensors.count(steps, 1)
    assert [step.item() for step in steps] == [1, 2, 2**23 + 1]
    tensors.count(steps, -1)
    assert [step.item() for step in steps] == [0, 1, 2**23]
    assert {step.dtype for step in steps} == {dtype}


def test_state_that_does_not_fit_its_parameter_is_left_to_torch(adamw):
    optimizer = optimisers.train(AdamW(optimisers.parameters([(3,)])), range(2))
    param = optimisers.all_parameters(optimizer)[0]
    optimizer.state[param]["exp_avg"] = torch.zeros(3, dtype=torch.float64)
    param.grad = torch.ones(3)
    with pytest.raises(RuntimeError, match="dtype"):
        optimizer.step()
    assert adamw.marks == 2
    assert adamw.record.state == states.PATCHED


def test_step_counts_of_another_type_are_left_to_torch(adamw):
    optimizer = optimisers.train(AdamW(optimisers.parameters([(3,)])), range(2))
    state = optimizer.state[optimisers.all_parameters(optimizer)[0]]
    state["step"] = state["step"].half()
    optimisers.train(optimizer, range(2, 4))
    assert adamw.marks == 2
    assert state["step"].item() == 4
