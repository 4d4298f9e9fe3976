"""A whole model: its start, its prompts, its steps and what they are made of."""
