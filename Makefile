# Every command of the project. `make help` lists them; CI calls the same ones.
#
# Each target makes its own set-up below .venv* and asks for no root, `interop` excepted.
# PYTHON chooses the interpreter: make demo PYTHON=python3.12

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TIMED  := $(BIN)/python tools/timed.py
PYTEST := $(BIN)/python -m pytest
REPORT := .reports

.DEFAULT_GOAL := help
.PHONY: help demo test check sim interop bench fuzz lint types docs native lock clean python \
        environment lint-environment

help:  ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

demo: python  ## Run hosts on 127.0.0.x that lose their connections and no message (1 min)
	@if $(PYTHON) tools/environment.py --at $(VENV) --brief --timeout-s 5 --retries 0 \
	        --patience-s 45 build demo; \
	then $(BIN)/python -m urds demo; \
	else echo "Running with the standard library alone."; PYTHONPATH=src $(PYTHON) -m urds demo; \
	fi

check: environment  ## Run unit, vector, property, health tests and a short simulation (1 min)
	@$(TIMED) --name check --budget-s 60 -- $(PYTEST) -n 2 -q -m "not slow and not interop" \
	    --short-sim 10 --junitxml=$(REPORT)/check.xml \
	    $(wildcard tests/unit tests/vectors tests/property tests/health tests/sim)

test: environment  ## Run every test that needs neither root nor a virtual machine (15 min)
	@$(TIMED) --name test --budget-s 900 -- tools/suite.sh "$(PYTEST) -q -m" $(REPORT)

sim: environment  ## Run the simulations alone, all seeds
	@$(TIMED) --name sim --budget-s 600 -- $(PYTEST) -n 2 -q --junitxml=$(REPORT)/sim.xml tests/sim

interop: environment  ## Talk with a Linux kernel in a virtual machine; needs root (20 min)
	@URDS_INTEROP_REQUIRED=$(if $(CI),1) $(TIMED) --name interop --budget-s 1200 -- $(PYTEST) -q -m interop \
	    --junitxml=$(REPORT)/interop.xml tests/interop
	@if [ -n "$$CI" ]; then $(BIN)/python tools/summary.py --ran $(REPORT)/interop.xml; fi

bench: python  ## Measure against pyzmq and raw TCP, side by side
	@$(PYTHON) tools/environment.py --at $(VENV)-bench build bench
	@$(VENV)-bench/bin/python benches/run.py

fuzz: python  ## Feed the parsers octets for five minutes per target
	@$(PYTHON) tools/environment.py --at $(VENV)-fuzz build fuzz
	@$(VENV)-fuzz/bin/python fuzz/run.py

lint: lint-environment  ## Check style and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: lint-environment  ## Check types, strictly
	@$(BIN)/mypy

docs: environment  ## Write docs/conformance.md anew from the rules and the last test results
	@$(BIN)/python -m tools.conformance

native:  ## Build the native data plane: not part of this release, so it fails and says so
	@echo "The native data plane is not part of this release; the Python plane carries all." >&2
	@exit 1

lock: python  ## Renew requirements/*.txt, with hashes, from pyproject.toml
	@$(PYTHON) tools/lock.py

clean:  ## Remove environments, reports and caches
	rm -rf $(VENV) $(VENV)-bench $(VENV)-fuzz $(VENV)-lock $(REPORT) .mypy_cache .ruff_cache \
	    .pytest_cache .hypothesis

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "urds needs Python 3.11 or newer; try: make PYTHON=python3.12 ..." >&2; exit 1; }

environment: python
	@$(PYTHON) tools/environment.py --at $(VENV) build demo test
	@mkdir -p $(REPORT)

lint-environment: python
	@$(PYTHON) tools/environment.py --at $(VENV) build demo test lint
