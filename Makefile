# Entry points for people and for CI: each target sets up what it needs inside the checkout, then does one thing.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
SECONDS ?= 60
export PYTHON VENV JOBS PYTEST_ARGS
DEMO_DIR ?= build/demo

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
# Without ninja, CMake compiles one file at a time unless told otherwise.
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)
PYTAG := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
ifeq ($(PYTAG),)
$(error "$(PYTHON)" does not start; name a Python 3.11 or newer: make PYTHON=/path/to/python3 ...)
endif

# A stamp is named after the Python it stands for, so that another PYTHON starts over with a fresh environment.
CREATED := $(VENV)/.created-$(PYTAG)
INSTALLED := $(VENV)/.installed-$(PYTAG)
NOX := $(VENV)/.nox-$(PYTAG)
DOCS := $(VENV)/.docs-$(PYTAG)
NEWER_PLUGIN := build/newer_plugin/.installed
# Folders are listed too: their time changes when a file is added or removed.
SOURCES := CMakeLists.txt pyproject.toml $(shell find cpp schema python -name __pycache__ -prune -o -print)
CHECKED := python tests bench demo schema docs/conf.py cpp/example noxfile.py
SPELT := $(CHECKED) cpp docs *.md Makefile pyproject.toml
WORKFLOWS := $(wildcard .github/workflows/*.yml)
CPP := $(shell find cpp tests/cpp bench -name third_party -prune -o \( -name '*.h' -o -name '*.cpp' \) -print)
# The libraries of cpp/, with assertions: compiled once, for the modules of each Python and for the tests of C++.
PREBUILT := $(CURDIR)/build/cpp/installed
LINKED := -C cmake.define.JAXEXP_PREBUILT=$(PREBUILT) -C cmake.define.CMAKE_CXX_FLAGS=-D_GLIBCXX_ASSERTIONS
# What is measured is what people get: compiled by itself, without assertions.
MEASURED := $(CURDIR)/build/measured-$(PYTAG)
# Installed beside the package and not in a folder that pip throws away: so only what has changed is compiled again.
# pip knows the groups of pyproject.toml since 25.1.
REQUIRED := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], "cmake", "ninja", "pip>=25.1", sep="\n")

.DEFAULT_GOAL := help
.PHONY: help setup demo check test night docs runtime fuzz sanitize bench accelerator counts measured matrix wheel interop shadow lint format clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

demo: $(INSTALLED)  ## train, export, save; load in a new process and compare with the live model
	@mkdir -p $(DEMO_DIR)
	@$(BIN)/python demo/train.py $(DEMO_DIR)
	@$(BIN)/python demo/check.py $(DEMO_DIR)

# The pytest script, not `python -m pytest`: the checkout stays off sys.path and the installed package is what is tested.
check: $(INSTALLED)  ## half a minute of tests, mostly of what has changed (ROOMS="kernel/codec cli" to choose)
	@$(BIN)/python tests/tools/check.py $(ROOMS) -- -n $(JOBS) $(PYTEST_ARGS)

test:  ## what gates a commit: the tests and lint; builds and installs first (PYTEST_ARGS=... is passed on)
	@$(PYTHON) tests/tools/steps.py test

night:  ## all cases, all pairs of Python and JAX, other processors, sanitizers, fuzzing, mutants (PART=1/4 for a part)
	@$(PYTHON) tests/tools/steps.py night $(PART)

setup: $(INSTALLED)  ## build and install jaxexp into the environment, with all that the tests need

docs: $(INSTALLED) $(DOCS)  ## build the documentation into build/docs, and check its links
	@$(BIN)/python tests/tools/site.py

runtime: $(INSTALLED) $(NEWER_PLUGIN)  ## build the C++ libraries and programs, and install them into build/cpp/installed
	@$(BIN)/python tests/tools/build_runtime.py

# With libFuzzer where there is a Clang, else with a driver of our own; what crashes stays in build/fuzz.
fuzz: $(INSTALLED)  ## fuzz the codec with hostile bytes, for SECONDS=n in total (TARGETS="verify decoder" for some targets)
	@$(BIN)/python tests/tools/fuzz.py $(SECONDS) $(TARGETS) --keep build/fuzz

sanitize: $(INSTALLED)  ## the codec's tests under ASan, UBSan, LeakSanitizer and ThreadSanitizer (STEPS="fuzz asan" for some, STEPS=--all for all cases)
	@$(BIN)/python tests/tools/sanitize.py $(STEPS)

# A partial run is not for docs/benchmarks.md.
bench: $(MEASURED)/.installed  ## compare with jax.export, write docs/benchmarks.md (QUICK=1: a minute, and no docs; BENCH_ARGS=...: no docs)
	@PYTHONPATH=$(MEASURED) $(BIN)/python -m bench $(if $(QUICK),--quick,$(if $(BENCH_ARGS),,--render)) $(BENCH_ARGS)

accelerator: $(MEASURED)/.installed  ## run tests/gpu and five rows of the benchmarks on an accelerator (PLATFORM=cuda; BENCH_ARGS=--quick)
	@JAXEXP_TEST_PLATFORMS=$(or $(PLATFORM),$(error name a platform: make accelerator PLATFORM=cuda)),cpu $(BIN)/pytest -q tests/gpu
	@PYTHONPATH=$(MEASURED) $(BIN)/python -m bench accelerator $(PLATFORM) $(BENCH_ARGS)

# The night compares with them.
counts: $(MEASURED)/.installed  ## count the instructions of core operations with valgrind, and keep them in bench/counts.json
	@PYTHONPATH=$(MEASURED) $(BIN)/python -m bench counts --update

matrix: $(NOX) $(INSTALLED)  ## the tests that depend on JAX, on every supported Python and JAX (NOX_ARGS=... is passed on)
	@JAXEXP_BUILD="$(LINKED)" $(BIN)/nox $(NOX_ARGS)

wheel: $(NOX)  ## build the wheel from the source distribution for each Python here, and use it without a compiler
	@$(BIN)/nox --session wheel $(NOX_ARGS)

# Installs old wheels of JAX, a few hundred megabytes each, under .interop.
interop:  ## check that old releases of JAX read what jaxexp writes for them (RELEASES="0.4.30 0.6.2" for some), and that IREE runs it
	@$(PYTHON) tests/interop/run.py $(RELEASES)
	@$(PYTHON) tests/interop/second_engine.py

# JAX's wheels and sdists have no tests: JAX_SOURCE is a checkout of JAX, at the installed release or near it.
shadow: $(INSTALLED)  ## JAX's own tests with jaxexp in jax.export's place (JAX_SOURCE=checkout; SHADOW_ARGS=... is passed on)
	@$(PIP) install absl-py hypothesis
	@$(BIN)/python tests/shadow/run.py $(or $(JAX_SOURCE),$(error name a checkout of JAX: make shadow JAX_SOURCE=/path/to/jax)) $(SHADOW_ARGS)

lint: $(INSTALLED)  ## ruff, clang-format, codespell, mypy and pyright; check-jsonschema and zizmor for the workflows
	@$(BIN)/python tests/tools/public_names.py --check
	@$(BIN)/ruff check --quiet $(CHECKED)
	@$(BIN)/ruff format --check --quiet $(CHECKED)
	@$(BIN)/clang-format --dry-run --Werror $(CPP)
	@$(BIN)/codespell $(SPELT)
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows $(WORKFLOWS)
	@$(BIN)/zizmor --offline --quiet $(WORKFLOWS)
	@$(BIN)/mypy python/jaxexp
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@echo "lint: clean"

format: $(INSTALLED)  ## format the files with ruff and clang-format, and write the files that are made from tables
	@$(BIN)/python tests/tools/public_names.py
	@$(BIN)/ruff check --quiet --fix $(CHECKED)
	@$(BIN)/ruff format $(CHECKED)
	@$(BIN)/clang-format -i $(CPP)

clean:  ## remove everything that these targets made, environments included
	rm -rf $(VENV) .nox .interop build dist bench/results .pytest_cache .mypy_cache .ruff_cache python/jaxexp/_native* python/jaxexp/_runtime*
	find python tests bench demo -name __pycache__ -prune -exec rm -rf {} +

# A second plugin for the tests of the C++ runtime, for Linux on x86-64. It asks for an old JAX, which it does not need.
$(NEWER_PLUGIN): $(CREATED)
	@mkdir -p $(@D)
	@$(PIP) install --no-deps --upgrade --target $(@D) lammps-jax-pjrt-cpu==0.11.2 || echo "no second plugin: some tests are skipped"
	@touch $@

$(CREATED):
	@echo "setting up $(VENV) with Python $(PYTAG)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(INSTALLED): $(CREATED) $(SOURCES)
	@echo "building and installing jaxexp into $(VENV) (the first time takes a few minutes)"
	@mkdir -p build
	@$(BIN)/python -c '$(REQUIRED)' > build/requirements.txt
	@$(PIP) install -r build/requirements.txt
	@$(BIN)/python tests/tools/build_runtime.py
	@$(PIP) install --no-build-isolation -C build-dir=build/install-$(PYTAG) $(LINKED) --group dev '.[all,cpu]'
# Beside the sources: types for type checkers and editors, the modules for PYTHONPATH=python. git ignores them.
	@cp $(VENV)/lib/python$(PYTAG)/site-packages/jaxexp/_native* $(VENV)/lib/python$(PYTAG)/site-packages/jaxexp/_runtime* python/jaxexp/
	@touch $@

measured: $(MEASURED)/.installed  ## build jaxexp as people get it, without assertions: `make bench` and `make counts` measure this

$(MEASURED)/.installed: $(INSTALLED)
	@echo "building jaxexp as it is measured (a few minutes)"
	@$(PIP) install --no-build-isolation --no-deps --upgrade --target $(MEASURED) -C build-dir=build/measured-cmake-$(PYTAG) .
	@touch $@

$(NOX): $(CREATED)
	@echo "installing nox into $(VENV)"
	@$(PIP) install 'nox>=2025.2'
	@touch $@

$(DOCS): $(INSTALLED) pyproject.toml
	@echo "installing Sphinx into $(VENV)"
	@$(PIP) install --group docs
	@touch $@
