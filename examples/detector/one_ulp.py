"""An MMEngine hook for an experiment: how far rounding alone carries a training."""

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class OneUlpHook(Hook):
    """Moves every weight to the next number away from zero before the training begins."""

    def before_train(self, runner):
        with torch.no_grad():
            for weight in runner.model.parameters():
                weight.copy_(torch.nextafter(weight, 2 * weight))
