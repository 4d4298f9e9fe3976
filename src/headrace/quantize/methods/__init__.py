"""`table`: what each method does, by its name. `awq` and `smoothquant`: the factors that features are divided by."""
