"""Declaration of LOONGKIT_PAGE_CACHE_LIMIT."""

from loongkit.activation.feature import Feature, Option

FEATURE = Feature(
    name="page_cache_limit",
    level=2,
    group="data",
    position=70,
    summary="bounds the page cache that the training job takes",
    note="relieves memory pressure on the data workers",
    options=(
        Option("size", "int", 0, "the limit in MB; 0: computed from the system's memory"),
        Option("sync", "bool", False, "write dirty pages back while reclaiming"),
    ),
    implemented=False,
)
