"""Training of draft heads, in torch, for `headrace train-heads`. The model itself is not trained: it writes the text,
and gives the hidden states that the heads read.

Reading order: documents (what to train on), data (states and batches), medusa and eagle (the two methods), fit (the
loop), tree (Medusa's tree), run (all of it, into a folder).
"""
