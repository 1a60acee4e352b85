"""A feature for tests: wraps a function that the job calls on one rank alone."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="probe_rank", level=1, group="operators", position=1005, summary="for tests only"
)


@FEATURE.when_imported("torch.nn.functional")
def patch(module, patcher):
    def pdist(original, *args, **kwargs):
        patcher.mark()
        return original(*args, **kwargs)

    patcher.wrap(module, "hinge_embedding_loss", pdist)
