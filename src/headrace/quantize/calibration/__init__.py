"""`texts` to calibrate on. `walk` runs them through a model a layer at a time, and `hessians` sums the inputs of
matrices."""
