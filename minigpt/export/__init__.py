"""Models out: a folder for Hugging Face, a file for llama.cpp, each checked before it is done."""
