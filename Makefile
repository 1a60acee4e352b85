# The commands of a checkout. `make` alone lists them.
PYTHON ?= python3
TESTS ?=

.PHONY: help setup setup-legacy demo demo-classifier demo-legacy test test-main test-legacy \
	test-numa-guest check lint types contracts generated

help:
	@echo "make setup            set up .venv (the other commands do this first)"
	@echo "make setup-legacy     set up .venv-legacy, with MMCV 1.x"
	@echo "make demo             train a detector with and without Loongkit, side by side"
	@echo "make demo-classifier  the same with a plain PyTorch classifier"
	@echo "make demo-legacy      the same with an mmdet 2 detector"
	@echo "make test             run the whole test suite in both environments"
	@echo "make test-main        run it in .venv alone (TESTS=… : arguments of pytest)"
	@echo "make test-legacy      run what needs MMCV 1.x, in .venv-legacy"
	@echo "make test-numa-guest  place processes for real on an emulated machine with two NUMA nodes"
	@echo "make check            lint, types, import contracts, generated files"

setup:
	$(PYTHON) tools/setup_env.py main

setup-legacy:
	$(PYTHON) tools/setup_env.py legacy

demo: setup
	.venv/bin/python examples/compare.py detector

demo-classifier: setup
	.venv/bin/python examples/compare.py classifier

demo-legacy: setup-legacy
	.venv-legacy/bin/python examples/compare.py legacy

# Each part writes down which tests ran; a test that ran in neither environment is an error.
test: test-main test-legacy
	.venv/bin/python tools/check_skipped.py .cache/tests-main.json .cache/tests-legacy.json

test-main: setup
	.venv/bin/python -m pytest -n 2 --dist loadfile -m "not legacy" --outcomes=.cache/tests-main.json $(TESTS)

test-legacy: setup-legacy
	.venv-legacy/bin/python -m pytest -n 2 --dist loadfile -m "legacy or stacks" --outcomes=.cache/tests-legacy.json $(TESTS)

# Needs the Debian packages qemu-system-x86 and what tools/qemu_guest.py names; two minutes.
test-numa-guest: setup
	.venv/bin/python tools/qemu_guest.py

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
