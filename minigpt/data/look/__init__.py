"""What the model will see: figures of a prepared corpus, and a batch of it as text."""
