"""Copies the next batch to the device while the model works on this one.

A loader whose batches go to a training is marked. Its iterator looks, each time it returns a batch,
whether the next one has arrived, and begins to copy its tensors. Where the framework would copy
them itself, it asks here first. The batch itself stays on the CPU and nobody sees a difference.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from loongkit.activation import logs
from loongkit.data.prefetch_iterator import PrefetchIterator
from loongkit.data.prefetch_queue import has_pin_thread
from loongkit.data.stash import Stash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    import torch

    from loongkit.data.accelerator import Accelerator

#: So many batches in a row without use end it for their loader.
MOST_FRUITLESS = 3


class Prefetch:
    """The loaders of this process whose batches are copied ahead, and the copies.

    Args:
        feature: its name, for the log.
        accelerator: the device operations.
        leaves_of: yields the tensors in a batch that the framework will copy.
        mark: called where a copy made ahead is used.

    """

    def __init__(
        self,
        feature: str,
        accelerator: Accelerator,
        leaves_of: Callable[[Any], Iterable[torch.Tensor]],
        mark: Callable[[], None],
    ) -> None:
        self.feature = feature
        self.leaves_of = leaves_of
        self.accelerator = accelerator
        self.stash = Stash(accelerator)
        #: id of a tensor handed out by a loader of which nothing is known yet -> that loader's.
        self.watched: dict[int, Prospect] = {}
        self._mark = mark
        self._loaders: dict[int, tuple[weakref.ref[Any], Prospect]] = {}
        self._iterators: weakref.WeakSet[PrefetchIterator] = weakref.WeakSet()

    def add(self, loader: Any) -> bool:
        """Mark a loader; tell whether it was not marked before."""
        if self.includes(loader):
            return False
        key = id(loader)
        reference = weakref.ref(loader, lambda _: self._loaders.pop(key, None))
        self._loaders[key] = (reference, Prospect(self))
        return True

    def includes(self, loader: Any) -> bool:
        """Tell whether a loader is marked."""
        return id(loader) in self._loaders

    def remove(self, loader: Any) -> None:
        """Take a loader's mark away; its iterators look ahead no more."""
        found = self._loaders.pop(id(loader), None)
        if found is not None:
            found[1].end()

    def iterate(self, original: Callable[[Any], Any], loader: Any) -> Any:
        """Stand in for DataLoader.__iter__."""
        iterator = original(loader)
        found = self._loaders.get(id(loader))
        if found is None or not has_pin_thread(iterator) or not self.accelerator.is_in_use():
            return iterator
        made = PrefetchIterator(iterator, found[1])
        self._iterators.add(made)
        return made

    def take(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor | None:
        """Return the copy of a batch's tensor on a device, made ahead; None: copy it yourself.

        It may be used on the current stream. It is handed out once.
        """
        if self.is_idle or device.type == "cpu":
            return None
        try:
            device = self.accelerator.with_index(device)
            prospect = self.watched.get(id(tensor))
            if prospect is not None:
                prospect.begin(device)
            found = self.stash.take(tensor, device)
        except Exception as error:  # the device has failed: the original will say so
            logs.debug(f"{self.feature}: a copy made ahead could not be used: {error!r}")
            return None
        if found is not None:
            self._mark()
        return found

    @property
    def is_idle(self) -> bool:
        """True while there is nothing to take, and nothing to learn from who asks."""
        return not self.stash and not self.watched

    def release(self) -> None:
        """Free all that was copied ahead: a training has ended."""
        for iterator in list(self._iterators):
            iterator.drop()
        self.watched.clear()

    def close(self) -> None:
        """End it all: the feature is taken out."""
        for loader, prospect in list(self._loaders.values()):
            prospect.end()
            self._loaders.pop(id(loader()), None)
        self.release()


class Prospect:
    """What copying ahead promises for one loader: where to, and whether it is of use.

    Nothing is copied until the framework was seen to copy a batch just as the loader had returned
    it: so batches that a resumed training skips, or of which a model makes others, cost nothing.
    """

    def __init__(self, prefetch: Prefetch) -> None:
        self.prefetch = prefetch
        self.device: torch.device | None = None
        self.ended = False
        self._fruitless = 0

    def begin(self, device: torch.device) -> None:
        """Take it that the framework will copy this loader's batches to the device."""
        self._forget()
        self._fruitless = 0
        self.device = device

    def end(self) -> None:
        """Copy nothing ahead any more."""
        self._forget()
        self.ended = True

    def watch(self, batch: Any) -> None:
        """Note which tensors were returned, to see whether and where the framework copies them."""
        passed = self._forget()
        if passed:
            self._fruitless += 1
            if self._fruitless == MOST_FRUITLESS:
                self._say(
                    f"{MOST_FRUITLESS} batches of a DataLoader went to no device as they were"
                )
        for tensor in self.prefetch.leaves_of(batch):
            self.prefetch.watched[id(tensor)] = self

    def note(self, was_of_use: bool) -> None:
        """Note whether a batch copied ahead was used."""
        self._fruitless = 0 if was_of_use else self._fruitless + 1
        if self._fruitless < MOST_FRUITLESS:
            return
        self._say(f"{MOST_FRUITLESS} batches copied ahead in a row were replaced before their use")
        self.end()

    def fail(self, error: Exception) -> None:
        """End it after a failure, most likely for want of device memory."""
        self.end()
        logs.warning(
            f"{self.prefetch.feature}: a batch could not be copied to the device ahead of its use, "
            f"and this DataLoader's no longer are ({type(error).__name__}: {error}); where the "
            "device's memory is short, use smaller batches or set "
            f"LOONGKIT_{self.prefetch.feature.upper()}=0"
        )

    def _say(self, what: str) -> None:
        logs.info(
            f"{self.prefetch.feature}: {what} (several devices in one process, a batch_processor, "
            "or a runner or hook that makes its own batches?): nothing is copied ahead"
        )

    def _forget(self) -> bool:
        """Forget the tensors being watched; tell whether there were any."""
        watched = self.prefetch.watched
        mine = [key for key, prospect in watched.items() if prospect is self]
        for key in mine:
            del watched[key]
        return bool(mine)
