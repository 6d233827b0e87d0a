#!/usr/bin/env bash
# Table 2 (DeiT on ImageNet-1K), 3 (ViT-5 on ImageNet-1K) or 4 (segmentation on ADE20K): prints one command a row and seed; with
# --run, runs them one after the other. Table 5 is of scripts/reproduce_lra.sh.
#
# usage: scripts/reproduce_table.sh 2|3|4 [--run] [--data FOLDER] [--gpus N] [--rows LIST] [--seeds LIST] [-h | --help]
#          [-- key=value ...]
#
# --data FOLDER     where ImageNet is, or ADEChallengeData2016 for Table 4
# --gpus N          GPUs of this machine (default 8); the global batch stays the same; 1 goes without torchrun
# --rows LIST       experiments of the table, as "deit_s_softmax deit_s_mita" (default all)
# --seeds LIST      one run a seed, as "0 1 2" (default 0)
# -- key=value ...  for every run: trainer.max_batch_per_device=128, model.pretrained=FILE
# What is complete is left alone and what was stopped goes on, so the same command may be given again.
set -euo pipefail
help() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }
fail() { echo "$1; see scripts/reproduce_table.sh --help" >&2; exit 2; }

run=false data= gpus=8 seeds=0 rows= all_rows= extra=()
while [ $# -gt 0 ]; do
  case "$1" in [234]) [ -z "$all_rows" ] || fail "one table at a time" ;; esac
  case "$1" in
    2)
      place=/path/to/imagenet
      all_rows="deit_t_softmax deit_t_mita deit_t_mita_released deit_t_mita_dwc"
      all_rows+=" deit_s_softmax deit_s_mita deit_s_mita_released deit_s_mita_dwc deit_s_mita_dwc_gate"
      ;;
    3)
      place=/path/to/imagenet
      all_rows="deit3_s_softmax vit5_s_softmax vit5_s_mita vit5_s_mita_released vit5_s_mita_dwc vit5_s_mita_released_dwc"
      ;;
    4)
      place=/path/to/ADEChallengeData2016
      all_rows="ade20k_t_softmax ade20k_t_mita ade20k_s_softmax ade20k_s_mita"
      all_rows+=" ade20k_b_softmax ade20k_b_mita ade20k_l_softmax ade20k_l_mita"
      ;;
    --run) run=true ;;
    --data | --gpus | --rows | --seeds) [ $# -ge 2 ] || fail "$1 needs a value"; printf -v "${1#--}" %s "$2"; shift ;;
    --help | -h) help; exit 0 ;;
    --) shift; extra=("$@"); break ;;
    *) fail "unknown option or table $1" ;;
  esac
  shift
done
if [ -z "$all_rows" ]; then fail "give a table: 2, 3 or 4"; fi
rows=${rows:-$all_rows}
for row in $rows; do case " $all_rows " in *" $row "*) ;; *) fail "the table has no row $row, only $all_rows" ;; esac; done
case "$gpus" in "" | 0* | *[!0-9]*) fail "--gpus $gpus is no number from 1" ;; esac
if $run && [ ! -d "$data" ]; then fail "--data ${data:-(not given)} is not a folder"; fi
if [ -d "$data" ]; then data=$(cd "$data" && pwd); fi
cd "$(dirname "$0")/.."
if [ -d .venv/bin ]; then PATH=$PWD/.venv/bin:$PATH; fi

if [ "$gpus" = 1 ]; then start=(python train.py) trainer=gpu; else
  start=(torchrun --standalone --nproc_per_node "$gpus" train.py) trainer=ddp
fi
failed=0
for row in $rows; do
  for seed in $seeds; do
    command=("${start[@]}" "experiment=$row" "trainer=$trainer" "data.root=${data:-$place}" "seed=$seed" ${extra[@]+"${extra[@]}"})
    printf -v line "%q " "${command[@]}"
    echo "${line% }"
    if $run && ! "${command[@]}"; then
      echo "failed: experiment=$row seed=$seed" >&2
      failed=$((failed + 1))
    fi
  done
done
if [ "$failed" -gt 0 ]; then echo "$failed runs failed" >&2; exit 1; fi
