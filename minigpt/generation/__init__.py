"""From a loaded model to text: sampling, decoding, whole characters."""
