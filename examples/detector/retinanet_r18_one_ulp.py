# ruff: noqa: C408
# The same training from weights one ulp away (examples/detector has to be on PYTHONPATH).
_base_ = "./retinanet_r18_photographs.py"

custom_imports = dict(imports=["one_ulp"])
custom_hooks = [dict(type="OneUlpHook")]
