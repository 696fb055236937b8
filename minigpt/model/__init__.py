"""The Transformer: token ids in, logits out. It knows no text, no loss and no optimizer."""
