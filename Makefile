# Every target first makes the environment, where it is missing or older than the lock.
#   make train ARGS="model=small"      settings for train.py
#   make test  ARGS="tests/model -x"   arguments for pytest
#   make env   PYTHON=python3.11       the Python to make .venv with

PYTHON ?= python3
VENV_PYTHON := .venv/bin/python
ARGS ?=

# A process a core, each on one thread: the tests' models are too small to share.
PYTEST := OMP_NUM_THREADS=1 $(VENV_PYTHON) -m pytest --numprocesses=auto --maxprocesses=4

.PHONY: env train test test-all lint bench clean

env: .venv/installed

.venv/installed: requirements.lock
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("minigpt needs Python 3.11: make env PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(VENV_PYTHON) -m pip install --disable-pip-version-check --requirement requirements.lock
	@touch $@

train: env
	$(VENV_PYTHON) train.py $(ARGS)

test: env
	$(PYTEST) $(ARGS)

test-all: env
	$(PYTEST) -m "slow or not slow" $(ARGS)

lint: env
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m pyright

# Minutes each; every result is a dated file in bench/results/.
bench: env
	$(VENV_PYTHON) bench/training.py
	$(VENV_PYTHON) bench/fast.py
	$(VENV_PYTHON) bench/shakespeare_char.py
	$(VENV_PYTHON) bench/shakespeare_small.py
	$(VENV_PYTHON) bench/growth.py
	$(VENV_PYTHON) bench/document_mask.py
	$(VENV_PYTHON) bench/padding.py
	$(VENV_PYTHON) bench/startup.py
	$(VENV_PYTHON) bench/step_memory.py
	$(VENV_PYTHON) bench/stories.py
	$(VENV_PYTHON) bench/stories.py rounds=1 small=1
	$(VENV_PYTHON) bench/tang300.py
	$(VENV_PYTHON) bench/preparation.py
	$(VENV_PYTHON) bench/loop.py
	$(VENV_PYTHON) bench/soak.py
	$(VENV_PYTHON) bench/saving.py
	$(VENV_PYTHON) bench/decode.py
	$(VENV_PYTHON) bench/exchange.py
	OMP_NUM_THREADS=1 $(VENV_PYTHON) bench/memory.py

# What can be made again; never runs/, and not the environment (rm -r .venv).
clean:
	@echo "prepared data is in $(CURDIR)/data/cache; what data.cache_dir or ~/.cache/minigpt hold is left"
	rm -rf data/cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
