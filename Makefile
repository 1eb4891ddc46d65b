PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.PHONY: help setup demo serve test test-page test-long robustness powerloss soak check bench clean
help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

setup: $(READY)  ## create .venv with the tested versions (the other targets do it themselves)
$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once; some minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; try: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,dev]'
	@touch $(READY)

demo: $(READY)  ## crash, resume, and prove the same bits
	@$(VENV)/bin/python flows/resume_demo.py

serve: $(READY)  ## Prefect's server, the deployments and a worker on this machine, until Ctrl-C
	@$(VENV)/bin/python flows/serve.py

test: $(READY)  ## every test, a process a core
	@$(VENV)/bin/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder

test-page: $(READY)  ## what Prefect's page shows of a run, in headless Chromium
	@command -v chromium >/dev/null || { echo "chromium is needed; on Debian: apt-get install chromium"; exit 1; }
	@$(VENV)/bin/python -m pytest tests/page

test-long: $(READY)  ## tests of a minute and more, and those that need root
	@$(VENV)/bin/python -m pytest tests/long

robustness: $(READY)  ## every fault at every operation of the store, some minutes; a JSON line for each kind
	@$(VENV)/bin/python -m tests.robustness

powerloss: $(READY)  ## five file systems on a disk that loses power, 20 minutes; root, Linux
	@$(VENV)/bin/python -m tests.powerloss

soak: $(READY)  ## a run killed 200 times ends as one that nobody disturbed, some minutes
	@$(VENV)/bin/python -m tests.soak

check: $(READY)  ## ruff and mypy
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy

bench: $(READY)  ## the ratios
	@for script in $(filter-out %/figures.py %/states.py,$(wildcard benchmarks/*.py)); do $(VENV)/bin/python $$script || exit 1; done

clean:  ## remove everything the targets made
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache runs/demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
