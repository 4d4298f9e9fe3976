#!/bin/bash
# Runs EleutherAI's lm-eval, as it is, against a running server:
#     headrace serve tale --port 8000 &
#     tests/clients/lm_eval/run.sh PYTHON http://127.0.0.1:8000 FOLDER
# PYTHON has lm-eval[api] and transformers; FOLDER gets the data and the results.
set -euo pipefail
python=$1 url=$2 folder=$3
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
"$python" "$here/make_data.py" "$folder"
cp "$here/next_sentence.yaml" "$folder/"
cd "$folder"
HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_DATASETS_CACHE="$folder/cache" "$python" -m lm_eval \
  --model local-completions \
  --model_args "model=tale,base_url=$url/v1/completions,tokenizer=$here/../../../src/headrace/bundled/tale,num_concurrent=4,max_length=1024,tokenized_requests=True" \
  --include_path "$folder" --tasks next_sentence --output_path "$folder/results" --batch_size 4
