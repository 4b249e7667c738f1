#!/bin/sh
# From the 29,000 pairs of Multi30k to the best model of this size. It may be started again at any time:
# each command goes on where it was, or says that its run is complete.
# Arguments are passed to each command:  --dry-run, or  --set data.root=PATH/TO/multi30k
set -eu
case "${1-}" in
-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
esac
configs=$(dirname "$0")
case " $* " in *" --dry-run "*) set +e ;; esac  # later steps want what earlier ones have yet to make
mtrain train -c "$configs/both.yaml" "$@"
for seed in 1 2; do
  mtrain train -c "$configs/teacher.yaml" "$@" --set seed=$seed --set run_dir=runs/multi30k-best/teacher-$seed
done
mtrain train -c "$configs/final.yaml" "$@"
