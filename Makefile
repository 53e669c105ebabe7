# Every command of the project. `make help` lists them; CI calls the same ones.
#
# Each target makes its own set-up below .venv* and asks for no root, `interop` excepted.
# PYTHON chooses the interpreter: make demo PYTHON=python3.12

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TIMED  := $(BIN)/python tools/timed.py
# In CI, whose machine is shared, a failed test is tried once more, and both outcomes are shown.
PYTEST := $(BIN)/python -m pytest $(if $(CI),--reruns 1 --reruns-delay 3 --rerun-show-tracebacks)
REPORT := .reports
# The data plane of the targets that take one; `make test` runs both.
PLANE  ?= python
# `make interop KERNEL=7 SHORT=1`: another kernel, and the tests marked `short` alone.
KERNEL ?= 6.1
INTEROP = interop-$(KERNEL)$(if $(SHORT),-short)

.DEFAULT_GOAL := help
.PHONY: help demo test check sim interop namespaces bench attacks interop-bench bench-page faults fuzz soak lint \
        types docs native lock clean python \
        environment lint-environment

help:  ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: python  ## Run hosts on 127.0.0.x that lose their connections and no message (1 min)
	@if $(PYTHON) tools/environment.py --at $(VENV) --brief --timeout-s 5 --retries 0 \
	        --patience-s 45 build demo; \
	then $(BIN)/python -m urds demo; \
	else echo "Running with the standard library alone."; PYTHONPATH=src $(PYTHON) -m urds demo; \
	fi

check: environment  ## Run unit, vector, property, health tests and a short simulation (1 min)
	@URDS_IMPL=$(PLANE) $(TIMED) --name check --budget-s 60 -- $(PYTEST) -n 2 -q \
	    -m "not slow and not interop" --short-sim 10 --junitxml=$(REPORT)/check.xml \
	    $(wildcard tests/unit tests/vectors tests/property tests/health tests/sim)

test: environment  ## Run every test that needs neither root nor a virtual machine (30 min)
	@$(TIMED) --name test --budget-s 1800 -- \
	    tools/suite.sh "$(PYTEST) -q -m" $(REPORT) $(PYTHON)

sim: environment  ## Run the simulations alone, all seeds
	@$(TIMED) --name sim --budget-s 600 -- $(PYTEST) -n 2 -q --junitxml=$(REPORT)/sim.xml tests/sim

interop: environment  ## Talk with Linux KERNEL=6.1, 6.12 or 7 in a virtual machine; needs root (20 min)
	@KERNEL=$(KERNEL) URDS_IMPL=$(PLANE) URDS_INTEROP_REQUIRED=$(if $(CI),1) \
	    $(TIMED) --name $(INTEROP) --budget-s 1200 -- \
	    $(PYTEST) -q -m "interop$(if $(SHORT), and short)" --interop-report $(REPORT)/$(INTEROP).json \
	    --junitxml=$(REPORT)/$(INTEROP).xml tests/interop
	@if [ -n "$$CI" ]; then $(BIN)/python tools/summary.py --ran $(REPORT)/$(INTEROP).xml; fi

namespaces: environment  ## Run suites between two network namespaces, IPv4 and IPv6; needs root (6 min)
	@reason=$$($(BIN)/python -m tests.places); \
	if [ -n "$$reason" ] && [ -z "$$CI" ]; then echo "make namespaces: $$reason"; exit 0; fi; \
	URDS_IMPL=$(PLANE) URDS_PLACES=netns4,netns6 $(TIMED) --name namespaces --budget-s 600 -- \
	    $(PYTEST) -n 2 -q --junitxml=$(REPORT)/namespaces.xml tests/namespaces tests/tcp tests/faults/test_runs.py \
	    tests/rsocket/test_socket_processes.py tests/verbs/test_conformance_processes.py
	@if [ -n "$$CI" ]; then $(BIN)/python tools/summary.py --ran $(REPORT)/namespaces.xml; fi

bench: python  ## Measure against pyzmq, raw TCP and others, side by side (10 min)
	@$(PYTHON) tools/environment.py --at $(VENV)-bench build bench
	@$(PYTHON) -m tools.native build --optional --at $(VENV)-bench
	@$(VENV)-bench/bin/python benches/run.py --json $(REPORT)/bench.json

interop-bench: python  ## Measure against the kernel's RDS in one virtual machine; needs root (5 min)
	@$(PYTHON) tools/environment.py --at $(VENV)-bench build bench
	@$(PYTHON) -m tools.native build --optional --at $(VENV)-bench
	@PYTHONPATH=. $(VENV)-bench/bin/python benches/interop.py --json $(REPORT)/interop-bench.json

attacks: environment  ## Measure what attackers cost a node's other peers, on both planes (6 min)
	@$(PYTHON) -m tools.native build --optional
	@$(BIN)/python -m tests.tcp.siege_figures $(ARGS)

bench-page: python  ## Write figures and plots of docs/benchmarks.md anew from the last runs
	@$(PYTHON) tools/environment.py --at $(VENV)-bench build bench
	@$(VENV)-bench/bin/python benches/page.py \
	    $$(ls $(REPORT)/bench.json $(REPORT)/interop-bench.json 2>/dev/null)

fuzz: python  ## Feed parsers and machines octets; ARGS="--jobs 2" (5 min for each target)
	@$(PYTHON) tools/environment.py --at $(VENV)-fuzz build fuzz
	@$(VENV)-fuzz/bin/python fuzz/run.py $(ARGS)

faults: environment  ## Break connections between processes in every way; ARGS="--scenario resets" (10 min)
	@URDS_IMPL=$(PLANE) $(BIN)/python -m tests.faults $(ARGS)

soak: environment  ## Run a mix of processes; watch messages, memory, descriptors (1 h)
	@URDS_IMPL=$(PLANE) $(BIN)/python -m tests.soak $(ARGS)

lint: lint-environment  ## Check style and format, of Rust too where cargo is
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(PYTHON) -m tools.native lint --optional

types: lint-environment  ## Check types, strictly
	@$(BIN)/mypy

docs: environment  ## Write docs/conformance.md and docs/interop.md anew from the last test results
	@$(BIN)/python -m tools.conformance
	@$(BIN)/python -m tools.interop_page

native: python  ## Build the compiled data plane into .venv; needs Rust 1.88 or newer (2 min)
	@$(PYTHON) -m tools.native build

lock: python  ## Renew requirements/*.txt, with hashes, from pyproject.toml
	@$(PYTHON) tools/lock.py

clean:  ## Remove environments, reports and caches
	rm -rf $(VENV) $(VENV)-bench $(VENV)-fuzz $(VENV)-lock $(REPORT) .mypy_cache .ruff_cache \
	    .pytest_cache .hypothesis native/target

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "urds needs Python 3.11 or newer; try: make PYTHON=python3.12 ..." >&2; exit 1; }

environment: python
	@$(PYTHON) tools/environment.py --at $(VENV) build demo test
	@mkdir -p $(REPORT)

lint-environment: python
	@$(PYTHON) tools/environment.py --at $(VENV) build demo test lint
