# ruff: noqa: C408
# The same training from weights one ulp away.
_base_ = "./retinanet_r18_photographs.py"

custom_hooks = [dict(type="NumClassCheckHook"), dict(type="OneUlpHook")]
