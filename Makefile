# Every target sets up what it needs in .venv. One thread per process: small tensors gain nothing from more,
# and two busy processes with two threads each lose a great deal.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEVICE ?= cpu
SEEDS ?= 0 1 2
WORKERS ?= 2
# For reproduce: IMAGES=mnist.npz for MNIST, DATA=folder for the clinical tables; TABLE="cvae lvae" for some of them.
SOURCES = $(if $(IMAGES),--images $(IMAGES)) $(if $(DATA),--data $(DATA))
export OMP_NUM_THREADS ?= 1
# Python keeps compiled modules: tests start many processes, each of which would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types tests bench docs site reproduce reproduce-quick clean

demo: $(VENV)/.installed
	$(BIN)/lacova demo --out demo

test: lint types tests

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

tests: $(VENV)/.installed-docs
	$(BIN)/python -m pytest -n 2 --dist loadfile  # a file's models are fitted once

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/steps.py --device $(DEVICE) --out bench.json
	$(BIN)/python benchmarks/fits.py
	$(BIN)/python benchmarks/expectations.py

docs: site
	$(BIN)/python -m pytest tests/test_docs.py

site: $(VENV)/.installed-docs
	$(BIN)/python -m tools.notebooks
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reproduce: $(VENV)/.installed
	$(BIN)/python -m reproduction run $(TABLE) --seeds $(SEEDS) --device $(DEVICE) --workers $(WORKERS) $(SOURCES)
	$(BIN)/python -m reproduction report

reproduce-quick: $(VENV)/.installed
	$(BIN)/python -m reproduction run $(TABLE) --quick --device $(DEVICE) --workers $(WORKERS) $(SOURCES)
	$(BIN)/python -m reproduction report --results runs/quick.jsonl --out runs/quick.md

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) demo site
