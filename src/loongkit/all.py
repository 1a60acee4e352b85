"""``import loongkit.all`` at the top of a training script activates Loongkit.

The settings are those in ``os.environ`` at that moment. Where the prelude ran earlier with other
ones, what is newly on is added, and what can no longer be undone is said in the log.
"""

from loongkit.activation import guard

guard.activate("import")
