"""Replacements for optimiser steps. Imports torch: loaded by hook bodies only."""
