# Everything runs in .venv, which the first target that needs it creates. Needs Python >= 3.11 and make, nothing else.
#   make run                 simulate the built-in quickstart scenario into runs/quickstart
#   make test [ARGS="-k x"]  tests: every one that is quick, a share of long tables of cases (4 minutes on two cores)
#   make test-all            every case of every test once, property tests in full: what CI runs (15 minutes)
#   make test-thorough       some with thousands of examples, notebooks, quick studies, long tables and searches (half an hour)
#   make test-browser        pages in headless Chromium, which the system has to have (1 minute)
#   make test-ray            sweeps and searches on a Ray cluster of three nodes on this machine (4 minutes)
#   make test-studies        every command of the studies' pages, with whole studies (an hour)
#   make nightly             what CI leaves out: the four above, fuzz, test-compiled, matrix and release-check
#   make compiled            the compiled wheel (HERMES_COMPILED=1), installed in build/compiled; make pure removes it
#   make test-compiled [ARGS=...]  contract suites on the compiled build, and both builds compared (3 minutes)
#   make conformance PYTHONS="PATH ..."  schedules against vLLM's own scheduler, one interpreter for each version
#   make fuzz                9,000 malformed inputs with three seeds (10 minutes)
#   make bench [JSON=FILE]   benchmarks, as a table and as flat JSON
#   make duel OTHER=PYTHON   CPU and memory beside Dynamo's simulator, in turn, on a quiet machine
#   make lint                ruff and mypy
#   make docs                the documentation as a site, in build/site
#   make matrix              the wheel on each Python with pinned, newest and lowest dependencies; matrix-short: newest ones
#   make release-check       wheels, metadata, licences, image and missing packages, before a release (10 minutes)

# The tests start many processes: each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

VENV   := .venv
PY     := $(VENV)/bin/python
# modules are compiled when they are first imported: most of those that are installed never are
PIP    := $(PY) -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt
# what runs on the compiled build: contract suites, golden predictions, recorded schedules, random scenarios
COMPILED_TESTS := tests/compiled tests/core tests/schedulers tests/memory tests/clients tests/routing tests/network tests/pipelines \
  tests/services tests/plugins/orthrus tests/plugins/telerag tests/hardware tests/scenario/test_golden.py \
  tests/docs/test_extending.py tests/explore/test_certain_miss.py
ARGS   ?=
JSON   ?=

.PHONY: run test test-all nightly conformance test-thorough test-browser test-ray test-studies compiled pure test-compiled fuzz bench duel lint docs matrix matrix-short release-check clean

run: $(VENV)/.stamp
	$(VENV)/bin/hermes run quickstart -o runs/quickstart --overwrite

test: $(VENV)/.stamp-dev
	$(PY) -m pytest -n 2 --dist worksteal $(ARGS)

test-all:
	$(MAKE) test ARGS="--size full $(ARGS)"

nightly: test-thorough test-studies test-browser test-ray test-compiled fuzz matrix release-check

test-thorough: $(VENV)/.stamp-dev
	$(PY) -m pytest -m thorough -n 2 --dist worksteal $(ARGS)

test-browser: $(VENV)/.stamp-dev $(VENV)/.stamp-browser docs
	$(PY) -m pytest -m browser tests/results/charts/test_report_browser.py tests/docs/test_site_browser.py $(ARGS)

# the tests share one cluster: in one process
test-ray: $(VENV)/.stamp-dev $(VENV)/.stamp-ray
	$(PY) -m pytest -m ray tests/explore/test_ray.py $(ARGS)

test-studies: $(VENV)/.stamp-dev
	$(PY) -m pytest -m whole -n 2 --dist worksteal $(ARGS)

COMPILED := build/compiled
compiled: $(COMPILED)/.stamp

# the compiled wheel, unpacked where PYTHONPATH finds it before the checkout
$(COMPILED)/.stamp: hatch_build.py pyproject.toml $(shell find hermes hw_profiles scenarios traces -type f -not -name '*.pyc') | $(VENV)/.stamp
	rm -rf $(COMPILED)
	HERMES_COMPILED=1 $(PIP) --no-deps --target $(COMPILED) .
	@touch $@

pure:
	rm -rf $(COMPILED)

# `python -m pytest` would put this folder's pure package first
test-compiled: $(VENV)/.stamp-dev $(COMPILED)/.stamp
	PYTHONPATH=$(COMPILED) $(VENV)/bin/pytest -n 2 --dist worksteal $(COMPILED_TESTS) $(ARGS)
	$(VENV)/bin/pytest -m compiled tests/compiled $(ARGS)

conformance: $(VENV)/.stamp-dev
	$(VENV)/bin/python scripts/engine_matrix.py $(PYTHONS)

fuzz: $(VENV)/.stamp-dev
	for seed in 1 2 3; do $(PY) scripts/fuzz_inputs.py --cases 3000 --seed $$seed || exit 1; done

bench: $(VENV)/.stamp
	$(PY) -m benchmarks $(if $(JSON),--json $(JSON)) $(ARGS)

duel: $(VENV)/.stamp
	$(PY) benchmarks/duel.py --other $(OTHER) $(if $(JSON),--json $(JSON)) $(ARGS)

lint: $(VENV)/.stamp-dev
	$(PY) -m ruff check .
	$(PY) -m mypy

docs: $(VENV)/.stamp-docs
	$(PY) scripts/build_docs.py

matrix: $(VENV)/.stamp-dev
	$(PY) scripts/matrix.py $(ARGS)

matrix-short: $(VENV)/.stamp-dev
	$(PY) scripts/matrix.py --short $(ARGS)

release-check: $(VENV)/.stamp-release
	$(PY) scripts/release_check.py $(ARGS)

clean:
	rm -rf $(VENV) build dist runs

# A pyenv shim named python3.11 may exist and still not run, so each candidate is tried.
$(VENV)/bin/python:
	@for python in $(PYTHON) python3.11 python3 python3.12 python3.13; do \
	  if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "creating $(VENV) with $$python"; exec $$python -m venv $(VENV); \
	  fi; \
	done; echo "make: needs Python 3.11 or newer (set PYTHON=/path/to/python3)" >&2; exit 1

$(VENV)/.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp
	$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/.stamp-browser: $(VENV)/.stamp
	$(PIP) --editable '.[browser]'
	@touch $@

$(VENV)/.stamp-ray: $(VENV)/.stamp
	$(PIP) --editable '.[ray]'
	@touch $@

$(VENV)/.stamp-docs: $(VENV)/.stamp
	$(PIP) --editable '.[docs]'
	@touch $@

$(VENV)/.stamp-release: $(VENV)/.stamp-dev
	$(PIP) build twine
	@touch $@
