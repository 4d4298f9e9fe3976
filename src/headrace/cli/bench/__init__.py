"""`headrace bench`: its kinds, with their flags and checks."""
