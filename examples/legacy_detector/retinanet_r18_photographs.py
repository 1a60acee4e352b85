# ruff: noqa: C408
# RetinaNet with a ResNet-18, trained from scratch on the eight photographs that scikit-image ships,
# in the manner of mmdet 2: MMCV's runner, DataContainers, normalisation in the pipeline.
import sys
from importlib.util import find_spec

configs = find_spec("mmdet").submodule_search_locations[0] + "/.mim/configs/_base_/"
_base_ = [configs + "models/retinanet_r50_fpn.py", configs + "default_runtime.py"]

sys.path.append("{{ fileDirname }}")  # for legacy_hooks
custom_imports = dict(imports=["legacy_hooks"])

classes = ("person", "cat", "cup", "spoon", "motorcycle", "wheel", "coin", "rocket")
photographs = find_spec("skimage").submodule_search_locations[0] + "/data/"

model = dict(
    backbone=dict(depth=18, frozen_stages=-1, norm_eval=False, init_cfg=None),
    neck=dict(in_channels=[64, 128, 256, 512], out_channels=128),
    bbox_head=dict(num_classes=len(classes), in_channels=128, feat_channels=128, stacked_convs=2),
)

scale = (320, 320)
normalize = dict(
    type="Normalize", mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True
)
dataset = dict(
    type="CocoDataset",
    classes=classes,
    ann_file="{{ fileDirname }}/../detector/photographs.json",
    img_prefix=photographs,
)
training = [
    dict(type="LoadImageFromFile", to_float32=True),
    dict(type="LoadAnnotations", with_bbox=True),
    dict(type="PhotoMetricDistortion"),
    dict(type="Resize", img_scale=scale, keep_ratio=True),
    dict(type="RandomFlip", flip_ratio=0.5),
    normalize,
    dict(type="Pad", size_divisor=32),
    dict(type="DefaultFormatBundle"),
    dict(type="Collect", keys=["img", "gt_bboxes", "gt_labels"]),
]
testing = [
    dict(type="LoadImageFromFile"),
    dict(
        type="MultiScaleFlipAug",
        img_scale=scale,
        flip=False,
        transforms=[
            dict(type="Resize", keep_ratio=True),
            dict(type="RandomFlip"),
            normalize,
            dict(type="Pad", size_divisor=32),
            dict(type="ImageToTensor", keys=["img"]),
            dict(type="Collect", keys=["img"]),
        ],
    ),
]
data = dict(
    samples_per_gpu=2,
    workers_per_gpu=2,
    train=dict(pipeline=training, **dataset),
    val=dict(pipeline=testing, **dataset),
    test=dict(pipeline=testing, **dataset),
)

runner = dict(type="IterBasedRunner", max_iters=30)
optimizer = dict(type="AdamW", lr=2e-4, weight_decay=0.05)
optimizer_config = dict(grad_clip=dict(max_norm=10, norm_type=2))
lr_config = dict(policy="fixed", by_epoch=False, warmup="linear", warmup_iters=10, warmup_ratio=0.1)

checkpoint_config = dict(by_epoch=False, interval=30)
evaluation = dict(interval=30, metric="bbox")
log_config = dict(
    interval=1,
    hooks=[
        dict(type="TextLoggerHook", by_epoch=False),
        dict(type="LossFileHook", by_epoch=False),
    ],
)
