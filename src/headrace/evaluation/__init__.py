"""How good a model is: perplexity, distance to another model, and whether both write the same. numpy only."""
