"""Training of draft heads, in torch, for `headrace train-heads`. The model itself is not trained: it writes the text,
and gives the hidden states that the heads read.

Read `data`, `medusa`, `eagle`, `fit` and `tree`, and `run`, which writes the folder, last.
"""
