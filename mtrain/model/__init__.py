"""The Transformer of "Attention Is All You Need": token ids in, hidden states and logits out."""
