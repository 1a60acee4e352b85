"""What CONFIG_GUARDS looks at and what it says: facts, checks on them, their report, the fixes."""
