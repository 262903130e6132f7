# Each target sets up .venv first: make train, make test.

PYTHON ?= python3
VENV ?= .venv
ECOSYSTEM := .ecosystem
TRACKERS := .trackers
XLA := .xla
RELEASES := .releases
WORKERS ?= 2
FUZZ_SECONDS ?= 3600
INSTALL := $(VENV)/bin/python -m pip install --constraint constraints.txt
PYTEST := $(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal
PARTS := test-all-unit test-all-contracts test-all-engines test-all-end-to-end
ENVIRONMENTS := $(notdir $(basename $(wildcard tests/ecosystem/environments/*.txt)))
TRACKER_ENVIRONMENTS := $(notdir $(basename $(wildcard tests/trackers/environments/*.txt)))

.PHONY: train test test-all $(PARTS) test-all-fuzz test-ecosystem test-all-ecosystem test-trackers \
	test-all-trackers test-xla test-all-xla test-transformers test-gpu coverage lint types contracts docs bench kills fuzz
.NOTPARALLEL:

train: $(VENV)/with-examples
	$(VENV)/bin/hexloop train docs/examples/digits.yaml --report

test: $(VENV)/with-test
	$(PYTEST) -m "not matrix" --ignore tests/ecosystem --ignore tests/trackers --ignore tests/xla

test-all: lint types contracts docs coverage $(PARTS) test-all-fuzz test-all-ecosystem test-all-trackers test-all-xla

# Tests in a browser are skipped where there is none, except here.
$(PARTS): export HEXLOOP_BROWSER = required
$(PARTS): test-all-%: $(VENV)/with-test
	$(PYTEST) --durations 60 tests/$(subst -,_,$*)

test-all-fuzz: $(VENV)/with-test
	$(PYTEST) tests/fuzz
	$(VENV)/bin/python -m tests.fuzz --seconds 75 --jobs $(WORKERS) --findings runs/fuzz

# Libraries and scripts written for transformers, run on hexloop and compared with transformers: all, or a tenth of them.
test-ecosystem: $(VENV)/with-test $(ENVIRONMENTS:%=$(ECOSYSTEM)/%/installed)
	$(PYTEST) tests/ecosystem

test-all-ecosystem: $(VENV)/with-test $(ECOSYSTEM)/libraries/installed
	$(PYTEST) tests/ecosystem -m "not matrix"

# The adapters of trackers on the real libraries, read back from their stores: all, or a tenth.
test-trackers: $(VENV)/with-test $(TRACKER_ENVIRONMENTS:%=$(TRACKERS)/%/installed)
	$(PYTEST) tests/trackers

test-all-trackers: $(VENV)/with-test $(TRACKERS)/trackers/installed
	$(PYTEST) tests/trackers -m "not matrix"

# The adapters of XLA on torch_xla, whose last release goes with torch 2.9: all, or a short case.
test-xla: $(XLA)/installed
	$(XLA)/bin/python -m pytest -n $(WORKERS) --dist worksteal tests/xla

test-all-xla: $(XLA)/installed
	$(XLA)/bin/python -m pytest tests/xla -m "not matrix"

# Tests that concern transformers, with its oldest and its newest release that are supported.
test-transformers: $(patsubst tests/releases/%.txt,test-transformers-%,$(wildcard tests/releases/*.txt))

test-transformers-%: $(RELEASES)/%/installed
	$(<D)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m "not matrix" \
		$(shell grep -rl transformers --include="test_*.py" tests/unit tests/contracts tests/end_to_end)

# Tests with another release of torch and the packages of the tests, as in `make test-torch-2.14.1`: on the CPU, and
# without the packages of CUDA.
test-torch-%: $(RELEASES)/torch-%/installed
	$(<D)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m "not matrix" tests/unit tests/contracts

# Tests that need a GPU, which other targets skip.
test-gpu: export HEXLOOP_GPU = required
test-gpu: $(VENV)/with-test
	$(PYTEST) tests/gpu

# With the same random examples each time.
coverage: $(VENV)/with-test
	$(PYTEST) tests/unit tests/contracts -m "not matrix" --hypothesis-seed 0 --cov --cov-report=
	$(VENV)/bin/coverage report --include="*/domain/*,*/ports/*" --fail-under=100

lint: $(VENV)/with-test
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

types: $(VENV)/with-test
	$(VENV)/bin/mypy

contracts: $(VENV)/with-test
	$(VENV)/bin/lint-imports --no-logo

docs: $(VENV)/with-docs
	$(VENV)/bin/zensical build --strict --clean

bench: export OMP_NUM_THREADS = 1
bench: $(VENV)/with-bench
	$(VENV)/bin/python tests/bench/run.py

# Kill training runs at 200 random instants, ranks of runs under torchrun at 50, runs that publish at 100, and searches at
# 30, and compare the results; about 45 minutes on a disk.
kills: export OMP_NUM_THREADS = 1
kills: $(VENV)/with-test
	$(VENV)/bin/python -m tests.engines.kills --kills 200 --folder runs
	$(VENV)/bin/python -m tests.engines.kills --launcher torchrun --kills 50 --folder runs
	$(VENV)/bin/python -m tests.end_to_end.publishing.kills --kills 100
	$(VENV)/bin/python -m tests.engines.search_kills --kills 30

# Fuzz everything that hexloop reads, guided by coverage, for FUZZ_SECONDS altogether; findings are in runs/fuzz.
fuzz: $(VENV)/with-fuzz
	$(VENV)/bin/python -m tests.fuzz --seconds $(FUZZ_SECONDS) --jobs $(WORKERS) --findings runs/fuzz

# The build back ends (hatchling, and that of deepspeed, which is published as source) are installed first and not isolated,
# so that the constraints apply to them too.
$(VENV)/with-%: pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) hatchling editables setuptools
	$(INSTALL) --no-build-isolation --editable ".[$*]"
	touch $@

# The environment of `make test` with another release of transformers.
$(RELEASES)/%/installed: tests/releases/%.txt pyproject.toml constraints.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	sed "s/==.*/==/" $< | grep -vFf - constraints.txt | cat $< - > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --constraint $(@D)/constraints.txt hatchling editables setuptools
	$(@D)/bin/python -m pip install --constraint $(@D)/constraints.txt --no-build-isolation --editable ".[test]"
	touch $@

$(RELEASES)/torch-%/installed: $(VENV)/with-test tests/xla/stand_ins.py
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(VENV)/bin/python -m pip freeze --exclude-editable --all | sed '/^torch==/d' > $(@D)/packages.txt
	$(@D)/bin/python -m pip install --no-deps --requirement $(@D)/packages.txt torch==$* pyelftools==0.32
	$(@D)/bin/python tests/xla/stand_ins.py $(@D)/lib/python*/site-packages
	$(@D)/bin/python -m pip install --no-deps --no-build-isolation --editable .
	touch $@

# An environment of the tests in tests/ecosystem or tests/trackers: torch, the packages of its list, and hexloop as it is
# here.
$(ECOSYSTEM)/%/installed: tests/ecosystem/environments/%.txt pyproject.toml
	$(environment)
$(TRACKERS)/%/installed: tests/trackers/environments/%.txt pyproject.toml
	$(environment)

# LLaMA-Factory requires torchvision, which it does not import, and torchaudio, which it imports and does not call for
# texts. Both are published for CUDA alone: the one is left out, and the other runs without its compiled part.
$(ECOSYSTEM)/llama_factory/installed: DEPENDENCIES := --no-deps

define environment
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install $(shell grep ^torch== $<) $(shell grep -E '^(hatchling|editables)==' constraints.txt)
	$(@D)/bin/python -m pip install $(DEPENDENCIES) --requirement $<
	find $(@D)/lib -path '*/torchaudio/lib/*.so' -delete
	$(@D)/bin/python -m pip install --constraint $< --no-build-isolation --editable .
	touch $@
endef

# The packages are installed without their requirements, which would bring CUDA; torch gets stand-ins for its libraries.
$(XLA)/installed: tests/xla/environment.txt tests/xla/stand_ins.py pyproject.toml
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --no-deps --requirement $<
	$(@D)/bin/python tests/xla/stand_ins.py $(@D)/lib/python*/site-packages
	$(@D)/bin/python -m pip install --no-deps --no-build-isolation --editable .
	touch $@
