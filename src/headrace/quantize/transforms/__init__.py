"""What changes in a model beside the codes. `folds`: where features can be scaled. `rotations`, with `hadamard`: the
residual stream and the values of heads. `plain`: tensors that change and stay floats. `ends`: embeddings and head."""
