"""The gateway: one OpenAI-compatible address in front of many engines.

Layers, left may import right and never back: ``cli > shell > core``.
"""
