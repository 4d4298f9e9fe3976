"""Tale: two tiny story models, their corpus, and the scripts that make them."""
