"""Drafting: what proposes tokens for the model to verify. A draft never changes the text, only the number of steps."""
