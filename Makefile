# Every command of the project. `make help` lists them; CI calls the same ones.
#
# Each target makes its own set-up below .venv* and asks for no root, `interop` excepted.
# PYTHON chooses the interpreter: make demo PYTHON=python3.12

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TIMED  := $(BIN)/python tools/timed.py
# In CI, whose machine is shared, a failed test is tried once more, and both outcomes are shown.
RERUN  := $(if $(CI),--reruns 1 --reruns-delay 3 --rerun-show-tracebacks)
PYTEST := $(BIN)/python -m pytest $(RERUN)
# Its data plane is the compiled one where that is built: make test ARGS="--plane python".
SUITE   = $(PYTHON) -m tools.suite --at $(VENV) --pytest="$(RERUN)" $(ARGS)
REPORT := .reports
# The data plane of the other targets that take one.
PLANE  ?= python
# `make interop KERNEL=7 SHORT=1`: another kernel, and the tests marked `short` alone.
KERNEL ?= 6.1
INTEROP = interop-$(KERNEL)$(if $(SHORT),-short)

# Python keeps what it has compiled, whatever a container's image says: tests start thousands of processes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo quick check test test-beyond test-all sim interop programs namespaces dask bench bench-compare attacks \
        interop-bench bench-page faults fuzz soak lint types docs compat native wheels news lock clean python \
        environment lint-environment

help:  ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: python  ## Run hosts on 127.0.0.x that lose their connections and no message (10 s)
	@if $(PYTHON) tools/environment.py --at $(VENV) --brief --timeout-s 5 --retries 0 \
	        --patience-s 45 build demo; \
	then $(BIN)/python -m urds demo; \
	else echo "Running with the standard library alone."; PYTHONPATH=src $(PYTHON) -m urds demo; \
	fi

quick: environment  ## Run a smoke of each system (15 s)
	@$(TIMED) --name quick --budget-s 15 -- $(SUITE) quick

check: environment  ## Run unit, vector, property, health tests and a short simulation (1 min)
	@$(TIMED) --name check --budget-s 60 -- $(SUITE) check

test: environment  ## Run every test that needs neither root nor a virtual machine (10 min)
	@$(TIMED) --name test --budget-s 600 -- $(SUITE) test

test-beyond: environment  ## Run what `test` leaves out: the other plane, more seeds and examples (20 min)
	@$(TIMED) --name test-beyond --budget-s 1200 -- $(SUITE) beyond

test-all: environment  ## Run both, the one after the other (30 min)
	@$(TIMED) --name test-all --budget-s 1800 -- $(SUITE) test beyond

sim: environment  ## Run the simulations alone, all seeds
	@$(TIMED) --name sim --budget-s 600 -- $(PYTEST) -n 2 -q --junitxml=$(REPORT)/sim.xml tests/sim

interop: environment  ## Talk with Linux KERNEL=6.1, 6.12 or 7 in a virtual machine; needs root (20 min)
	@KERNEL=$(KERNEL) URDS_IMPL=$(PLANE) TEST_INTEROP_REQUIRED=$(if $(CI),1) \
	    $(TIMED) --name $(INTEROP) --budget-s 1200 -- \
	    $(PYTEST) -q -m "interop$(if $(SHORT), and short)" --interop-report $(REPORT)/$(INTEROP).json \
	    --junitxml=$(REPORT)/$(INTEROP).xml tests/interop
	@if [ -n "$$CI" ]; then $(BIN)/python tools/summary.py --ran $(REPORT)/$(INTEROP).xml; fi

programs: environment  ## Run CPython's tests, rds-tools, qperf and programs in C under `urds run` (5 min)
	@$(PYTHON) -m tools.native build --optional
	@$(TIMED) --name programs --budget-s 600 -- \
	    $(PYTEST) -n 2 --dist loadfile -q --junitxml=$(REPORT)/programs.xml tests/shim tests/programs

namespaces: environment  ## Run suites between two network namespaces, IPv4 and IPv6; needs root (6 min)
	@reason=$$($(BIN)/python -m tests.support.places); \
	if [ -n "$$reason" ] && [ -z "$$CI" ]; then echo "make namespaces: $$reason"; exit 0; fi; \
	URDS_IMPL=$(PLANE) TEST_PLACES=netns4,netns6 $(TIMED) --name namespaces --budget-s 600 -- \
	    $(PYTEST) -n 2 -q --junitxml=$(REPORT)/namespaces.xml tests/namespaces tests/rds/transports/tcp tests/faults/test_runs.py \
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
	@$(BIN)/python -m tests.rds.transports.tcp.siege_figures $(ARGS)

