# The commands of a checkout. `make` alone lists them.
PYTHON ?= python3
TESTS ?=

.PHONY: help setup demo demo-classifier test check lint types contracts generated

help:
	@echo "make setup            set up .venv (the other commands do this first)"
	@echo "make demo             train a detector with and without Loongkit, side by side"
	@echo "make demo-classifier  the same with a plain PyTorch classifier"
	@echo "make test             run the whole test suite (TESTS=… : arguments of pytest)"
	@echo "make check            lint, types, import contracts, generated files"

setup:
	$(PYTHON) tools/setup_env.py main

demo: setup
	.venv/bin/python examples/compare.py detector

demo-classifier: setup
	.venv/bin/python examples/compare.py classifier

test: setup
	.venv/bin/python -m pytest $(TESTS)

check: lint types contracts generated

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: setup
	.venv/bin/mypy
	.venv/bin/mypy examples/compare.py

contracts: setup
	.venv/bin/lint-imports

generated: setup
	.venv/bin/python tools/build_index.py --check
	.venv/bin/python tools/build_docs.py --check
