#!/bin/sh
# Train the rows of table 3 of "Attention Is All You Need", all on the same batches, and print them as a table.
#   sh run.sh [--small] [--row NAME] [OPTIONS of mtrain train, such as --set data.root=PATH]
# --small is a size for CPUs: a quarter of the widths, half of the heads. --row trains one row, without a table.
# The script may be started again at any time: each row is resumed, or reported as complete.
# Rows (B) are missing: keys are d_model / num_heads wide here, as in all other rows of the paper.
set -eu
case "${1-}" in
-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
esac
configs=$(dirname "$0")
size=base scale=1 h4=4 h16=16 h32=32 only=
while :; do
  case "${1-}" in
  --small) size=small scale=4 h4=2 h16=8 h32=16; shift ;;
  --row) only=$2; shift 2 ;;
  *) break ;;
  esac
done

found=
while read -r name settings; do
  [ "${only:-$name}" = "$name" ] || continue
  found=yes
  # shellcheck disable=SC2086  # settings are words
  mtrain train -c "$configs/$size.yaml" "$@" --set "run_dir=runs/paper-table-3/$size/$name" $settings </dev/null
done <<ROWS
base
heads-1        --set model.num_heads=1
heads-4        --set model.num_heads=$h4
heads-16       --set model.num_heads=$h16
heads-32       --set model.num_heads=$h32
layers-2       --set model.num_encoder_layers=2 --set model.num_decoder_layers=2
layers-4       --set model.num_encoder_layers=4 --set model.num_decoder_layers=4
layers-8       --set model.num_encoder_layers=8 --set model.num_decoder_layers=8
d_model-256    --set model.d_model=$((256 / scale))
d_model-1024   --set model.d_model=$((1024 / scale))
d_ff-1024      --set model.d_ff=$((1024 / scale))
d_ff-4096      --set model.d_ff=$((4096 / scale))
dropout-0.0    --set model.dropout=0.0
dropout-0.2    --set model.dropout=0.2
smoothing-0.0  --set train.label_smoothing=0.0
smoothing-0.2  --set train.label_smoothing=0.2
learned        --set model.positions=learned
big            --set model.d_model=$((1024 / scale)) --set model.d_ff=$((4096 / scale)) --set model.num_heads=$h16 --set model.dropout=0.3
ROWS
[ -n "$found" ] || { echo "run.sh: --row $only: no such row" >&2; exit 2; }
[ -n "$only" ] || python3 "$configs/../../scripts/paper_table.py" "runs/paper-table-3/$size"