bench-compare: python  ## Compare processor time per message with commit BASE=...; ARGS="--only native" (15 min)
	@if [ -z "$(BASE)" ]; then echo "make bench-compare BASE=commit; ARGS=--help tells more"; exit 2; fi
	@$(PYTHON) benches/compare.py $(BASE) $(ARGS)

bench-page: python  ## Keep the last runs in docs/data, write figures and plots of docs/benchmarks.md
	@$(PYTHON) tools/environment.py --at $(VENV)-bench build bench
	@$(VENV)-bench/bin/python benches/page.py \
	    $$(ls $(REPORT)/bench.json $(REPORT)/interop-bench.json 2>/dev/null)

fuzz: python  ## Feed parsers and machines bytes; ARGS="--jobs 2" (5 min for each target)
	@$(PYTHON) tools/environment.py --at $(VENV)-fuzz build fuzz
	@$(VENV)-fuzz/bin/python fuzz/run.py $(ARGS)

faults: environment  ## Break connections between processes in every way; ARGS="--scenario resets" (10 min)
	@URDS_IMPL=$(PLANE) $(BIN)/python -m tests.faults $(ARGS)

soak: environment  ## Run a mix of processes; watch messages, memory, descriptors (1 h)
	@URDS_IMPL=$(PLANE) $(BIN)/python -m tests.soak $(ARGS)

dask: python  ## Run Dask over rds://, with upstream's checks from DASK_SOURCES=folder, and a job under resets (4 min)
	@$(PYTHON) tools/environment.py --at $(VENV)-dask build demo test dask
	@$(PYTHON) -m tools.native build --optional --at $(VENV)-dask
	@plane=$$($(VENV)-dask/bin/python -c 'from urds.rds.runtime.process import plane_in_use; print(plane_in_use()[0])'); \
	URDS_IMPL=$$plane TEST_DASK_SOURCES=$(DASK_SOURCES) $(VENV)-dask/bin/python tools/timed.py --name dask --budget-s 300 -- \
	    $(VENV)-dask/bin/python -m pytest $(RERUN) -q --junitxml=$(REPORT)/dask.xml tests/dask
	@$(VENV)-dask/bin/python -m urds dask demo

lint: lint-environment  ## Check style, format and imports, of Rust too where cargo is
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(PYTHON) -m tools.native lint --optional

types: lint-environment  ## Check types, strictly
	@$(BIN)/mypy

docs: environment  ## Write docs/conformance.md and docs/interop.md anew from the last test results
	@$(BIN)/python -m tools.conformance
	@$(BIN)/python -m tools.interop_page

compat: environment  ## Run the last release against these sources, both ways; ARGS="--only tcp" (8 min)
	@$(PYTHON) -m tools.native build --optional
	@$(TIMED) --name compat --budget-s 900 -- $(BIN)/python -m tests.compat $(ARGS)

native: python  ## Build the compiled data plane into .venv; needs Rust 1.88 or newer (2 min)
	@$(PYTHON) -m tools.native build

wheels: python  ## Build wheels and sources into dist/, install each and see it work (10 min)
	@$(PYTHON) tools/environment.py --at $(VENV)-wheels build wheels
	@$(PYTHON) -m tools.wheels --at $(VENV)-wheels $(ARGS)

news: python  ## Show the release notes that the files of changes/ make
	@$(PYTHON) tools/environment.py --at $(VENV)-news build news
	@$(VENV)-news/bin/towncrier build --draft --version "$$($(PYTHON) -c \
	    'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')"

lock: python  ## Renew requirements/*.txt, with hashes, from pyproject.toml
	@$(PYTHON) tools/lock.py

clean:  ## Remove environments, reports and caches
	rm -rf $(VENV) $(VENV)-bench $(VENV)-dask $(VENV)-fuzz $(VENV)-lock $(VENV)-news $(VENV)-wheels dist $(REPORT) .mypy_cache .ruff_cache \
	    .bench-compare .compat \
	    .pytest_cache .hypothesis native/target

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "urds needs Python 3.11 or newer; try: make PYTHON=python3.12 ..." >&2; exit 1; }

environment: python
	@$(PYTHON) tools/environment.py --at $(VENV) build demo test
	@mkdir -p $(REPORT)

lint-environment: python
	@$(PYTHON) tools/environment.py --at $(VENV) build demo test lint
