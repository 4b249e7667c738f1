#!/bin/sh
# Train the best model of this size from the 29,000 pairs of Multi30k. This script may be started again at any
# time: each command resumes its run, or reports that it is complete.
# Arguments are passed to each command:  --dry-run, or  --set data.root=PATH/TO/multi30k
set -eu
case "${1-}" in
-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
esac
configs=$(dirname "$0")
case " $* " in *" --dry-run "*) set +e ;; esac  # a later stage may fail, as its models do not exist yet
mtrain train -c "$configs/both.yaml" "$@"
for seed in 1 2; do
  mtrain train -c "$configs/teacher.yaml" "$@" --set seed=$seed --set run_dir=runs/multi30k-best/teacher-$seed
done
mtrain train -c "$configs/final.yaml" "$@"
