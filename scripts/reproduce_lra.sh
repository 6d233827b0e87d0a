#!/usr/bin/env bash
# Table 5 (Long Range Arena): prints one command a task, row and seed; with --run, runs them one after the other.
#
# usage: scripts/reproduce_lra.sh [--run] [--tasks LIST] [--rows LIST] [--seeds LIST] [--text FOLDER] [--retrieval FOLDER]
#          [--image FOLDER] [-h | --help] [-- key=value ...]
#
# --tasks LIST        of "listops text retrieval image pathfinder" (default all); listops and pathfinder are generated
# --rows LIST         of "softmax softmax_naive linear linformer reformer performer nystromformer agent moba mita_route
#                     mita_compress mita" (default all)
# --seeds LIST        default "0 1 2"
# --text FOLDER       aclImdb; --retrieval FOLDER: tsv_data; --image FOLDER: the one with cifar-10-batches-py
# -- key=value ...    for every run: recipe=..., trainer.precision=bf16, trainer.max_batch_per_device=16
# What is complete is left alone and what was stopped goes on, so the same command may be given again. The controls under
# the table are of tools/lra_controls.py.
set -euo pipefail
help() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }
fail() { echo "$1; see scripts/reproduce_lra.sh --help" >&2; exit 2; }

run=false seeds="0 1 2" text= retrieval= image=
tasks="listops text retrieval image pathfinder"
rows="softmax softmax_naive linear linformer reformer performer nystromformer agent moba mita_route mita_compress mita"
all_tasks=$tasks all_rows=$rows extra=()
while [ $# -gt 0 ]; do
  case "$1" in
    --run) run=true ;;
    --tasks | --rows | --seeds | --text | --retrieval | --image)
      [ $# -ge 2 ] || fail "$1 needs a value"
      printf -v "${1#--}" %s "$2"
      shift
      ;;
    --help | -h) help; exit 0 ;;
    --) shift; extra=("$@"); break ;;
    *) fail "unknown option $1" ;;
  esac
  shift
done
for task in $tasks; do case " $all_tasks " in *" $task "*) ;; *) fail "there is no task $task" ;; esac; done
for row in $rows; do case " $all_rows " in *" $row "*) ;; *) fail "there is no row $row" ;; esac; done
for task in $tasks; do
  case "$task" in
    text | retrieval | image)
      if $run && [ ! -d "${!task}" ]; then fail "--$task ${!task:-(not given)} is not a folder"; fi
      if [ -d "${!task}" ]; then printf -v "$task" %s "$(cd "${!task}" && pwd)"; fi
      ;;
  esac
done
cd "$(dirname "$0")/.."
if [ -d .venv/bin ]; then PATH=$PWD/.venv/bin:$PATH; fi

failed=0
for task in $tasks; do
  root=()
  case "$task" in text | retrieval | image) root=("data.root=${!task:-/path/to/$task}") ;; esac
  for row in $rows; do
    case "$row" in
      softmax | mita) what=("experiment=lra_${task}_$row") ;;
      *) what=("experiment=lra_$task" "attention=$row") ;;
    esac
    for seed in $seeds; do
      command=(python train.py "${what[@]}" "seed=$seed" ${root[@]+"${root[@]}"} ${extra[@]+"${extra[@]}"})
      printf -v line "%q " "${command[@]}"
      echo "${line% }"
      if $run && ! "${command[@]}"; then
        echo "failed: ${what[*]} seed=$seed" >&2
        failed=$((failed + 1))
      fi
    done
  done
done
if [ "$failed" -gt 0 ]; then echo "$failed runs failed" >&2; exit 1; fi
