"""What should be in the cluster for an InferenceService, decided from what was observed; no I/O, no clock."""
