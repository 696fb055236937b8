"""How well a model predicts texts: figures with their uncertainty, and where it errs."""
