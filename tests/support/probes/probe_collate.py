"""A feature for tests: wraps DataLoader's default collate function, which runs in its workers."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="probe_collate", level=1, group="data", position=1002, summary="for tests only"
)


@FEATURE.when_imported("torch.utils.data._utils.collate")
def patch(module, patcher):
    def default_collate(original, batch):
        patcher.mark()
        return original(batch)

    patcher.wrap(module, "default_collate", default_collate, like=lambda batch: None)
