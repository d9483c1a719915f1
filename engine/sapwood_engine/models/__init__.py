"""Models as composition: one short file a family, over `layers`."""
