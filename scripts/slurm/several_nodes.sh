#!/bin/bash
# Train on the GPUs of several machines:
# sbatch scripts/slurm/several_nodes.sh -c config.yaml [--set a.b=value ...]
#
# Two minutes before the time limit SLURM sends SIGUSR1: mtrain saves and ends with exit code 75, and the
# job goes back to the queue, where the same command goes on. Fit the figures to your machines: as many
# tasks on a node as it has GPUs, and their cores divided among them.
#SBATCH --job-name=mtrain
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=4:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

# The processes meet at the first machine of the job. Where machines have several networks, name the one to
# use, such as ib0 or eth0.
# export GLOO_SOCKET_IFNAME=ib0 NCCL_SOCKET_IFNAME=ib0

# Where one task ends the others do so by themselves; --wait is for those that cannot.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=0 --wait=60 mtrain train "$@"
code=$?
[ "$code" -eq 75 ] && exec scontrol requeue "$SLURM_JOB_ID"
exit "$code"
