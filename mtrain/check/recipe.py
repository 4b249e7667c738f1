"""Settings for text of some size, by measured recipes, and the template of the config."""

from dataclasses import dataclass

from mtrain.check.words import PIECES_A_WORD

EPOCHS = 28  # about those of the measured recipes

TEMPLATE = """\
# $pairs pairs, $languages. Sizes and rates follow
# $origin.
# Nothing was tuned to this text. configs/multi30k-en-de.yaml explains every setting there is.
# Check the text first:   mtrain check -c $config
# Train:                   mtrain train -c $config

$run_dir
seed: 1  # fixes every random choice

data:
  $src_lang
  $tgt_lang  # BLEU is tokenized for it
  train:  # any number of corpora, concatenated
    - $train
  valid:  # translated and scored every valid_every steps
    $valid
  test: {}  # sets scored at the end, such as {news: {src: FILE, tgt: FILE}}
  invalid_utf8: $invalid_utf8  # error refuses a pair, drop leaves it out and counts it
  max_length: 256  # tokens a side; longer pairs are dropped and counted

tokenizer:
  vocab_size: $vocab_size  # pieces, shared by both sides

model:
  d_model: $d_model
  num_heads: $num_heads
  d_ff: $d_ff
  num_encoder_layers: $layers
  num_decoder_layers: $layers
  dropout: $dropout  # higher for less text, against overfitting

train:
  device: auto  # a GPU if there is one
  threads: auto  # every core
  max_steps: $max_steps
  max_tokens: $max_tokens  # padded tokens a side in a micro-batch
  accum_steps: 4  # micro-batches a step, from short pairs to long ones
  schedule: $schedule
  warmup_steps: $warmup_steps
  peak_lr: $peak_lr
  valid_every: $valid_every
  save_every: $save_every
  patience: 0  # the last steps, at low rates, bring much of the score
  average_last: 5

decode:
  beam_size: 5
  length_penalty: 1.0
  length_norm: power  # score / length
"""


@dataclass(frozen=True)
class Size:
    """The size of the text: pairs, words of both sides per pair, and the numbers of different words
    and characters in a sample.
    """

    pairs: int
    words: float
    types: int
    characters: int


@dataclass(frozen=True)
class Recipe:
    """Settings for text of some size, and their origin."""

    origin: str
    d_model: int
    num_heads: int
    d_ff: int
    layers: int
    dropout: float
    vocab_size: int
    max_tokens: int
    max_steps: int
    warmup_steps: int
    schedule: str
    peak_lr: float


def recipe_for(size: Size, *, has_gpu: bool) -> Recipe:
    """Choose the settings of the measured recipe whose text is nearest in size."""
    if size.pairs > 1_000_000 and has_gpu:
        name = "configs/transformer-base-wmt14-en-de.yaml (the paper's, for 4.5 million pairs)"
        pieces = _vocabulary(32_000, size)
        return Recipe(name, 512, 8, 2048, 6, 0.1, pieces, 6250, 100_000, 4000, "noam", 7.0e-4)
    if size.pairs <= 50_000:
        name, d_ff, wide = "configs/multi30k-en-de.yaml (29,000 pairs)", 512, 1
        least, most, longest_warmup = 500, 8000, 800
    else:
        name, d_ff = "configs/small.yaml (110,000 pairs were tried)", 1024
        least, most, longest_warmup = 2000, 100_000, 1000
        wide = 4 if has_gpu else 1
    tokens = PIECES_A_WORD * size.words / 2 * max(1, size.pairs)
    steps = round(EPOCHS * tokens / (3400 * wide) / 500) * 500
    steps = min(most, max(least, steps))
    warmup = min(longest_warmup, steps // 10)
    pieces = _vocabulary(8000 if size.pairs < 300_000 else 16_000, size)
    dropout = 0.3 if size.pairs < 1_000_000 else 0.1
    batch = 1024 * wide
    return Recipe(name, 256, 4, d_ff, 3, dropout, pieces, batch, steps, warmup, "cosine", 0.002)


def _vocabulary(wanted: int, size: Size) -> int:
    """Choose a number of pieces that the text can fill and that holds its characters."""
    room = 260 + size.characters + int(0.7 * size.types)
    least = 260 + int(1.2 * size.characters) + 40
    return max(least, min(max(wanted, 2 * size.characters), room // 100 * 100))
