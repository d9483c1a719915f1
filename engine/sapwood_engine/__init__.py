"""The Sapwood engine: one HTTP process and one worker process around a radix prefix cache.

Layers, left may import right and never back:
``cli > api > service > runtime > models > layers > kernels > checkpoint > config > core > errors``.
"""
