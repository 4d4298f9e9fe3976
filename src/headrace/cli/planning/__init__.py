"""Commands that predict: memory, speed and cost, and the measurements that they start from."""
