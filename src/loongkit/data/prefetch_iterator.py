"""The iterator of a marked DataLoader: torch's own, and a look at what it will return next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loongkit.data.prefetch_queue import batch_waiting

if TYPE_CHECKING:
    from typing import Any

    from loongkit.data.prefetch import Prospect
    from loongkit.data.stash import Shipment

_OWN = ("_loongkit_iterator", "_loongkit_prospect", "_loongkit_now", "_loongkit_next")


class PrefetchIterator:
    """Returns what torch's iterator returns; all else that is asked of it is passed on to that."""

    def __init__(self, iterator: Any, prospect: Prospect) -> None:
        self._loongkit_iterator = iterator
        self._loongkit_prospect = prospect
        #: The copies of the batch returned last, and of the one after it.
        self._loongkit_now: Shipment | None = None
        self._loongkit_next: Shipment | None = None

    def __iter__(self) -> PrefetchIterator:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._loongkit_iterator)
        except BaseException:
            self.drop()
            raise
        if not self._loongkit_prospect.ended:
            try:
                self._look_ahead(batch)
            except Exception as error:
                self.drop()
                self._loongkit_prospect.fail(error)
        return batch

    def __len__(self) -> int:
        return len(self._loongkit_iterator)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # not there yet: half made, or being copied
            raise AttributeError(name)
        return getattr(self._loongkit_iterator, name)

    def __setattr__(self, name: str, value: Any) -> None:
        target = self if name in _OWN else self._loongkit_iterator
        object.__setattr__(target, name, value)

    def __del__(self) -> None:
        self.drop()

    def drop(self) -> None:
        """Free what was copied ahead; never raises."""
        for name in ("_loongkit_now", "_loongkit_next"):
            shipment = vars(self).get(name)
            if shipment is not None:
                setattr(self, name, None)
                try:
                    self._loongkit_prospect.prefetch.stash.drop(shipment)
                except Exception:
                    pass  # the device has failed, as the job is about to find out

    def _look_ahead(self, batch: Any) -> None:
        prospect = self._loongkit_prospect
        self._turn()
        if prospect.ended:
            self.drop()
        elif prospect.device is None:
            prospect.watch(batch)
        else:
            self._send(batch, batch_waiting(self._loongkit_iterator))

    def _turn(self) -> None:
        """The batch before is done with, and what was the next batch is now returned."""
        past, self._loongkit_now = self._loongkit_now, self._loongkit_next
        self._loongkit_next = None
        if past is not None:
            self._loongkit_prospect.prefetch.stash.drop(past)
            self._loongkit_prospect.note(past.was_of_use)

    def _send(self, batch: Any, following: Any) -> None:
        prospect = self._loongkit_prospect
        device, prefetch = prospect.device, prospect.prefetch
        if following is None or device is None:
            return
        if self._loongkit_now is None:
            # It came too late to be copied ahead; but it must not wait for the one after it.
            self._loongkit_now = prefetch.stash.send(prefetch.leaves_of(batch), device)
        self._loongkit_next = prefetch.stash.send(prefetch.leaves_of(following), device)
