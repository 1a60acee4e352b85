"""A feature for tests: takes effect at SGD's first step and gives up at its second."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="probe_breaks", level=1, group="operators", position=1004, summary="for tests only"
)


@FEATURE.when_imported("torch.optim.sgd")
def patch(module, patcher):
    calls = []

    def sgd(original, *args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            patcher.give_up("the kernel has failed")
        patcher.mark()
        return original(*args, **kwargs)

    patcher.wrap(module, "sgd", sgd)
