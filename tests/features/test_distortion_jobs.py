"""DISTORTION in jobs of their own, on copies of the installed packages' own classes."""

from __future__ import annotations

import ast
from pathlib import Path

import children
import pytest
import upstream

pytest.importorskip("numba")
pytest.importorskip("mmcv.image.colorspace")
pytest.importorskip("torch")

EACH = pytest.mark.parametrize("origin", upstream.EACH)

METHOD = {"mmdet 2": "__call__", "mmseg 0": "__call__", "mmdet 3": "transform"}
LIMIT = {"mmdet 2": "1e-3", "mmdet 3": "1e-3", "mmseg 0": "0"}

COMPARE = """
import warnings; warnings.simplefilter("ignore")
import sys, numpy as np

def state():
    from loongkit.activation.session import SESSION
    record = SESSION.records["distortion"]
    return f"{record.state} {record.reason}".strip()

def compare(cls, method, limit, seeds=20):
    replaced = vars(cls)[method]
    original = getattr(replaced, "__wrapped__", replaced)
    for seed in range(seeds):
        image = np.random.default_rng(seed).integers(0, 256, (37, 41, 3)).astype(np.uint8)
        outcomes = []
        for function in (original, replaced):
            np.random.seed(seed)
            results = function(cls(), {"img": image.copy()})
            outcomes.append((results["img"].astype(float), np.random.get_state()[1].tobytes(),
                             np.random.get_state()[2:]))
        (wanted, *draws), (found, *our_draws) = outcomes
        assert draws == our_draws and np.abs(wanted - found).max() <= limit, seed
    return replaced is not original
"""


def on(*entries, **changes: str) -> dict[str, str]:
    path = ":".join(map(str, entries))
    return children.with_prelude(PYTHONPATH=path, LOONGKIT_DISTORTION="1", **changes)


def run(folder, code: str, **changes: str) -> str:
    result = children.run("-c", COMPARE + code, env=on(folder, **changes), cwd=folder)
    assert result.status == 0, result
    return result.out.strip()


def check(module: str, origin: str, cls: str = "PhotoMetricDistortion") -> str:
    return (
        f"import {module}\n"
        f"print(compare({module}.{cls}, {METHOD[origin]!r}, {LIMIT[origin]}), state())\n"
    )


NEAR_MISSES = {
    "mmdet 2": [
        ("> 360", ">= 360"),
        ("randint(2)", "randint(3)"),
        ("permutation(3)", "permutation(3)[::-1]"),
    ],
    "mmdet 3": [
        ("saturation_value > 1", "saturation_value > 2"),
        ("img *= alpha_value", "img += alpha_value"),
    ],
    "mmseg 0": [
        ("% 180", "% 179"),
        ("0, 255)", "0, 254)"),
        ("self.saturation(img)", "self.hue(img)"),
    ],
}


def reformatted(path: Path) -> None:
    """Write the module anew without its docstrings, comments, annotations and line breaks."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            node.body = node.body[ast.get_docstring(node) is not None :]
            for argument in node.args.args:
                argument.annotation = None
    text = ast.unparse(tree)
    assert "hue_delta=18" in text
    path.write_text(text.replace("hue_delta=18", "hue_delta=9"), encoding="utf-8")


@EACH
def test_copies_in_a_plug_in_folder(tmp_path, origin):
    """The known text is found, whatever it looks like; one changed line, and it is left alone."""
    upstream.plugin(tmp_path, "same", origin)
    reformatted(upstream.plugin(tmp_path, "looks_different", origin))
    changed = [f"changed_{number}" for number in range(len(NEAR_MISSES[origin]))]
    for name, change in zip(changed, NEAR_MISSES[origin], strict=True):
        upstream.plugin(tmp_path, name, origin, change)
    log = tmp_path / "log"
    code = "import same\nprint('numba' in sys.modules, state())\n"
    code += "".join(check(name, origin) for name in ("same", "looks_different", *changed))
    found = run(tmp_path, code, LOONGKIT_LOGLEVEL="debug", LOONGKIT_LOGDIR=str(log)).splitlines()
    assert found == [
        "False patched",
        "True effective",
        "True effective",
        *["False effective"] * len(changed),
    ]
    lines = "".join(path.read_text("utf-8") for path in log.iterdir())
    assert lines.count("is left alone, its code is none of the known ones") == len(changed), lines


@EACH
def test_activated_after_the_class_was_registered(tmp_path, origin):
    upstream.plugin(tmp_path, "plug_in", origin)
    code = (
        "import os, plug_in\nos.environ['LOONGKIT_DISTORTION'] = '1'\nimport loongkit.all\n"
        + check("plug_in", origin)
    )
    env = children.clean_env(PYTHONPATH=f"{children.SOURCE}:{tmp_path}")
    result = children.run("-c", COMPARE + code, env=env)
    assert result.out.strip() == "True effective", result


@pytest.mark.parametrize("origin", upstream.EACH[::2])
def test_without_numba_it_is_skipped_with_the_reason(tmp_path, origin):
    upstream.plugin(tmp_path, "plug_in", origin)
    hide = (
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'numba' else find(name, *a)\n"
    )
    found = run(tmp_path, hide + check("plug_in", origin))
    assert found.startswith("False skipped numba is not installed"), found


def test_cached_random_parameters_of_mmcv_2(tmp_path):
    upstream.plugin(tmp_path, "plug_in", "mmdet 3")
    code = """
