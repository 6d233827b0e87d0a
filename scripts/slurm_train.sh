#!/usr/bin/env bash
#SBATCH --job-name=mita
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=48:00:00
#SBATCH --requeue
# One run on a Slurm cluster, from the root of the project after make setup:
#   sbatch scripts/slurm_train.sh experiment=deit_s_mita data.root=/path/to/imagenet
#   sbatch --nodes=2 --gpus-per-node=4 scripts/slurm_train.sh experiment=deit_s_mita data.root=/path/to/imagenet
# A requeued job goes on from its last checkpoint, because the run folder follows from the configuration.
set -euo pipefail
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then sed -n '9,12s/^# //p' "$0"; exit 0; fi
cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}"
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # since Slurm 22.05 srun does not take it from sbatch
srun .venv/bin/torchrun --nnodes "$SLURM_NNODES" --nproc_per_node "$SLURM_GPUS_ON_NODE" \
  --rdzv_id "$SLURM_JOB_ID" --rdzv_backend c10d --rdzv_endpoint "$first:$((29500 + SLURM_JOB_ID % 1000))" \
  train.py trainer=ddp "$@"
