# demo, test, check, bench: what a person types. Each sets up .venv by itself when it is missing or stale.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test check format soak bench clean

demo: $(STAMP)
	$(BIN)/fedal compare --methods local,fedmd,fedal --dataset digits --seeds 3 --out runs/demo

test: $(STAMP)
	$(BIN)/python -m pytest -m "not soak"

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not soak"

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

soak: $(STAMP)
	$(BIN)/python -m pytest -m soak -s

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)
