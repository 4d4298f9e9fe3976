"""The cost model's predictions held against measured steps, and against requests that arrive at several rates.

Reading order: rows, steps, rates.
"""
