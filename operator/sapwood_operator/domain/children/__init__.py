"""The objects that an InferenceService becomes, a module each, as plain JSON mappings."""
