#!/bin/bash
# Train on all GPUs of one machine or of several:
#
#   sbatch scripts/slurm/train.sh runs/NAME -c config.yaml [--set a.b=value ...]
#   sbatch --nodes=2 scripts/slurm/train.sh runs/NAME -c config.yaml
#
# The first argument is the run directory, the others are those of `mtrain train`. SLURM starts one
# torchrun on each machine, and torchrun one process for each GPU. If processes or a machine die, torchrun
# restarts with the machines that are left; the weights are the same. Two minutes before the time limit
# SLURM sends SIGUSR1: mtrain saves, the job is queued again, and the same command resumes the run.
# Adapt the numbers to your machines; --cpus-per-task is the number of cores of one machine. Without GPUs,
# remove --gres: one process on each machine uses these cores.
#SBATCH --job-name=mtrain
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=32
#SBATCH --mem=64G
#SBATCH --time=4:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --open-mode=append

# gloo uses the network of the address that a machine's name resolves to. If the machines cannot connect, name
# another network.
# export GLOO_SOCKET_IFNAME=ib0 NCCL_SOCKET_IFNAME=ib0

# without this, torch 2.13 lets machines that join a running job wait forever
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

usage="usage: sbatch scripts/slurm/train.sh runs/NAME -c config.yaml [--set a.b=value ...]"
run=${1:?$usage}
: "${SLURM_JOB_ID:?a job of SLURM sets this; $usage}"
shift
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
before=$(cat "$run/status.json" 2>/dev/null)

# torchrun passes signals on, and waits for the processes to save
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --no-kill --kill-on-bad-exit=0 --wait=60 \
  torchrun --nnodes="1:$SLURM_JOB_NUM_NODES" --nproc-per-node="${SLURM_GPUS_ON_NODE:-1}" --max-restarts=3 \
  --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d \
  --rdzv-endpoint="$first:$((20000 + SLURM_JOB_ID % 10000))" \
  --signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 --shutdown-timeout=100 \
  -m mtrain train "$@" --set "run_dir=\"$run\""
code=$?

# torchrun turns every stop into exit code 1; status.json has the exit code of the run, and in last_start
# that of a start that was refused or failed early
after=$(cat "$run/status.json" 2>/dev/null)
if [ "$code" -ne 0 ] && [ "$after" != "$before" ]; then
  code=$(python3 -c 'import json, sys
status = json.loads(sys.argv[1])
code = (status.get("last_start") or status)["exit_code"]
print(1 if code is None else code)' "$after" || echo 1)
fi
[ "$code" -eq 75 ] && exec scontrol requeue "$SLURM_JOB_ID"
exit "$code"
