"""The Transformer of "Attention Is All You Need": token ids in, hidden states and logits out.

`transformer` reads like the paper, and `building.build` makes the class that a device needs: `cpu`
is the same model with faster products. `encoder` and `decoder` compute it for translation, one
target position at a time; `recorded` replays the steps of the decoder on a GPU.
"""
