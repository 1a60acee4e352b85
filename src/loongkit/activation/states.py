"""What has become of each feature: off → enabled → armed → patched → effective.

Side exits are skipped(reason) and failed(reason). The same words stand in code, log, summary, docs.
"""

from __future__ import annotations

from loongkit.activation import logs
from loongkit.activation.plan import OWN, Decision

OFF, ENABLED, ARMED, PATCHED, EFFECTIVE = "off", "enabled", "armed", "patched", "effective"
SKIPPED, FAILED = "skipped", "failed"


class StrictError(RuntimeError):
    """Raised under LOONGKIT_STRICT=1 where a feature asked for by its own variable drops out.

    Also where it can't do all that its options ask for.
    """


class Record:
    """The state of one feature in this process.

    ``gate_passed`` tells whether a hooked module was imported and met the version gates;
    ``ran_early`` that a replacement ran while the feature was still being applied;
    ``waits_for`` names the requirement of a package that was not imported so far, ``unused`` why
    what was applied has not come to run so far; ``shortfall`` is what the user asked it for and
    does not get, although the feature itself is on.
    """

    __slots__ = (
        "decision",
        "gate_passed",
        "ran_early",
        "reason",
        "shortfall",
        "state",
        "strict",
        "supported",
        "unused",
        "waits_for",
    )

    def __init__(self, decision: Decision, strict: bool) -> None:
        self.decision = decision
        self.state = ENABLED if decision.on else OFF
        self.reason = ""
        self.gate_passed = False
        self.ran_early = False
        self.waits_for = ""
        self.unused = ""
        self.shortfall = ""
        #: Support modules whose hooks have run.
        self.supported: set[str] = set()
        self.strict = strict

    @property
    def name(self) -> str:
        """The feature's name."""
        return self.decision.entry.name

    @property
    def applied(self) -> bool:
        """True while something of the feature is in the job's frameworks."""
        return self.state in (PATCHED, EFFECTIVE)

    @property
    def out(self) -> bool:
        """True once the feature was skipped or has failed: nothing of it may be applied."""
        return self.state in (SKIPPED, FAILED)

    def move(self, state: str, reason: str = "") -> None:
        """Go to another state; each change is one line at info level, flushed at once.

        Raises:
            StrictError: the feature drops out under LOONGKIT_STRICT=1.

        """
        if state == self.state and reason == self.reason:
            return
        before, self.state, self.reason = self.state, state, reason
        detail = f" ({reason})" if reason else ""
        logs.info(f"{self.name}: {before} -> {state}{detail}")
        if self.out:
            self._be_strict(f"is {state}: {reason}", "without the feature")

    def fall_short(self, reason: str) -> None:
        """Note that the feature is on, and something that it was asked for is left out.

        Raises:
            StrictError: the feature falls short under LOONGKIT_STRICT=1.

        """
        self.shortfall = reason
        self._be_strict(f"does not do all of that: {reason}", "without what is left out")

    def _be_strict(self, what: str, otherwise: str) -> None:
        if self.strict and self.decision.asked == OWN:
            raise StrictError(
                f"loongkit: {self.name} was asked for by {self.decision.entry.variable} and "
                f"{what}. LOONGKIT_STRICT=1 makes this an error; unset it to run on {otherwise}"
            )
