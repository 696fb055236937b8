"""From a corpus to batches: documents, tokens, the stored stream, rows of tensors."""
