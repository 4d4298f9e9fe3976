"""Scheduling and KV bookkeeping: standard library only, no tensors, time only as an argument.

Reading order: params, types, executor; block_pool, prefix_cache, request, step_writes, pins, kv_manager; policy,
waiting, deadlines, scheduler; engine; snapshot.
"""
