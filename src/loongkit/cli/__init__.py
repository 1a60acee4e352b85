"""The command ``loongkit``: what would be on here, and would it run at all. No job loads this."""
