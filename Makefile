# Set-up, checks and the first sweep. `make quickstart` goes from a fresh clone to a table.

PYTHON ?= python3
WORKERS ?= 3
# A worker has all tests of a module: those that take longest begin first, so that none is left over at the end.
SLOW_FIRST := tests/faults tests/slurm tests/parallel tests/sweeps tests/training

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
UV := UV_PYTHON_DOWNLOADS=never $(BIN)/uv --quiet

.PHONY: quickstart setup lint test bench schema lock clean

quickstart: setup ## The main job: set up, train the small sweep, print its table
	$(BIN)/wm sweep configs/sweeps/quickstart.yaml
	$(BIN)/wm table runs/quickstart

setup: $(STAMP) ## Makes .venv with everything in requirements.lock, and wm in it

# Bytecode is compiled here: where PYTHONDONTWRITEBYTECODE is set, as in many containers, it would be at every start.
# The stamp is older than a lock or pyproject that changed, and goes when .venv goes.
$(STAMP): requirements.lock requirements.bootstrap.lock requirements.schemas.lock pyproject.toml
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(MAKE) --no-print-directory $(VENV)
	@echo "Installing into $(VENV) (the first time takes a minute or two) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.bootstrap.lock
	@$(UV) pip install --python $(BIN)/python --compile-bytecode --require-hashes -r requirements.lock
	@$(UV) pip install --python $(BIN)/python --require-hashes --no-deps -r requirements.schemas.lock
	@$(UV) pip install --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q wmresearch
	@touch $@
	@echo "Ready: $(BIN)/wm --help"

.PHONY: $(VENV)
$(VENV):
	@command -v $(PYTHON) >/dev/null || { \
	  echo "There is no $(PYTHON). Install Python 3.11, 3.12 or 3.13, or say which: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) --version), and 3.11 or newer is needed: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)

lint: setup ## Style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint ## Style, types and tests
	$(BIN)/pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder $(SLOW_FIRST) tests

bench: setup ## Speed and memory on this machine (about 40 minutes), into benchmarks/results/
	$(BIN)/python benchmarks/train_step.py --out benchmarks/results/train_step.md
	$(BIN)/python benchmarks/train_step.py --shapes 768 --kinds all --out benchmarks/results/kinds.md
	for page in startup overhead saving memory growth compaction orders algebra reports sweeps; do \
	  $(BIN)/python benchmarks/$$page.py --out benchmarks/results/$$page.md || exit 1; done

schema: setup ## The JSON schemas that editors read
	$(BIN)/python -m wmresearch.config.schema configs/schema

# No addresses and no paths: what a lock says must hold on every machine.
COMPILE := pip compile --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --no-emit-find-links

# Of the package sweeps, which would have an old numpy, tests read one file: W&B's schema of a sweep.
lock: setup ## Newest versions of everything; commit all three files
	$(UV) $(COMPILE) --extra dev pyproject.toml -o requirements.lock
	echo uv | $(UV) $(COMPILE) --no-annotate -c requirements.lock - -o requirements.bootstrap.lock
	echo sweeps | $(UV) $(COMPILE) --no-annotate --no-deps - -o requirements.schemas.lock

clean: ## What set-up and checks made; runs stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
