"""A part that only data workers import."""


def collate() -> None:
    pass
