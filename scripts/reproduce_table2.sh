#!/usr/bin/env bash
# Table 2 (DeiT on ImageNet-1K): prints one command a row and seed; with --run, runs them one after the other.
set -euo pipefail
usage="usage: DATA=/path/to/imagenet [GPUS=8] [SEEDS=0] scripts/reproduce_table2.sh [--run | --help]"
run=false
case "${1:-}" in
  --run) run=true ;;
  --help | -h) echo "$usage"; exit 0 ;;
  "") ;;
  *) echo "$usage" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."
data=${DATA:-/path/to/imagenet}
if $run && [ ! -d "$data" ]; then echo "DATA=$data is no folder. $usage" >&2; exit 2; fi

for experiment in deit_t_softmax deit_t_mita deit_t_mita_released deit_t_mita_dwc \
  deit_s_softmax deit_s_mita deit_s_mita_released deit_s_mita_dwc deit_s_mita_dwc_gate; do
  for seed in ${SEEDS:-0}; do
    command=(torchrun --standalone --nproc_per_node "${GPUS:-8}" train.py "experiment=$experiment" trainer=ddp "data.root=$data" "seed=$seed")
    echo "${command[*]}"
    if $run; then "${command[@]}"; fi
  done
done
if $run; then python tools/make_tables.py; fi
