"""A feature for tests: wraps SGD's update and marks that it ran, in whatever process."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="probe_update", level=1, group="operators", position=1000, summary="for tests only"
)


@FEATURE.when_imported("torch.optim.sgd")
def patch(module, patcher):
    def update(original, *args, **kwargs):
        patcher.mark()
        return original(*args, **kwargs)

    patcher.wrap(module.SGD, "update", update)
