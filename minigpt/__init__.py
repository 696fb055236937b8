"""A mini-GPT trainer: text in, a model that writes like it out."""
