# Every target below makes its own virtual environment in .venv when there is none and installs what
# it needs from the package index; nothing else has to be on the machine but Python >= 3.11 and make.
#
#   make demo [ARGS=...]    the main job, end to end, on a throw-away local cluster
#   make test [ARGS=...]    format, lint, types, then the quick tests, without real processes, on all cores (up to 4 workers)
#   make test-all [ARGS=]   the same with long tests, real processes, Spark and ZooKeeper: everything but the soaks. What CI runs
#   make check              format, lint, types, the site, and the tests of the house rules: two minutes, before each commit
#   make docs               the documentation as a site, in build/site; a broken link is an error
#   make release            the wheels, the source distribution and their checksums, in dist/
#   make faces              the faces.py of blocking and aio anew, after a change of an asynchronous class
#   make model [ARGS=...]   the protocol cores through every order of events: the wide set, some hours
#   make tla [ARGS=...]     recorded runs of the protocol cores against the rules in TLA+; half an hour. Needs a Java
#   make mutants [ARGS=...] known bugs put back, one by one: tests must notice each. Under an hour
#   make fuzz [ARGS=...]    coverage-guided fuzzing of every decoder, a minute each
#   make crash-soak         a bookie started from three million states that crashes can leave; some hours
#   make release-check      half a day: the simulator, real processes, crash states, fuzzing, mutants, attacks;
#                           writes docs/RELEASE_CHECK.md and .json; ARGS=--resume goes on after an interruption
#   make bench [ARGS=...]   the write benchmark
#   make clean              removes all that these targets made (never your data)
#
# ARGS goes to the command that runs last: `make demo ARGS='--records 1000'`,
# `make test ARGS='tests/unit -x'`, `make test-all ARGS='-n 0 -m soak --hypothesis-profile=soak'` (-n 0: one
# test at a time, and what it prints is shown).
# PYTHON=/path/to/python chooses the interpreter that the virtual environment is made from.
#
# Plain POSIX sh and GNU make 3.81 or later. The last command of demo, test and bench is exec'ed, so
# that a signal sent to make reaches the program itself and not a shell that would outlive it.

.POSIX:
.SUFFIXES:
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: crash-soak docs help demo release release-check test test-all check lint faces model tla mutants fuzz bench clean
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=
ARGS ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet
NO_WHEEL := { echo 'Installing failed. If a package had to be compiled, take a Python that it has a wheel for:' \
	'make clean, then make PYTHON=/path/to/python3.12' >&2; exit 1; }
# Installing compiles this, if there is a C compiler. So ledgerlog is installed again after a change of it.
COMPILED := hatch_build.py ledgerlog/wire/_pieces.c
# An environment that another tool made, or whose making was interrupted, may be without pip.
HAVE_PIP := $(BIN)/python -c 'import pip' 2>/dev/null || $(BIN)/python -m ensurepip >/dev/null

# In this order, because on 3.11 and 3.12 both stores of the index can be had, and tests cover both.
CANDIDATES := $(if $(PYTHON),'$(PYTHON)',python3.12 python3.11 python3.13 python3)

# What a candidate must be able to do. Running it is the only proof: a version manager's shim exists
# on the PATH and fails, and a distribution may ship Python without ensurepip or sqlite3.
USABLE := import sys, ensurepip, sqlite3, ssl, venv; sys.exit(sys.version_info < (3, 11))

# What holds code, pages and tests to their rules. These fail for a change that looks finished: a public name without
# its page, a decoder without a fuzz target, a mutant of code that is gone.
RULES := $(addprefix tests/unit/test_,$(addsuffix .py,class_names codecs_agree credentials deploy_files docstrings \
	exceptions_have_reasons glossary layering log_examples metrics_page newer_formats nursery_rules operations_page \
	protocol_page public_surface tests_page wire_example)) \
	tests/blocking/test_faces.py tests/fuzz/test_fuzz_targets.py tests/mutants/test_changes.py \
	tests/mutants/test_some_mutants.py::test_a_mutant_can_be_applied_and_changes_the_code

# Files go to the workers in their order, so that the long ones, which wait for processes, do not come last.
ON_ALL_CORES := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# The stamps live inside the environment, so that removing it removes them. Two of them, because the
# demo must not wait for the test tools.
RUN_STAMP := $(VENV)/.installed-run
TEST_STAMP := $(VENV)/.installed-test

help:
	@sed -n '4,18s/^#  //p' Makefile

demo: $(RUN_STAMP)
	@exec $(BIN)/ledgerlog demo $(ARGS)

bench: $(RUN_STAMP)
	@exec $(BIN)/ledgerlog bench write $(ARGS)

test: lint
	@exec $(BIN)/pytest $(ON_ALL_CORES) -m 'not soak and not processes and not long' $(ARGS)

test-all: lint
	@exec $(BIN)/pytest $(ON_ALL_CORES) -m 'not soak' $(ARGS)

model: $(TEST_STAMP)
	@exec $(BIN)/python -m tests.model $(ARGS)

tla: $(TEST_STAMP)
	@exec $(BIN)/python -m tests.tla $(ARGS)

mutants: $(TEST_STAMP)
	@exec $(BIN)/python -m tests.mutants $(ARGS)

fuzz: $(TEST_STAMP)
	@$(PIP) install -e '.[fuzz]'
	@exec $(BIN)/python -m tests.fuzz $(ARGS)

crash-soak: $(TEST_STAMP)
	@exec $(BIN)/pytest -q -s -m soak tests/storage $(ARGS)

check: lint
	$(BIN)/mkdocs --quiet build
	@exec $(BIN)/pytest -q $(ON_ALL_CORES) $(RULES) $(ARGS)

docs: $(TEST_STAMP)
	@exec $(BIN)/mkdocs --quiet build $(ARGS)

release: $(TEST_STAMP)
	@$(PIP) install -e '.[release]'
	@exec $(BIN)/python -m tools.release

release-check: $(TEST_STAMP)
	@$(PIP) install -e '.[fuzz]'
	@exec $(BIN)/python -m tools.release_check $(ARGS)

faces: $(TEST_STAMP)
	@exec $(BIN)/python -m tools.faces

lint: $(TEST_STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

$(RUN_STAMP): pyproject.toml $(COMPILED) $(BIN)/python
	@echo 'Installing ledgerlog into $(VENV)'
	@$(HAVE_PIP)
	@$(PIP) install -e . || $(NO_WHEEL)
	@touch $@

$(TEST_STAMP): pyproject.toml $(COMPILED) $(BIN)/python
	@echo 'Installing ledgerlog and its test tools into $(VENV)'
	@$(HAVE_PIP)
	@$(PIP) install -e '.[test]' || $(NO_WHEEL)
	@touch $(RUN_STAMP) $@

# Made only where it is missing or its interpreter is gone: an environment that is there is used as it
# is. bin/python is a link and make looks at the age of the interpreter behind it, so an interpreter
# that was replaced makes the stamps stale and the packages are installed again, as they should be.
$(BIN)/python:
	@python=''; \
	for candidate in $(CANDIDATES); do \
		if "$$candidate" -c '$(USABLE)' >/dev/null 2>&1; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "No usable Python >= 3.11 (with venv, ensurepip, sqlite3 and ssl) in: $(CANDIDATES)." >&2; \
		echo 'Name one with: make PYTHON=/path/to/python (Debian and Ubuntu also need the package python3-venv).' >&2; \
		exit 1; \
	fi; \
	echo "Making $(VENV) with $$("$$python" -V)"; \
	"$$python" -m venv --clear $(VENV)

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis ledgerlog/wire/_pieces.abi3.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
