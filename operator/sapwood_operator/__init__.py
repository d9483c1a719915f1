"""The operator: InferenceServices become engine pods behind one address, and stay that way."""
