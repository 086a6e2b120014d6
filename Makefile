# The everyday commands. `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup setup-vllm pipeline learn learn-ablations up stop status test test-slow recipe base bench lint format clean

PYTEST := OMP_NUM_THREADS=1 .venv/bin/python -m pytest

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## ?/  make \1\t/' | expand -t 20

setup: .venv/.stamp .venv-vllm/.done  ## environments: .venv for the pipeline, .venv-vllm for serving

.venv/.stamp: pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" bash scripts/setup.sh

# A machine where vLLM cannot be installed still gets a working pipeline: deploy then serves in process and says so.
# Either way it is tried once; `make setup-vllm` tries again.
.venv-vllm/.done: scripts/setup_vllm.sh | .venv/.stamp
	@if bash scripts/setup_vllm.sh; then rm -f .venv-vllm/.failed; else \
		mkdir -p .venv-vllm && touch .venv-vllm/.failed; \
		echo "setup: vLLM could not be installed (see above): serving will run in process — make setup-vllm tries again" >&2; fi
	@mkdir -p .venv-vllm && touch .venv-vllm/.done

setup-vllm:  ## try the vLLM environment again
	@rm -f .venv-vllm/.done && $(MAKE) --no-print-directory .venv-vllm/.done

pipeline: setup  ## everything: synthesize, validate, sft, grpo, evaluate, promote, deploy
	@.venv/bin/orchestra run

learn: .venv/.stamp  ## the claims table anew, over three training seeds: docs/claims.md and the README
	@.venv/bin/orchestra learn --split test

learn-ablations: .venv/.stamp  ## the same, with the trainings that leave a part of the reward out
	@.venv/bin/orchestra learn --split test --ablations

up: .venv/.stamp  ## Prefect and MLflow servers with their UIs, on 127.0.0.1
	@.venv/bin/orchestra up

stop:  ## end every server that was started here
	@if [ -x .venv/bin/orchestra ]; then .venv/bin/orchestra stop; fi

status: .venv/.stamp  ## what is current, what is stale, what serves
	@.venv/bin/orchestra status

# Two at a time; a file stays with one process, which shares what its tests set up once.
test: .venv/.stamp  ## the tests
	$(PYTEST) -n 2 --dist loadfile -m "not slow and not gpu and not live"

test-slow: setup  ## the tests that take minutes, those with DeepSpeed too
	@.venv/bin/python -m pip install --quiet --constraint constraints.txt "$$(grep '^deepspeed==' constraints.txt)"
	$(PYTEST) -m "slow and not gpu and not live" --timeout=1800

recipe: .venv/.stamp  ## the embedded tokenizer anew, from data/generated (then: make base)
	@.venv/bin/python -m tasks.experiments.recipe

base: .venv/.stamp  ## the shipped tiny base again
	@.venv/bin/python -m tasks.experiments.base

bench: .venv/.stamp  ## how fast rollouts are, where a GRPO step's time goes (one thread), how fast data is made and checked
	@OMP_NUM_THREADS=1 .venv/bin/python -m benchmarks.rollout
	@OMP_NUM_THREADS=1 .venv/bin/python -m benchmarks.grpo_step
	@.venv/bin/python -m benchmarks.domains
	@.venv/bin/python -m benchmarks.synthesis
	@.venv/bin/python -m benchmarks.validation --rows 20000

lint: .venv/.stamp  ## ruff and mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

format: .venv/.stamp  ## put the code in order
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

clean: stop  ## remove outputs, caches and records; the environments stay
	rm -rf .state work reports data/generated data/.generated.shards data/validated data/quarantine models/sft models/grpo dvc.lock \
		.dvc/cache .dvc/tmp .mypy_cache .pytest_cache .ruff_cache .hypothesis