import plug_in
from mmcv.transforms.utils import cache_random_params
image = np.random.default_rng(0).integers(0, 256, (30, 40, 3)).astype(np.uint8)

def cached(transform):
    results = []
    for seed in range(10):
        np.random.seed(seed)
        for _ in range(2):
            with cache_random_params([transform]):
                results.append(transform({"img": image.copy()})["img"])
        results.append(transform({"img": image.copy()})["img"])
    return results

ours = cached(plug_in.PhotoMetricDistortion())
plug_in.PhotoMetricDistortion.transform = plug_in.PhotoMetricDistortion.transform.__wrapped__
stock = cached(plug_in.PhotoMetricDistortion())
print(all(np.abs(one - other).max() <= 1e-3 for one, other in zip(ours, stock)), state())
"""
    assert run(tmp_path, code) == "True effective"


JOB = """
import warnings; warnings.simplefilter("ignore")
import sys, numpy as np, torch
from torch.utils.data import DataLoader, Dataset
import plug_in

class Photos(Dataset):
    def __init__(self):
        self.pipeline = [plug_in.PhotoMetricDistortion()]
    def __len__(self):
        return 24
    def __getitem__(self, index):
        np.random.seed(index)
        image = np.random.default_rng(index).integers(0, 256, (32, 40, 3)).astype(np.uint8)
        results = {"img": image}
        for transform in self.pipeline:
            results = transform(results)
        return torch.from_numpy(results["img"].astype(np.float32).transpose(2, 0, 1).copy()), 1

def first(worker):
    names = ("loongkit.kernels.photometric_loops", "loongkit.kernels.photometric_bytes")
    modules = [sys.modules.get(name) for name in names]
    if sys.argv[2] == "fork" and "loongkit" in sys.modules:
        done = any(module and module.kernels.cache_info().currsize for module in modules)
        print("compiled before the fork:", done, flush=True)

if __name__ == "__main__":
    torch.manual_seed(0); torch.set_num_threads(1)
    workers = int(sys.argv[1])
    kinds = {"multiprocessing_context": sys.argv[2], "worker_init_fn": first} if workers else {}
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, 2), torch.nn.Flatten(),
                                torch.nn.Linear(1140, 2))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    for images, labels in DataLoader(Photos(), 4, num_workers=workers, **kinds):
        loss = torch.nn.functional.cross_entropy(model(images / 255), labels)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        print(loss.item().hex(), flush=True)
"""


@pytest.mark.parametrize(
    ("origin", "workers", "method"),
    [
        pytest.param(origin.values[0], *kind, marks=origin.marks)
        for origin in upstream.EACH
        for kind in (("0", "none"), ("2", "fork"), ("2", "spawn"))
        if origin.values[0] != "mmseg 0" or kind[1] == "fork"
    ],
)
def test_a_training_has_the_same_losses_and_the_star_of_its_workers(
    tmp_path, origin, workers, method
):
    upstream.plugin(tmp_path, "plug_in", origin)
    script = tmp_path / "job.py"
    script.write_text(JOB, encoding="utf-8")
    env = on(tmp_path, LOONGKIT_DISTORTION_EXACT="1", LOONGKIT_LOGDIR=str(tmp_path / "logs"))
    ours = children.run(script, workers, method, env=env)
    stock = children.run(script, workers, method)

    def losses(result):
        return [line for line in result.out.splitlines() if line.startswith(("0x", "-0x"))]

    assert losses(ours) == losses(stock) and len(losses(ours)) == 6, ours
    assert "distortion                     * {'exact': True}" in ours.out, ours
    if method == "fork":
        assert ours.out.count("compiled before the fork: True") == 2, ours


@pytest.mark.parametrize(
    ("package", "name"),
    [
        pytest.param("mmdet", "mmdet.datasets.pipelines.transforms", marks=pytest.mark.legacy),
        pytest.param("mmseg", "mmseg.datasets.pipelines.transforms", marks=pytest.mark.legacy),
        ("mmdet", "mmdet.datasets.transforms.transforms"),
    ],
)
def test_the_packages_own_class(tmp_path, package, name):
    origin = upstream.origin_of(name)
    upstream.text(origin)  # skips where it is not installed
    code = f"import {package}.datasets\nmodule = sys.modules[{name!r}]\n" + check("sys", origin)
    code = code.replace("sys.PhotoMetricDistortion", "module.PhotoMetricDistortion")
    assert run(tmp_path, code) == "True effective"
