# `make demo` and `make test` do everything, from the virtual environment on. PYTHON picks the interpreter (3.11 or later).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test fuzz check docs format tables clean

demo: $(INSTALLED)
	$(BIN)/afield demo --out runs/demo --overwrite

test: $(INSTALLED)
	$(BIN)/pytest

# Damaged files of every kind; `make test` tries a few of each.
fuzz: $(INSTALLED)
	AFIELD_FUZZ=10000 $(BIN)/pytest tests/faults/test_fuzz.py -n 0 -v

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(MAKE) docs

# The site of docs/, in build/site. A link that leads nowhere, or a page that no menu has, is an error.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # not --quiet, which hides warnings from --strict

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The tables in README and docs, from the records in results.
tables: $(INSTALLED)
	$(BIN)/python docs/write_tables.py

# The marker is written last, so that an install cut short is done again, and a finished one is not.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "afield needs Python 3.11 or later; set PYTHON=python3.11 or later" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build src/*.egg-info
