#!/usr/bin/env bash
#SBATCH --job-name=mita
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=48:00:00
#SBATCH --requeue
# sbatch scripts/slurm_train.sh experiment=deit_s_mita data.root=/path/to/imagenet
# A requeued job goes on from its last checkpoint, because the run folder follows from the configuration.
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
srun .venv/bin/torchrun --standalone --nproc_per_node "${SLURM_GPUS_ON_NODE:-8}" train.py trainer=ddp "$@"
