"""`headrace plan`: what a model needs, how fast it will be and what it will cost, from its config alone."""
