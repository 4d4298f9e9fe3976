"""`headrace plan`: what a model needs, how fast it will be and what it will cost, from its config alone.

Reading order: model, formats, memory, speed, money, tables, search, command, overview; then report, data and plot.
"""
