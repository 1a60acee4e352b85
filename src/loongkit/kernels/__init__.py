"""Pure computation: no hook, no setting, nothing of a framework."""
