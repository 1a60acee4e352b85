"""A feature for tests: patched at torch's import, and never called."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="probe_idle", level=1, group="operators", position=1003, summary="for tests only"
)


@FEATURE.when_imported("torch.nn.modules.loss")
def patch(module, patcher):
    def forward(original, *args, **kwargs):
        patcher.mark()
        return original(*args, **kwargs)

    patcher.wrap(module.CTCLoss, "forward", forward)
