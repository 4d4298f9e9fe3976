"""Scheduling and KV bookkeeping: standard library only, no tensors, time only as an argument.

Reading order: params, types, block_pool, prefix_cache, kv_manager, policy, scheduler, engine.
"""
