"""Two hooks of MMCV 1.x for this example: losses with all their digits, and an experiment."""

import json
import os.path as osp

import torch
from mmcv.runner import HOOKS, Hook, LoggerHook


@HOOKS.register_module()
class LossFileHook(LoggerHook):
    """Writes losses and times of each training iteration as one line of JSON, without rounding.

    TextLoggerHook rounds to five digits. The file is ``losses.json`` in the work folder.
    """

    def log(self, runner):
        if self.get_mode(runner) != "train":
            return
        record = {"iter": self.get_iter(runner), **runner.log_buffer.output}
        with open(osp.join(runner.work_dir, "losses.json"), "a") as file:
            file.write(json.dumps(record) + "\n")


@HOOKS.register_module()
class OneUlpHook(Hook):
    """Moves every weight to the next number away from zero before the training begins."""

    def before_run(self, runner):
        with torch.no_grad():
            for weight in runner.model.parameters():
                weight.copy_(torch.nextafter(weight, 2 * weight))
