"""What a checkpoint says, read without torch: where it lies, its dimensions, its tensors' bytes.

Both processes read it: the HTTP process for tokenizer and context length, the worker for the weights.
"""
