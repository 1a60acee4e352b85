"""The operating system's calls on control groups. Loaded at interpreter start in ranks."""

from __future__ import annotations

import os

from loongkit.activation.controls import Controls


class Operations(Controls):
    """Control groups below a root, by paths without a leading slash.

    Each call may raise what the kernel answers, an OSError.
    """

    def make(self, folder: str) -> bool:
        """Make a group; False where there is one of that name already."""
        try:
            os.mkdir(self.at(folder))
        except FileExistsError:
            return False
        return True

    def remove(self, folder: str) -> None:
        """Remove a group that has no process and no group below it."""
        os.rmdir(self.at(folder))

    def groups_in(self, folder: str) -> list[str]:
        """Return the names of the groups right below one."""
        with os.scandir(self.at(folder)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))

    def made_at(self, folder: str) -> float:
        """Return when a group was made, in seconds since 1970."""
        return os.stat(self.at(folder)).st_mtime
