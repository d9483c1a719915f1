"""Building blocks of a decoder, on torch tensors: linear, norm, rotary embedding, MLP, attention."""
