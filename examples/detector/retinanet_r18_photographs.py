# ruff: noqa: C408
# RetinaNet with a ResNet-18, trained from scratch on the eight photographs that scikit-image ships.
_base_ = ["mmdet::_base_/models/retinanet_r50_fpn.py", "mmdet::_base_/default_runtime.py"]

from importlib.util import find_spec  # noqa: E402 (an MMEngine config begins with _base_)

classes = ("person", "cat", "cup", "spoon", "motorcycle", "wheel", "coin", "rocket")
photographs = find_spec("skimage").submodule_search_locations[0] + "/data/"
scale = (320, 320)

model = dict(
    backbone=dict(depth=18, frozen_stages=-1, norm_eval=False, init_cfg=None),
    neck=dict(in_channels=[64, 128, 256, 512], out_channels=128),
    bbox_head=dict(num_classes=len(classes), in_channels=128, feat_channels=128, stacked_convs=2),
)

train_dataloader = dict(
    batch_size=2,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type="CocoDataset",
        metainfo=dict(classes=classes),
        ann_file="{{ fileDirname }}/photographs.json",
        data_prefix=dict(img=photographs),
        pipeline=[
            dict(type="LoadImageFromFile"),
            dict(type="LoadAnnotations", with_bbox=True),
            dict(type="Resize", scale=scale, keep_ratio=True),
            dict(type="RandomFlip", prob=0.5),
            dict(type="PhotoMetricDistortion"),
            dict(type="PackDetInputs"),
        ],
    ),
)

train_cfg = dict(type="IterBasedTrainLoop", max_iters=40)
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=2e-4, weight_decay=0.05),
    clip_grad=dict(max_norm=10, norm_type=2),
)
param_scheduler = dict(type="LinearLR", start_factor=0.1, by_epoch=False, begin=0, end=10)

default_hooks = dict(
    logger=dict(interval=1),
    checkpoint=dict(by_epoch=False, interval=40),
)
log_processor = dict(window_size=1, by_epoch=False)
randomness = dict(seed=0)
