"""What a run will need before it starts: standard library only, never torch.

Reading order: units, hardware, dtypes, weights, activations, kv, fit, resolved, ledger, report.
"""
