# `make demo` and `make test` make their own environments; nothing needs to be installed but Python 3.11 or later.
PYTHON ?= python3
VENV := .venv
DEMO_VENV := .venv-demo
BIN := $(VENV)/bin
# A file of tests runs in one process, which trains its models once.
PARALLEL := --numprocesses auto --dist loadfile --no-loadscope-reorder
# Tests start many processes; without bytecode each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-slow test-serve test-gpu mutants gpu check format stubs dist docs clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/:/' | column -t -s:

$(DEMO_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(DEMO_VENV)
	$(DEMO_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

demo: $(DEMO_VENV)/.installed  ## a real model attacked, hardened, attacked again and judged
	$(DEMO_VENV)/bin/safexplain demo

test: $(VENV)/.installed  ## the test suite, without the slow and the GPU tests
	$(BIN)/python -m pytest $(PARALLEL)

test-all: $(VENV)/.installed  ## all tests but those that need a GPU
	$(BIN)/python -m pytest $(PARALLEL) -m "not gpu"

test-slow: $(VENV)/.installed  ## the slow tests
	$(BIN)/python -m pytest -m "slow and not gpu"

# One environment for each serving platform that conflicts with the others: what it needs itself, and the rest from $(VENV).
.venv-%/.installed: $(VENV)/.installed
	$(PYTHON) -m venv $(@D)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'), '$(CURDIR)', sep='\n')" \
		> $$($(@D)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/zz_base.pth
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check "safexplain[$*]"
	$(@D)/bin/python -W ignore -c "import $*"
	touch $@

test-serve: .venv-kserve/.installed .venv-mlserver/.installed .venv-bentoml/.installed  ## the tests of serving platforms, each in an environment that has it
	.venv-kserve/bin/python -m pytest tests/serve/platforms/test_kserve.py
	.venv-mlserver/bin/python -m pytest tests/serve/platforms/test_mlserver.py
	.venv-bentoml/bin/python -m pytest tests/serve/platforms/test_bentoml.py

test-gpu: $(VENV)/.installed  ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

mutants: $(VENV)/.installed  ## 600 small changes of the code, each of which `make test` must notice (hours)
	$(BIN)/python audit/mutants.py run --jobs 2 --out mutants.json

gpu:  ## everything that only a GPU shows, resumable; installs nothing (python -m audit.gpu --list)
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m audit.gpu

check: $(VENV)/.installed  ## lint, format, types, dependency direction, docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet tests/test_architecture.py
	$(BIN)/mkdocs build --strict --quiet

format: $(VENV)/.installed  ## format and sort imports
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

stubs: $(VENV)/.installed  ## write the stubs that type checkers and editors read, which are not in git
	PYTHONPATH=. $(BIN)/python docs/make_stubs.py

dist: stubs  ## the wheel and the source archive of a release, with the stubs
	$(BIN)/python -m hatchling build

docs: $(VENV)/.installed  ## serve the documentation
	$(BIN)/mkdocs serve

clean:  ## remove environments and caches
	rm -f safexplain/*.pyi
	rm -rf $(VENV) $(DEMO_VENV) .venv-kserve .venv-mlserver .venv-bentoml site .pytest_cache .mypy_cache .ruff_cache .hypothesis
