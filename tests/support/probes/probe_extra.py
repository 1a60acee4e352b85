"""A feature for tests: its target is imported by data workers alone."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="probe_extra", level=1, group="operators", position=1001, summary="for tests only"
)


@FEATURE.when_imported("torch.extra")
def patch(module, patcher):
    def collate(original):
        patcher.mark()
        return original()

    patcher.wrap(module, "collate", collate)
