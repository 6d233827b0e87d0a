#!/usr/bin/env bash
# Table 2 (DeiT on ImageNet-1K, 300 epochs): prints one command a row and seed; with --run, runs them one after the other.
#
# usage: scripts/reproduce_table2.sh [--run] [--data FOLDER] [--gpus N] [--seeds "0 1 2"] [-h | --help]
#
# --data FOLDER  where ImageNet is (or DATA=FOLDER)
# --gpus N       GPUs of this machine (or GPUS=N; default 8); the global batch of 1024 stays the same
# --seeds LIST   one run a seed (or SEEDS="0 1 2"; default 0)
# What is complete is left alone and what was stopped goes on, so the same command may be given again.
set -euo pipefail
help() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }
fail() { echo "$1; see scripts/reproduce_table2.sh --help" >&2; exit 2; }

run=false data=${DATA:-} gpus=${GPUS:-8} seeds=${SEEDS:-0}
while [ $# -gt 0 ]; do
  case "$1" in
    --run) run=true ;;
    --data | --gpus | --seeds) [ $# -ge 2 ] || fail "$1 needs a value"; printf -v "${1#--}" %s "$2"; shift ;;
    --help | -h) help; exit 0 ;;
    *) fail "unknown option $1" ;;
  esac
  shift
done
if $run && [ ! -d "$data" ]; then fail "--data ${data:-(not given)} is not a folder"; fi
if [ -d "$data" ]; then data=$(cd "$data" && pwd); fi
cd "$(dirname "$0")/.."
if [ -d .venv/bin ]; then PATH=$PWD/.venv/bin:$PATH; fi

failed=0
for experiment in deit_t_softmax deit_t_mita deit_t_mita_released deit_t_mita_dwc \
  deit_s_softmax deit_s_mita deit_s_mita_released deit_s_mita_dwc deit_s_mita_dwc_gate; do
  for seed in $seeds; do
    command=(torchrun --standalone --nproc_per_node "$gpus" train.py "experiment=$experiment" trainer=ddp
      "data.root=${data:-/path/to/imagenet}" "seed=$seed")
    echo "${command[*]}"
    if $run && ! "${command[@]}"; then
      echo "failed: experiment=$experiment seed=$seed" >&2
      failed=$((failed + 1))
    fi
  done
done
if [ "$failed" -gt 0 ]; then echo "$failed runs failed" >&2; exit 1; fi
