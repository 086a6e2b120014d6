# The everyday commands. `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup setup-vllm setup-tau2 setup-inspect pipeline learn learn-ablations up stop status test test-slow recipe base bench faults lint format audit sbom clean

# Without byte code each process of a test would compile the project, and each worker every test file.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 .venv/bin/python -m pytest

help:  ## list these commands
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):[^#]*## ?/  make \1\t/' | expand -t 24

setup: .venv/.stamp .venv-vllm/.done  ## install both environments: .venv for the pipeline, .venv-vllm for serving

.venv/.stamp: pyproject.toml constraints.txt constraints-hashes.txt scripts/setup.sh scripts/install.sh scripts/pip_settings.py
	@PYTHON="$(PYTHON)" bash scripts/setup.sh

# A machine where vLLM cannot be installed still gets a working pipeline: deploy then serves in process and says so.
# Either way it is tried once; `make setup-vllm` tries again.
VLLM_PINS := scripts/vllm-constraints.txt scripts/vllm-constraints-hashes.txt
.venv-vllm/.done: scripts/setup_vllm.sh $(VLLM_PINS) scripts/install.sh scripts/pip_settings.py | .venv/.stamp
	@if bash scripts/setup_vllm.sh; then rm -f .venv-vllm/.failed; else \
		mkdir -p .venv-vllm && touch .venv-vllm/.failed; \
		echo "setup: vLLM could not be installed (see above): serving will run in process — make setup-vllm tries again" >&2; fi
	@mkdir -p .venv-vllm && touch .venv-vllm/.done

setup-vllm:  ## install the vLLM environment again; VLLM=gpu takes vLLM's own wheel, for CUDA
	@rm -f .venv-vllm/.done && $(MAKE) --no-print-directory .venv-vllm/.done

setup-tau2: .venv/.stamp  ## install tau2-bench 1.0.1 in .venv-tau2; ARCHIVE names a copy of the release, PYTHON a Python 3.12
	@PYTHON="$(or $(PYTHON),python3.12)" bash scripts/setup_tau2.sh $(ARCHIVE)

setup-inspect: .venv/.stamp  ## install inspect_ai and inspect_evals in .venv-inspect
	@bash scripts/setup_inspect.sh

pipeline: setup  ## run every stage: synthesize, validate, sft, grpo, evaluate, promote, deploy; PROFILE=qwen3-8b names a profile
	@.venv/bin/orchestra run $(if $(PROFILE),--profile $(PROFILE))

learn: .venv/.stamp  ## measure the claims over three training seeds and rewrite docs/claims.md
	@.venv/bin/orchestra learn --split heldout

learn-ablations: .venv/.stamp  ## do the same, with arms that lack a part of the reward
	@.venv/bin/orchestra learn --split heldout --ablations

up: .venv/.stamp  ## start the Prefect and MLflow servers on 127.0.0.1
	@.venv/bin/orchestra up

stop:  ## stop every server of this workspace
	@if [ -x .venv/bin/orchestra ]; then .venv/bin/orchestra stop; fi

status: .venv/.stamp  ## show which stages are stale and which version serves
	@.venv/bin/orchestra status

# Three at a time, since tests of servers and stages often wait; a file stays with one process, which shares what its
# tests set up once. A process that dies fails its test and ends the run: with another in its place, xdist 3.8 may hang.
test: .venv/.stamp  ## run the tests
	$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -m "not slow and not gpu and not live"

test-slow: setup  ## run the tests that take minutes, including DeepSpeed
	@.venv/bin/python -m pip install --quiet --constraint constraints.txt "$$(grep '^deepspeed==' constraints.txt)"
	$(PYTEST) -m "slow and not gpu and not live" --timeout=1800

recipe: .venv/.stamp  ## train the embedded tokenizer on data/generated (then run make base)
	@.venv/bin/python -m tasks.experiments.recipe

base: .venv/.stamp  ## train the shipped base model
	@.venv/bin/python -m tasks.experiments.base

faults: .venv/.stamp  ## commit faults against the micro pipeline and write docs/explanation/faults.md (about 90 minutes)
	@OMP_NUM_THREADS=1 .venv/bin/python -m benchmarks.faults

bench: .venv/.stamp  ## measure the speed of rollouts, of a GRPO step and of data
	@missed=0; \
	for one in rollout grpo_step shared_prefix rollout_latency; do \
		OMP_NUM_THREADS=1 .venv/bin/python -m benchmarks.$$one || missed=1; \
	done; \
	for one in domains synthesis "validation --rows 20000"; do .venv/bin/python -m benchmarks.$$one || missed=1; done; \
	exit $$missed

lint: .venv/.stamp  ## check style, types and words with ruff, mypy and codespell
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	git ls-files '*.py' '*.md' '*.sh' Makefile | xargs .venv/bin/codespell

# Both tools run in environments of their own.
audit: .venv/.stamp  ## ask the advisory database about every pinned version, with pip-audit
	@.venv/bin/python -m scripts.audit

sbom: .venv/.stamp  ## list every installed package with licence in sbom.json, in CycloneDX's format
	@.venv/bin/uv tool run --quiet --from cyclonedx-bom==7.5.0 cyclonedx-py environment --pyproject pyproject.toml \
		--output-reproducible --output-format JSON --output-file sbom.json .venv/bin/python
	@echo "sbom: sbom.json"

format: .venv/.stamp  ## format the code
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

clean: stop  ## remove outputs, caches, records and work (learn results, sweeps, paid attempts); the environments stay
	rm -rf .state work reports data/generated data/.generated.shards data/validated data/quarantine models/sft models/grpo dvc.lock \
		.dvc/cache .dvc/tmp .mypy_cache .pytest_cache .ruff_cache .hypothesis
