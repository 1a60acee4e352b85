"""One file a feature: its declaration and its hooks.

A job loads such a file only when a module that it hooks is imported.
"""
