"""What is wrong with a model, by the path on which practitioners find a fault."""
