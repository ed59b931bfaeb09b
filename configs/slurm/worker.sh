#!/bin/bash
# A further worker of a run, which run.sh submits as an array and cancels at its end. It may run in
# a partition whose jobs are preempted: its groups run elsewhere, and it comes back while the run's
# own job, the last argument, waits or runs.
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=12:00:00
# drain_s + 2 rpc_s of rlax.deadlines, and 10 s, to finish groups and leave the run.
#SBATCH --signal=TERM@50
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%A-%a.log
trap : TERM
srun rlax serve --controller "$1" --token-file "$2"
status=$?
[ -n "$(squeue --noheader --jobs="$3")" ] || exit "$status"
if [ "$status" != 2 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 100 ] &&
  [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
